// A protection domain of an RDMA device, and the memory that is registered in it.
//
// Memory is registered once per domain, in pieces of bounded size, so that no single driver call
// takes long. Neighboring pieces overlap by the largest chunk of a table, so the payload of a
// record lies within one region and needs one key. A registration is attached to its memory block,
// and ends before the memory or with the domain.
//
// **Thread safety**: thread-safe. Several threads may call a MemorySteps; the calls are serialized.
// No lock of the domain is held while memory is registered or deregistered.
//
// Invariants:
//  1. A block is found as registered only when all of its pieces are.
//  2. When the domain's destructor returns, no region of the domain is left, not even one that
//     another thread was registering or deregistering.
#ifndef VERBENA_RDMA_VERBS_VERBS_DOMAIN_H_
#define VERBENA_RDMA_VERBS_VERBS_DOMAIN_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rdma/memory/memory.h"
#include "rdma/verbs/gpu_direct.h"
#include "rdma/verbs/verbs_handles.h"

namespace verbena::rdma {

// Piece i of a block begins at i * stride and has `bytes`, or the rest of the block.
struct PieceSizes {
  size_t bytes = 0;
  size_t stride = 0;
};

// Registered memory of one block in one domain.
struct RegisteredMemory {
  const std::byte* base = nullptr;
  size_t size = 0;
  PieceSizes sizes;
  std::vector<ibv_mr*> pieces;

  size_t IndexOf(const std::byte* data) const {
    return std::min(static_cast<size_t>(data - base) / sizes.stride, pieces.size() - 1);
  }
  ibv_mr* At(const std::byte* data) const { return pieces[IndexOf(data)]; }
  // Bytes from `data` to the end of its piece.
  size_t LeftAt(const std::byte* data) const {
    const size_t begin = IndexOf(data) * sizes.stride;
    return std::min(begin + sizes.bytes, size) - static_cast<size_t>(data - base);
  }
};

class VerbsDomain {
 public:
  class MemorySteps;
  // Purpose of a region for a part of a block: remote writes on devices without windows, or a
  // window for a range that no single piece contains.
  enum class PartUse : uint8_t { kPeer, kWindow };

  VerbsDomain(ibv_pd* pd, std::shared_ptr<GpuDirect> gpu_direct, int access, PieceSizes sizes);
  ~VerbsDomain();
  VerbsDomain(const VerbsDomain&) = delete;
  VerbsDomain& operator=(const VerbsDomain&) = delete;

  ibv_pd* pd() const { return pd_.get(); }
  // The registration of `block`'s root block; null: there is none (yet). It lives as long as the
  // root block and the domain.
  const RegisteredMemory* Find(const MemoryBlock& block) const;
  // Registers the root block if it is not registered. Registers all pieces in this call, which
  // takes seconds for many gigabytes.
  absl::StatusOr<const RegisteredMemory*> Register(const MemoryBlock& block);
  // Starts Register() in steps. Null: the block is registered. Callers for a block whose
  // registration is in progress share the steps.
  std::shared_ptr<MemorySteps> StartRegistration(const MemoryBlock& block);
  // Whether windows can be bound to regions of this block, on a device that has windows.
  bool TakesWindows(const MemoryBlock& block) const;
  // Registers a separate region for a part of the block. It ends before the domain.
  absl::StatusOr<MrHandle> RegisterPart(const MemoryBlock& block, std::byte* data, size_t bytes,
                                        PartUse use);
  // Starts RegisterPart(), which is one step; MemorySteps::TakePart() returns the region.
  std::shared_ptr<MemorySteps> StartPart(const MemoryBlock& block, std::byte* data, size_t bytes,
                                         PartUse use);

 private:
  class Registration;
  // Shared with the registrations and steps, which may outlive the domain.
  struct Shared;

  int AccessOf(PartUse use) const;

  PdHandle pd_;
  std::shared_ptr<GpuDirect> gpu_direct_;
  int access_;
  PieceSizes sizes_;
  std::shared_ptr<Shared> shared_;
};

// A registration in progress, of a block or of a part for a connection. Abandoned steps leave no
// memory registered.
class VerbsDomain::MemorySteps {
 public:
  enum class For : uint8_t { kBlock, kConnection };
  // `sizes`: of the pieces; a connection's part is one piece.
  MemorySteps(const VerbsDomain& domain, const MemoryBlock& root, absl::Span<std::byte> range,
              PieceSizes sizes, int access, For purpose);
  ~MemorySteps();
  MemorySteps(const MemorySteps&) = delete;
  MemorySteps& operator=(const MemorySteps&) = delete;

  // Registers the next piece. An error is final: no part of the block stays registered.
  // UNAVAILABLE: the domain was closed.
  absl::Status Step();
  // Returns the region of a complete part, once. Null: the domain was closed.
  MrHandle TakePart();
  // Acquire, paired with the release in Step(): a thread that sees it complete finds the
  // registration.
  bool complete() const { return complete_.load(std::memory_order_acquire); }
  // Relaxed: a caller that does not see it yet gets the error from Step().
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  // Relaxed: for display.
  uint64_t registered_bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  friend class VerbsDomain;

  absl::Status RegisterPiece();   // under mutex_
  void Complete();                // all pieces are registered; under mutex_
  void End(absl::Status reason);  // under mutex_

  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<GpuDirect> gpu_direct_;
  const std::shared_ptr<MemoryBlock> root_;
  const void* const key_;  // of the attachment
  std::byte* const data_;
  const int access_;
  const For purpose_;

  std::mutex mutex_;  // held while a piece is registered; guards the fields below
  ibv_pd* pd_;        // null: ended
  absl::Status ended_;
  std::optional<MemorySource> source_;
  RegisteredMemory memory_;
  std::vector<MrHandle> regions_;

  std::atomic<bool> complete_{false};
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_DOMAIN_H_
