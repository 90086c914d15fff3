#include "rdma/memory/cuda/cuda_context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/memory/cuda/cuda_errors.h"

namespace verbena::rdma::cuda {

// ---- scopes -------------------------------------------------------------------------------------

CudaContext::Scope::Scope(CudaContext* context, When when) : context_(context) {
  if (when == When::kUnlessLost) {
    status_ = context->LostStatus();
    if (!status_.ok()) return;
  }
  const DriverApi& api = context->api();
  const Result code = api.cuCtxPushCurrent_v2(context->context_);
  if (code != kSuccess) {
    status_ = context->Lose(code, "cuCtxPushCurrent");
    return;
  }
  entered_ = true;
  // Returns the previous mode. A failure only has the effect described at Scope in the header.
  if (api.cuThreadExchangeStreamCaptureMode(&mode_) != kSuccess) mode_ = kCaptureModeRelaxed;
}

CudaContext::Scope::~Scope() {
  if (!entered_) return;
  const DriverApi& api = context_->api();
  (void)api.cuThreadExchangeStreamCaptureMode(&mode_);
  Context popped = nullptr;
  (void)api.cuCtxPopCurrent_v2(&popped);
}

// ---- retaining and releasing --------------------------------------------------------------------

CudaContext::CudaContext(const DriverApi* api, int ordinal, DeviceNumber device, std::string name)
    : api_(api), ordinal_(ordinal), device_(device), name_(std::move(name)) {}

absl::StatusOr<std::unique_ptr<CudaContext>> CudaContext::Retain(const DriverApi* api,
                                                                 int ordinal) {
  const std::string short_name = absl::StrCat("cuda:", ordinal);
  int count = 0;
  if (const Result code = api->cuDeviceGetCount(&count); code != kSuccess) {
    return DriverError(*api, code, short_name, "cuDeviceGetCount");
  }
  if (ordinal < 0 || ordinal >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no ", short_name, ": this process sees ", count,
                     " GPUs, numbered from 0 (CUDA_VISIBLE_DEVICES chooses them)"));
  }
  DeviceNumber device = 0;
  char model[256] = "";
  Result code = api->cuDeviceGet(&device, ordinal);
  if (code == kSuccess) code = api->cuDeviceGetName(model, sizeof(model), device);
  if (code != kSuccess) return DriverError(*api, code, short_name, "cuDeviceGet");
  model[sizeof(model) - 1] = '\0';
  std::unique_ptr<CudaContext> context(
      new CudaContext(api, ordinal, device, absl::StrCat(short_name, " (", model, ")")));
  code = api->cuDevicePrimaryCtxRetain(&context->context_, device);
  if (code != kSuccess) {
    context->context_ = nullptr;
    return DriverError(*api, code, context->name_, "cuDevicePrimaryCtxRetain");
  }
  if (absl::Status status = context->MakeStreams(); !status.ok()) return status;
  return context;
}

absl::Status CudaContext::MakeStreams() {
  const Scope scope(this);
  if (!scope.status().ok()) return scope.status();
  for (Stream& stream : streams_) {
    // Nonblocking: a stream that waits for the default stream would make copies wait for kernels.
    const Result code = api_->cuStreamCreate(&stream, kStreamNonBlocking);
    if (code == kSuccess) continue;
    stream = nullptr;
    return Fail(code, "cuStreamCreate");
  }
  return absl::OkStatus();
}

CudaContext::~CudaContext() {
  if (context_ == nullptr) return;
  {
    // Also on a lost device: the driver may still free host resources. Errors have no consequence,
    // and are expected at the end of the process (CUDA_ERROR_DEINITIALIZED).
    const Scope scope(this, Scope::When::kAlways);
    for (const Stream stream : streams_) {
      if (stream == nullptr) continue;
      (void)api_->cuStreamSynchronize(stream);
      (void)api_->cuStreamDestroy_v2(stream);
    }
    for (const Event event : events_) (void)api_->cuEventDestroy_v2(event);
  }
  (void)api_->cuDevicePrimaryCtxRelease_v2(device_);
}

// ---- errors -------------------------------------------------------------------------------------

absl::Status CudaContext::LostStatus() const {
  if (!lost_.load(std::memory_order_acquire)) return absl::OkStatus();
  return lost_status_;
}

absl::Status CudaContext::Fail(Result code, std::string_view call) {
  if (IsSticky(code)) return Lose(code, call);
  return DriverError(*api_, code, name_, call);
}

absl::Status CudaContext::Lose(Result code, std::string_view call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (lost_.load(std::memory_order_relaxed)) return lost_status_;
  if (!IsSticky(code)) {
    // After the error is returned, the memory of the copies is released, so none may still run.
    for (const Stream stream : streams_) {
      if (stream != nullptr) (void)api_->cuStreamSynchronize(stream);
    }
  }
  lost_status_ = LostError(*api_, code, name_, call);
  lost_.store(true, std::memory_order_release);
  return lost_status_;
}

// ---- events -------------------------------------------------------------------------------------

absl::StatusOr<CudaContext::EventHandle> CudaContext::TakeEvent() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!events_.empty()) {
      EventHandle event(events_.back(), ReturnEvent{this});
      events_.pop_back();
      return event;
    }
  }
  Event event = nullptr;
  // Without a time: such events are the cheapest to record and query.
  const Result code = api_->cuEventCreate(&event, kEventDisableTiming);
  if (code != kSuccess) return Fail(code, "cuEventCreate");
  return EventHandle(event, ReturnEvent{this});
}

void CudaContext::KeepEvent(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back(event);
}

}  // namespace verbena::rdma::cuda
