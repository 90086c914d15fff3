// An RDMA device as this process uses it: its limits, domains and asynchronous events.
//
// There is one VerbsDevice for each open context; the endpoints on it share it, and its protection
// domains (verbs_domain.h).
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
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/memory.h"
#include "rdma/verbs/gpu_direct.h"
#include "rdma/verbs/verbs_domain.h"
#include "rdma/verbs/verbs_endpoint.h"
#include "rdma/verbs/verbs_handles.h"

namespace verbena::rdma {

// Asynchronous events of one endpoint's queue pairs and completion queues.
struct AsyncInbox {
  struct Event {
    uint32_t connection = 0;        // of the queue pair; 0: `queue` says which completion queue
    const ibv_cq* queue = nullptr;  // compared only
    ibv_event_type type = IBV_EVENT_QP_FATAL;
  };
  explicit AsyncInbox(int fd) : wake_fd(fd) {}
  std::mutex mutex;
  std::vector<Event> events;
  int wake_fd;  // an eventfd, written after each
};

// Where the events of a queue pair (or of a completion queue: connection 0) go.
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
  PieceSizes piece_sizes() const { return piece_sizes_; }
  GpuDirect& gpu_direct() const { return *gpu_direct_; }

  // The domain for connections of `key`; with windows it is the same for all.
  absl::StatusOr<std::shared_ptr<VerbsDomain>> Domain(uint64_t key);

  // From Watch() to Unwatch() events of the queue pair or completion queue go to the target's
  // inbox. The context may be shared with another library of the process (librdmacm has one for a
  // device), so an event's object is looked up here, by its address alone, before anything of it is
  // used. Unwatch() comes before the object is destroyed.
  void Watch(const void* object, AsyncTarget target);
  void Unwatch(const void* object);

  // Reads asynchronous events and hands them to the inboxes (ibv_get_async_event(3)).
  // Returns what is worth logging. A port that goes down is only logged: traffic may go on, and a
  // queue pair that fails says so itself. Events of objects that nobody watches are dropped.
  std::vector<std::string> PollAsync(bool* fatal);
  int async_fd() const { return context_->async_fd; }

  // The device is being removed: the context is closed when the last endpoint has let go of this.
  void SetRemoved() { removed_.store(true, std::memory_order_relaxed); }
  // It was removed or has failed: the kernel has taken its objects down, or does.
  bool gone() const {
    // Relaxed: a thread that does not see it yet tries again.
    return removed_.load(std::memory_order_relaxed) || fatal_.load(std::memory_order_relaxed);
  }

 private:
  VerbsDevice(ibv_context* context, const VerbsOptions& options);
  absl::Status Start();
  void WakeAll();  // every endpoint that watches something

  ibv_context* context_;
  std::string name_;
  ibv_device_attr attributes_ = {};
  bool windows_;
  bool relaxed_ordering_;
  uint64_t max_registration_;
  uint64_t max_window_;
  PieceSizes piece_sizes_;  // in which memory is registered
  std::shared_ptr<GpuDirect> gpu_direct_;
  std::atomic<bool> fatal_{false};
  std::atomic<bool> removed_{false};
  std::mutex targets_mutex_;  // taken after mutex_
  std::unordered_map<const void*, AsyncTarget> targets_;
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<VerbsDomain>> domains_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_DEVICE_H_
