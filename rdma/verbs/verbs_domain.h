// A protection domain of an RDMA device, and the memory that is registered in it.
//
// Memory is registered once for each domain, in pieces of bounded size, so that no single call of
// the driver takes long. Neighbouring pieces overlap by the largest chunk of a table: the payload
// of a record lies within one region and needs one key. A registration hangs on its memory block
// and ends before the memory does, or with the domain.
//
// **Thread safety**: thread-safe. A MemorySteps may be stepped by several threads, which take
// turns. No lock of the domain is held while memory is registered or deregistered.
//
// Invariants:
//  1. A block is found registered only when all of its pieces are.
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

// Piece i of a block begins at i * stride and has `bytes`, or what is left of the block.
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
  // What a region of a part of a block is for: remote writes where there are no windows, or a
  // window where the range lies in no single piece.
  enum class PartUse : uint8_t { kPeer, kWindow };

  VerbsDomain(ibv_pd* pd, std::shared_ptr<GpuDirect> gpu_direct, int access, PieceSizes sizes);
  ~VerbsDomain();
  VerbsDomain(const VerbsDomain&) = delete;
  VerbsDomain& operator=(const VerbsDomain&) = delete;

  ibv_pd* pd() const { return pd_.get(); }
  // The registration of the block that `block` is a piece of; null: there is none (yet). Lives as
  // long as that block and the domain do.
  const RegisteredMemory* Find(const MemoryBlock& block) const;
  // Registers it unless it is registered: all pieces in this call, which takes seconds for many
  // gigabytes.
  absl::StatusOr<const RegisteredMemory*> Register(const MemoryBlock& block);
  // The same step by step. Null: it is registered. Callers that ask for a block which is being
  // registered share the steps.
  std::shared_ptr<MemorySteps> StartRegistration(const MemoryBlock& block);
  // Whether windows can be bound to regions of this block, where the device has windows.
  bool TakesWindows(const MemoryBlock& block) const;
  // A region of its own for a part of the block, which ends before the domain.
  absl::StatusOr<MrHandle> RegisterPart(const MemoryBlock& block, std::byte* data, size_t bytes,
                                        PartUse use);
  // The same in one step; then MemorySteps::TakePart().
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

// A block, or a part of one for a connection, that is being registered. Steps that are given up
// leave nothing registered.
class VerbsDomain::MemorySteps {
 public:
  enum class For : uint8_t { kBlock, kConnection };
  // `sizes`: of the pieces; a connection's is one piece.
  MemorySteps(const VerbsDomain& domain, const MemoryBlock& root, absl::Span<std::byte> range,
              PieceSizes sizes, int access, For purpose);
  ~MemorySteps();
  MemorySteps(const MemorySteps&) = delete;
  MemorySteps& operator=(const MemorySteps&) = delete;

  // Registers the next piece. An error is final: nothing of the block stays registered.
  // UNAVAILABLE: the domain was closed.
  absl::Status Step();
  // The region of a complete part, once. Null: the domain was closed.
  MrHandle TakePart();
  // Acquire, with the release in Step(): who sees it complete finds the registration.
  bool complete() const { return complete_.load(std::memory_order_acquire); }
  // Relaxed: a caller that does not see it yet is told by Step().
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  // Relaxed: for people.
  uint64_t registered_bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  friend class VerbsDomain;

  absl::Status RegisterPiece();   // under mutex_
  void Complete();                // all pieces are there; under mutex_
  void End(absl::Status reason);  // under mutex_

  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<GpuDirect> gpu_direct_;
  const std::shared_ptr<MemoryBlock> root_;
  const void* const key_;  // of the attachment
  std::byte* const data_;
  const int access_;
  const For purpose_;

  std::mutex mutex_;  // held while a piece is registered; of what follows
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
