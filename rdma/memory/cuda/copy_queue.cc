#include "rdma/memory/cuda/copy_queue.h"

#include "absl/strings/str_cat.h"
#include "rdma/memory/cuda/driver_api.h"

namespace verbena::rdma::cuda {

absl::StatusOr<uint64_t> CopyQueue::Start(const std::byte* from, std::byte* to, size_t bytes) {
  const CudaContext::Scope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  // First, so that nothing is wanting once the copy is on its way.
  absl::StatusOr<CudaContext::EventHandle> event = context_.TakeEvent();
  if (!event.ok()) return event.status();
  const std::lock_guard<std::mutex> lock(mutex_);
  Result code = Enqueue(from, to, bytes);
  if (code != kSuccess) return CopyError(code, from, to, bytes);
  code = context_.api().cuEventRecord(event->get(), context_.stream(direction_));
  // Without the event nobody could tell when the copy is done (invariant 2).
  if (code != kSuccess) return context_.Lose(code, "cuEventRecord after a copy");
  pending_.push({++started_, *std::move(event)});
  return started_;
}

Result CopyQueue::Enqueue(const std::byte* from, std::byte* to, size_t bytes) {
  const DriverApi& api = context_.api();
  const Stream stream = context_.stream(direction_);
  if (direction_ == Device::Direction::kToHost) {
    return api.cuMemcpyDtoHAsync_v2(to, reinterpret_cast<Address>(from), bytes, stream);
  }
  return api.cuMemcpyHtoDAsync_v2(reinterpret_cast<Address>(to), from, bytes, stream);
}

absl::Status CopyQueue::CopyError(Result code, const std::byte* from, const std::byte* to,
                                  size_t bytes) {
  const bool to_host = direction_ == Device::Direction::kToHost;
  const std::string call =
      absl::StrCat(to_host ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync", " of ", bytes,
                   " bytes from 0x", absl::Hex(reinterpret_cast<uintptr_t>(from)), " to 0x",
                   absl::Hex(reinterpret_cast<uintptr_t>(to)));
  absl::Status status = context_.Fail(code, call);
  if (code != kInvalidValue) return status;
  return absl::Status(status.code(),
                      absl::StrCat(std::string(status.message()), "; is the memory at 0x",
                                   absl::Hex(reinterpret_cast<uintptr_t>(to_host ? from : to)),
                                   " still allocated on ", context_.name(), "?"));
}

absl::StatusOr<uint64_t> CopyQueue::Done() {
  if (absl::Status lost = context_.LostStatus(); !lost.ok()) return lost;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pending_.empty()) return done_;
  const CudaContext::Scope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  while (!pending_.empty()) {
    const Result code = context_.api().cuEventQuery(pending_.front().second.get());
    if (code == kNotReady) break;
    if (code != kSuccess) return context_.Lose(code, "cuEventQuery of a copy");
    done_ = pending_.pop().first;
  }
  return done_;
}

}  // namespace verbena::rdma::cuda
