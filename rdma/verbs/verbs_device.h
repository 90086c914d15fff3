// An RDMA device as this process uses it: what it can do, and the memory registered with it.
//
// There is one VerbsDevice for each open context; the endpoints on it share it. Memory is
// registered once for each protection domain; a registration hangs on its memory block and ends
// before the memory does, or with the device.
//
// **Thread safety**: all of it may be used from any thread (control path: a mutex).
//
// Invariants:
//  1. With memory windows there is one protection domain, and nothing is registered for remote
//     access: peers reach memory through windows only. But for dma-bufs of GPUs, which cannot have
//     windows: whoever is connected in that domain could write there with a key that was guessed.
//  2. The context outlives this object: every endpoint keeps a bound rdma_cm_id as long as it holds
//     the device (librdmacm closes a context with its last id).
#ifndef VERBENA_RDMA_VERBS_VERBS_DEVICE_H_
#define VERBENA_RDMA_VERBS_VERBS_DEVICE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/memory.h"
#include "rdma/verbs/gpu_direct.h"
#include "rdma/verbs/verbs_endpoint.h"
#include "rdma/verbs/verbs_handles.h"

namespace verbena::rdma {

// Registered memory of one block in one domain, in pieces of the device's largest region.
struct RegisteredMemory {
  const std::byte* base = nullptr;
  size_t piece_bytes = 0;
  std::vector<ibv_mr*> pieces;

  const ibv_mr* At(const std::byte* data) const {
    return pieces[static_cast<size_t>(data - base) / piece_bytes];
  }
};

class VerbsDomain {
 public:
  VerbsDomain(ibv_pd* pd, std::shared_ptr<GpuDirect> gpu_direct, int access, uint64_t piece_bytes);
  ~VerbsDomain();
  VerbsDomain(const VerbsDomain&) = delete;
  VerbsDomain& operator=(const VerbsDomain&) = delete;

  ibv_pd* pd() const { return pd_.get(); }
  // Registers the block that `block` is a piece of, unless it is already. The result lives as long
  // as that block and the domain do.
  absl::StatusOr<const RegisteredMemory*> Register(const MemoryBlock& block);
  // Whether windows can be bound to regions of this block, where the device has windows.
  bool TakesWindows(const MemoryBlock& block) const;
  // A region of its own for remote writes to a part of the block, where there are no windows.
  absl::StatusOr<MrHandle> RegisterForPeer(const MemoryBlock& block, std::byte* data, size_t bytes);

 private:
  class Registration;
  // Shared with the registrations, which may outlive the domain.
  struct Shared;

  PdHandle pd_;
  std::shared_ptr<GpuDirect> gpu_direct_;
  int access_;
  uint64_t piece_bytes_;
  std::shared_ptr<Shared> shared_;
};

// What an asynchronous event told about a connection's queue pair.
struct AsyncInbox {
  explicit AsyncInbox(int fd) : wake_fd(fd) {}
  std::mutex mutex;
  std::vector<std::pair<uint32_t, ibv_event_type>> events;  // connection id, what happened
  int wake_fd;                                              // an eventfd, written after each
};

// The context of a queue pair: where its events go.
struct AsyncTarget {
  std::shared_ptr<AsyncInbox> inbox;
  uint32_t connection = 0;
};

class VerbsDevice {
 public:
  // The device behind `context`; makes it on first use. `options` counts then only.
  static absl::StatusOr<std::shared_ptr<VerbsDevice>> Of(ibv_context* context,
                                                         const VerbsOptions& options);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  ibv_context* context() const { return context_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  const std::string& name() const { return name_; }
  bool windows() const { return windows_; }
  uint64_t max_registration() const { return max_registration_; }
  GpuDirect& gpu_direct() const { return *gpu_direct_; }

  // The domain for connections of `key`; with windows it is the same for all.
  absl::StatusOr<std::shared_ptr<VerbsDomain>> Domain(uint64_t key);

  // Reads asynchronous events and hands them to the queue pairs' inboxes (ibv_get_async_event(3)).
  // Returns what is worth logging. A port that goes down is only logged: traffic may go on, and a
  // queue pair that fails says so itself.
  std::vector<std::string> PollAsync(bool* fatal);
  int async_fd() const { return context_->async_fd; }

  // The device is being removed: the context is closed when the last endpoint has let go of this.
  void SetRemoved() { removed_.store(true, std::memory_order_relaxed); }

 private:
  VerbsDevice(ibv_context* context, const VerbsOptions& options);
  absl::Status Start();

  ibv_context* context_;
  std::string name_;
  ibv_device_attr attributes_ = {};
  bool windows_;
  bool relaxed_ordering_;
  uint64_t max_registration_;
  std::shared_ptr<GpuDirect> gpu_direct_;
  bool fatal_ = false;
  std::atomic<bool> removed_{false};
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<VerbsDomain>> domains_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_DEVICE_H_
