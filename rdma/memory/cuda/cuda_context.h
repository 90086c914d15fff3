// A GPU's primary context, the one that the CUDA runtime and PyTorch use too, held for as long as
// somebody copies in it; our two streams in it; and whether it is lost.
//
// **Thread safety**: thread-safe, but for a Scope, which belongs to its thread.
//
// Invariants:
//  1. The context is current on a thread only inside a Scope, which restores what was before.
//  2. The first error that no later call recovers from is remembered; from then on no Scope is
//     entered but to give things back.
//  3. Nothing of ours is left in a stream when the context is given back.
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
  // Makes the context current on this thread, and calls allowed while another thread captures a
  // stream into a CUDA graph: in the mode that PyTorch captures in, a query of an event that has
  // nothing to do with it would end the capture (CUDA Driver API,
  // cuThreadExchangeStreamCaptureMode).
  class Scope {
   public:
    enum class When : uint8_t { kUnlessLost, kAlways };
    explicit Scope(CudaContext* context, When when = When::kUnlessLost);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // UNAVAILABLE: it was not entered, the device is lost.
    const absl::Status& status() const { return status_; }

   private:
    CudaContext* const context_;
    absl::Status status_;
    bool entered_ = false;
    int mode_ = kCaptureModeRelaxed;
  };

  // Gives an event back for others to use. It may still be in a stream: to be recorded anew moves
  // it.
  struct ReturnEvent {
    CudaContext* context = nullptr;
    void operator()(EventObject* event) const { context->KeepEvent(event); }
  };
  // Must not outlive the context.
  using EventHandle = std::unique_ptr<EventObject, ReturnEvent>;

  // INVALID_ARGUMENT: there is no such device.
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

  // The error that the device was lost with.
  absl::Status LostStatus() const;
  // What to say about a call that failed; remembered when the device is lost by it.
  absl::Status Fail(Result code, std::string_view call);
  // The same of a call that has no reason to fail while the device works: it is lost. Waits for
  // our copies if any can still be under way.
  absl::Status Lose(Result code, std::string_view call);

  // Inside a Scope.
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
  // Null until made. Of Device::Direction.
  std::array<Stream, 2> streams_ = {};

  std::atomic<bool> lost_{false};  // released after lost_status_ was written
  std::mutex mutex_;
  absl::Status lost_status_;   // written once, under mutex_
  std::vector<Event> events_;  // unused ones; under mutex_
};

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_CUDA_CONTEXT_H_
