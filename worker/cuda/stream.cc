#include "worker/cuda/stream.h"

#include <thread>

#include "rdma/memory/cuda/cuda_device.h"

namespace verbena::worker {

using rdma::cuda::CudaContext;

absl::StatusOr<std::unique_ptr<GpuStream>> GpuStream::Open(std::shared_ptr<rdma::Device> device) {
  CudaContext* const context = rdma::ContextOf(device.get());
  if (context == nullptr) return absl::UnimplementedError("streams are of CUDA devices only");
  std::unique_ptr<GpuStream> stream(new GpuStream(std::move(device), context));
  const CudaContext::Scope scope(context);
  if (!scope.status().ok()) return scope.status();
  const rdma::cuda::Result code =
      context->api().cuStreamCreate(&stream->stream_, rdma::cuda::kStreamNonBlocking);
  if (code == rdma::cuda::kSuccess) return stream;
  stream->stream_ = nullptr;
  return context->Fail(code, "cuStreamCreate");
}

GpuStream::~GpuStream() {
  if (stream_ == nullptr) return;
  const CudaContext::Scope scope(context_, CudaContext::Scope::When::kAlways);
  (void)context_->api().cuStreamSynchronize(stream_);
  (void)context_->api().cuStreamDestroy_v2(stream_);
}

absl::Status GpuStream::Wait(const std::function<absl::Status()>& check) {
  const auto mark = device_->MarkStream(number());
  if (!mark.ok()) return mark.status();
  for (;;) {
    const absl::StatusOr<bool> passed = (*mark)->Passed();
    if (!passed.ok()) return passed.status();
    if (*passed) return absl::OkStatus();
    if (absl::Status status = check(); !status.ok()) return status;
    std::this_thread::yield();
  }
}

absl::Status WaitForCopies(rdma::Device* device, rdma::Device::Direction direction,
                           uint64_t number) {
  for (;;) {
    const absl::StatusOr<uint64_t> done = device->CopiesDone(direction);
    if (!done.ok()) return done.status();
    if (*done >= number) return absl::OkStatus();
    std::this_thread::yield();
  }
}

absl::Status CopyNow(rdma::Device* device, rdma::Device::Direction direction, const void* from,
                     void* to, size_t bytes) {
  const absl::StatusOr<uint64_t> number = device->StartCopy(
      direction, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), bytes);
  if (!number.ok()) return number.status();
  return WaitForCopies(device, direction, *number);
}

}  // namespace verbena::worker
