#include "worker/cuda/gpu_group.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/cuda/library.h"

namespace verbena::worker {

// NCCL makes one device after the other current by the runtime, on this thread's stack of contexts:
// inside a scope that is taken off again.
using Scope = rdma::cuda::CudaContext::Scope;

absl::StatusOr<NcclApi> LoadNccl() {
  const absl::StatusOr<void*> library = OpenCudaLibrary("NCCL", "VERBENA_NCCL", {"libnccl.so.2"});
  if (!library.ok()) return library.status();
  NcclApi api;
  const char* missing = nullptr;
#define VERBENA_NCCL_RESOLVE(name, result, parameters) \
  FindFunction(*library, #name, &api.name, &missing);
  VERBENA_NCCL_FUNCTIONS(VERBENA_NCCL_RESOLVE)
#undef VERBENA_NCCL_RESOLVE
  if (missing == nullptr) return api;
  return absl::UnavailableError(
      absl::StrCat("NCCL lacks ", missing, ": it is too old, or none; 2.13 or newer is needed"));
}

std::vector<GpuGroup::Slice> GpuGroup::Cut(uint64_t first, uint64_t elements, uint64_t chunk,
                                           size_t gpus) {
  const uint64_t chunks = (elements + chunk - 1) / chunk;
  std::vector<Slice> slices;
  for (size_t g = 0; g < gpus; ++g) {
    const uint64_t begin = std::min(chunks * g / gpus * chunk, elements);
    const uint64_t end = std::min(chunks * (g + 1) / gpus * chunk, elements);
    if (begin < end) slices.push_back({first + begin, end - begin, g});
  }
  return slices;
}

absl::StatusOr<std::unique_ptr<GpuGroup>> GpuGroup::Open(
    const std::vector<std::shared_ptr<rdma::Device>>& devices) {
  const absl::StatusOr<NcclApi> api = LoadNccl();
  if (!api.ok()) return api.status();
  std::unique_ptr<GpuGroup> group(new GpuGroup(*api));
  std::vector<int> ordinals;
  for (const auto& device : devices) {
    absl::StatusOr<std::unique_ptr<GpuStream>> stream = GpuStream::Open(device);
    if (!stream.ok()) return stream.status();
    group->streams_.push_back(*std::move(stream));
    ordinals.push_back(device->ordinal());
  }
  std::vector<NcclComm*> comms(devices.size());
  const Scope scope(group->streams_[0]->context());
  if (!scope.status().ok()) return scope.status();
  const int error =
      api->ncclCommInitAll(comms.data(), static_cast<int>(devices.size()), ordinals.data());
  if (error != kNcclSuccess) return group->Error(error, "ncclCommInitAll", nullptr);
  group->comms_ = std::move(comms);
  return group;
}

GpuGroup::~GpuGroup() {
  if (comms_.empty()) return;
  const Scope scope(streams_[0]->context(), Scope::When::kAlways);
  for (NcclComm* comm : comms_) (void)api_.ncclCommDestroy(comm);
}

absl::Status GpuGroup::Error(int error, const char* call, NcclComm* comm) const {
  const char* text = api_.ncclGetErrorString(error);
  const char* last = api_.ncclGetLastError(comm);
  const std::string more = last == nullptr ? "" : last;
  return absl::UnavailableError(absl::StrCat(
      call, " over ", streams_.size(), " GPUs: ", text == nullptr ? "an unknown error" : text, " (",
      error, ")", more.empty() ? "" : ": ", more, "; NCCL_DEBUG=INFO logs more"));
}

absl::Status GpuGroup::Fail(absl::Status status) {
  // Not ncclCommDestroy(): it would wait for operations that never end after a failure on one GPU.
  // Abort also ends the enqueued operations, so the streams can be destroyed.
  for (NcclComm* comm : comms_) (void)api_.ncclCommAbort(comm);
  comms_.clear();
  failed_ = status;
  return status;
}

absl::Status GpuGroup::AsyncError(const char* call) const {
  for (NcclComm* comm : comms_) {
    int late = kNcclSuccess;
    int error = api_.ncclCommGetAsyncError(comm, &late);
    if (error == kNcclSuccess) error = late;
    if (error != kNcclSuccess && error != kNcclInProgress) return Error(error, call, comm);
  }
  return absl::OkStatus();
}

template <typename F>
absl::Status GpuGroup::Run(const char* call, absl::Span<float* const> arenas,
                           absl::Span<const Slice> slices, F enqueue) {
  if (!failed_.ok()) return failed_;
  if (slices.empty()) return absl::OkStatus();
  const Scope scope(streams_[0]->context());
  if (!scope.status().ok()) return scope.status();
  int error = api_.ncclGroupStart();
  for (const Slice& slice : slices) {
    for (size_t g = 0; g < size() && error == kNcclSuccess; ++g) {
      error = enqueue(slice, g, arenas[g] + slice.first);
    }
  }
  const int ended = api_.ncclGroupEnd();
  if (error == kNcclSuccess) error = ended;
  if (error != kNcclSuccess) return Fail(Error(error, call, comms_[0]));
  for (size_t g = 0; g < size(); ++g) {
    // An operation that has failed on one GPU may never end on another.
    const absl::Status status = streams_[g]->Wait([&] { return AsyncError(call); });
    if (!status.ok()) return Fail(status);
  }
  const absl::Status late = AsyncError(call);
  return late.ok() ? late : Fail(late);
}

absl::Status GpuGroup::Reduce(absl::Span<float* const> arenas, absl::Span<const Slice> slices) {
  return Run("ncclReduce", arenas, slices, [this](const Slice& slice, size_t g, float* at) {
    return api_.ncclReduce(at, at, slice.count, kNcclFloat, kNcclSum, static_cast<int>(slice.gpu),
                           comms_[g], streams_[g]->handle());
  });
}

absl::Status GpuGroup::Broadcast(absl::Span<float* const> arenas, absl::Span<const Slice> slices) {
  return Run("ncclBroadcast", arenas, slices, [this](const Slice& slice, size_t g, float* at) {
    return api_.ncclBroadcast(at, at, slice.count, kNcclFloat, static_cast<int>(slice.gpu),
                              comms_[g], streams_[g]->handle());
  });
}

}  // namespace verbena::worker
