#include "rdma/memory/cuda/copy_queue.h"

#include "absl/strings/str_cat.h"
#include "rdma/memory/cuda/driver_api.h"

namespace verbena::rdma::cuda {

absl::StatusOr<uint64_t> CopyQueue::StartAll(absl::Span<const Device::Copy> copies) {
  const CudaContext::Scope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  // First, so that no resource is missing after the copies were started.
  absl::StatusOr<CudaContext::EventHandle> event = context_.TakeEvent();
  if (!event.ok()) return event.status();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (absl::Status status = EnqueueAll(copies); !status.ok()) return status;
  const Result code = context_.api().cuEventRecord(event->get(), context_.stream(direction_));
  // Without the event the completion of the copies cannot be determined (invariant 2).
  if (code != kSuccess) return context_.Lose(code, "cuEventRecord after a copy");
  started_ += copies.size();
  pending_.push({started_, *std::move(event)});
  return started_;
}

absl::Status CopyQueue::EnqueueAll(absl::Span<const Device::Copy> copies) {
  if (batches_ && copies.size() > 1) {
    Result code = FindAll(copies);
    if (code == kSuccess) code = EnqueueBatch(copies);
    if (code == kSuccess) return absl::OkStatus();
    if (code != kNotSupported) {
      return context_.Fail(code, absl::StrCat("cuMemcpyBatchAsync of ", copies.size(), " copies"));
    }
    batches_ = false;
  }
  for (const Device::Copy& copy : copies) {
    if (absl::Status status = Enqueue(copy); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// In a batch the driver treats an unknown address as host memory and copies it with the CPU. Freed
// memory would then crash the process, while a single copy is refused.
Result CopyQueue::FindAll(absl::Span<const Device::Copy> copies) {
  Address begin = 0;
  Address end = 0;  // of the last found allocation, which usually contains the next copies too
  for (const Device::Copy& copy : copies) {
    const bool to_host = direction_ == Device::Direction::kToHost;
    const auto first = reinterpret_cast<Address>(to_host ? copy.from : copy.to);
    // Memory of cuMemMap is found range by range.
    for (Address at = first; at < first + copy.bytes; at = end) {
      if (begin <= at && at < end) continue;
      size_t size = 0;
      const Result code = context_.api().cuMemGetAddressRange_v2(&begin, &size, at);
      if (code != kSuccess) return code;
      end = begin + size;
      if (at < begin || at >= end) return kInvalidValue;
    }
  }
  return kSuccess;
}

Result CopyQueue::EnqueueBatch(absl::Span<const Device::Copy> copies) {
  to_.clear();
  from_.clear();
  bytes_.clear();
  for (const Device::Copy& copy : copies) {
    to_.push_back(reinterpret_cast<Address>(copy.to));
    from_.push_back(reinterpret_cast<Address>(copy.from));
    bytes_.push_back(copy.bytes);
  }
  CopyAttributes attributes = {kSourceOrderStream, {0, 0}, {0, 0}, 0};
  size_t of_all_from = 0;
  return context_.api().cuMemcpyBatchAsync_v2(to_.data(), from_.data(), bytes_.data(),
                                              copies.size(), &attributes, &of_all_from, 1,
                                              context_.stream(direction_));
}

absl::Status CopyQueue::Enqueue(const Device::Copy& copy) {
  const DriverApi& api = context_.api();
  const Stream stream = context_.stream(direction_);
  const Result code = direction_ == Device::Direction::kToHost
                          ? api.cuMemcpyDtoHAsync_v2(copy.to, reinterpret_cast<Address>(copy.from),
                                                     copy.bytes, stream)
                          : api.cuMemcpyHtoDAsync_v2(reinterpret_cast<Address>(copy.to), copy.from,
                                                     copy.bytes, stream);
  return code == kSuccess ? absl::OkStatus() : CopyError(code, copy);
}

absl::Status CopyQueue::CopyError(Result code, const Device::Copy& copy) {
  const bool to_host = direction_ == Device::Direction::kToHost;
  const std::string call =
      absl::StrCat(to_host ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync", " of ", copy.bytes,
                   " bytes from 0x", absl::Hex(reinterpret_cast<uintptr_t>(copy.from)), " to 0x",
                   absl::Hex(reinterpret_cast<uintptr_t>(copy.to)));
  absl::Status status = context_.Fail(code, call);
  if (code != kInvalidValue) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(std::string(status.message()), "; is the memory at 0x",
                   absl::Hex(reinterpret_cast<uintptr_t>(to_host ? copy.from : copy.to)),
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
