// An RDMA device in this process: its limits, domains and asynchronous events.
//
// There is one VerbsDevice per open context. Endpoints on the device share it and its protection
// domains (verbs_domain.h).
//
// **Thread safety**: thread-safe (control path: a mutex).
//
// Invariants:
//  1. With memory windows there is one protection domain, and no memory is registered for remote
//     access: peers access memory only through windows. GPU dma-bufs are an exception, because they
//     cannot have windows: any peer of that domain could write there with a guessed key.
//  2. The context outlives this object: every endpoint keeps a bound rdma_cm_id while it holds the
//     device (librdmacm closes a context with its last id).
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
    uint32_t connection = 0;        // of the queue pair; 0: the event belongs to completion queue
                                    // `queue`
    const ibv_cq* queue = nullptr;  // only compared
    ibv_event_type type = IBV_EVENT_QP_FATAL;
  };
  explicit AsyncInbox(int fd) : wake_fd(fd) {}
  std::mutex mutex;
  std::vector<Event> events;
  int wake_fd;  // an eventfd, written after each event
};

// Destination of events of a queue pair (or of a completion queue: connection 0).
struct AsyncTarget {
  std::shared_ptr<AsyncInbox> inbox;
  uint32_t connection = 0;
};

class VerbsDevice {
 public:
  // The device of `context`; created on first use. Only then `options` is used.
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

  // The domain for connections of `key`; with windows all keys share one.
  absl::StatusOr<std::shared_ptr<VerbsDomain>> Domain(uint64_t key);

  // From Watch() to Unwatch(), events of the queue pair or completion queue go to the target's
  // inbox. The context may be shared with another library of the process (librdmacm has one per
  // device). So an event's object is looked up by address before it is used. Call Unwatch() before
  // destroying the object.
  void Watch(const void* object, AsyncTarget target);
  void Unwatch(const void* object);

  // Reads asynchronous events and passes them to the inboxes (ibv_get_async_event(3)). Returns log
  // lines. A port that goes down is only logged: traffic may continue, and a failing queue pair has
  // its own event. Events of objects that are not watched are dropped.
  std::vector<std::string> PollAsync(bool* fatal);
  int async_fd() const { return context_->async_fd; }

  // The device is being removed: the context is closed when the last endpoint has released this.
  void SetRemoved() { removed_.store(true, std::memory_order_relaxed); }
  // The device was removed or has failed: the kernel has destroyed its objects, or is about to.
  bool gone() const {
    // Relaxed: a thread that does not see it yet retries.
    return removed_.load(std::memory_order_relaxed) || fatal_.load(std::memory_order_relaxed);
  }

 private:
  VerbsDevice(ibv_context* context, const VerbsOptions& options);
  absl::Status Start();
  void WakeAll();  // wakes every endpoint that watches an object

  ibv_context* context_;
  std::string name_;
  ibv_device_attr attributes_ = {};
  bool windows_;
  bool relaxed_ordering_;
  uint64_t max_registration_;
  uint64_t max_window_;
  PieceSizes piece_sizes_;  // pieces of registered memory
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
