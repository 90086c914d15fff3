// Holds a GPU's primary context, which the CUDA runtime and PyTorch also use, while copies use it;
// also holds this library's two streams and the lost state.
//
// **Thread safety**: thread-safe, except for a Scope, which belongs to its thread.
//
// Invariants:
//  1. The context is current on a thread only inside a Scope, which restores the previous one.
//  2. The first error that no later call recovers from is stored. From then on a Scope is entered
//     only to release resources.
//  3. When the context is released, no work of this library is left in a stream.
#ifndef VERBENA_RDMA_MEMORY_CUDA_CUDA_CONTEXT_H_
#define VERBENA_RDMA_MEMORY_CUDA_CUDA_CONTEXT_H_

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/cuda/driver_api.h"
#include "rdma/memory/device.h"

namespace verbena::rdma::cuda {

class CudaContext {
 public:
  // Makes the context current on this thread. Also allows calls while another thread captures a
  // stream into a CUDA graph: in PyTorch's capture mode, even the query of an unrelated event would
  // end the capture (CUDA Driver API, cuThreadExchangeStreamCaptureMode).
  class Scope {
   public:
    enum class When : uint8_t { kUnlessLost, kAlways };
    explicit Scope(CudaContext* context, When when = When::kUnlessLost);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // UNAVAILABLE: the device is lost, and the scope was not entered.
    const absl::Status& status() const { return status_; }

   private:
    CudaContext* const context_;
    absl::Status status_;
    bool entered_ = false;
    int mode_ = kCaptureModeRelaxed;
  };

  // Returns an event for reuse. It may still be in a stream: recording it again moves it.
  struct ReturnEvent {
    CudaContext* context = nullptr;
    void operator()(EventObject* event) const { context->KeepEvent(event); }
  };
  // Must not outlive the context.
  using EventHandle = std::unique_ptr<EventObject, ReturnEvent>;

  // INVALID_ARGUMENT: the device does not exist.
  static absl::StatusOr<std::unique_ptr<CudaContext>> Retain(const DriverApi* api, int ordinal);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const DriverApi& api() const { return *api_; }
  int ordinal() const { return ordinal_; }
  DeviceNumber device() const { return device_; }
  const std::string& name() const { return name_; }
  Stream stream(Device::Direction direction) const {
    return streams_[static_cast<size_t>(direction)];
  }

  // The error with which the device was lost.
  absl::Status LostStatus() const;
  // The status for a failed call; also marks the device as lost if the error means that.
  absl::Status Fail(Result code, std::string_view call);
  // Fails a call that cannot fail while the device works, so the device is lost. Waits for this
  // library's copies if any may still be in flight.
  absl::Status Lose(Result code, std::string_view call);

  // Requires a Scope.
  absl::StatusOr<EventHandle> TakeEvent();

 private:
  CudaContext(const DriverApi* api, int ordinal, DeviceNumber device, std::string name);
  absl::Status MakeStreams();
  void KeepEvent(Event event);

  const DriverApi* const api_;
  const int ordinal_;
  const DeviceNumber device_;
  const std::string name_;
  Context context_ = nullptr;
  // Indexed by Device::Direction; null until made.
  std::array<Stream, 2> streams_ = {};

  std::atomic<bool> lost_{false};  // stored with release after lost_status_ was written
  std::mutex mutex_;
  absl::Status lost_status_;   // written once, under mutex_
  std::vector<Event> events_;  // unused events; under mutex_
};

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_CUDA_CONTEXT_H_
