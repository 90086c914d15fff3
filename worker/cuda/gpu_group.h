// The GPUs of one worker, which hold the same arenas of floats: gradients are summed across them
// before a push and parameters spread after a pull, by NCCL over NVLink or PCIe, so that each GPU
// pushes and pulls a slice and not the whole (Y. Jiang et al.: A Unified Architecture for
// Accelerating Distributed DNN Training in Heterogeneous GPU/CPU Clusters, OSDI 2020: BytePS).
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_CUDA_GPU_GROUP_H_
#define VERBENA_WORKER_CUDA_GPU_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rdma/memory/device.h"
#include "worker/cuda/nccl.h"
#include "worker/cuda/stream.h"

namespace verbena::worker {

class GpuGroup {
 public:
  // Elements [first, first + count) of every arena, which this GPU of the group handles.
  struct Slice {
    uint64_t first;
    uint64_t count;
    size_t gpu;
  };
  // Cuts `elements` from `first` on into a slice for each GPU that has some: whole chunks, as equal
  // as can be, in order.
  static std::vector<Slice> Cut(uint64_t first, uint64_t elements, uint64_t chunk, size_t gpus);

  // Two or more CUDA devices, none twice. UNAVAILABLE: no NCCL, or it does not start (with the
  // reason).
  static absl::StatusOr<std::unique_ptr<GpuGroup>> Open(
      const std::vector<std::shared_ptr<rdma::Device>>& devices);
  ~GpuGroup();
  GpuGroup(const GpuGroup&) = delete;
  GpuGroup& operator=(const GpuGroup&) = delete;

  size_t size() const { return streams_.size(); }
  // An error of either is permanent: the communicators are aborted, because those of an operation
  // that does not end could not be destroyed. Every later call returns that error. arenas[g] is in
  // memory of GPU g. Each slice becomes the sum of all arenas there, in the arena of its GPU; the
  // other arenas are undefined there afterwards. Waits until it is done.
  absl::Status Reduce(absl::Span<float* const> arenas, absl::Span<const Slice> slices);
  // Each slice of all arenas becomes that of its GPU. Waits until it is done.
  absl::Status Broadcast(absl::Span<float* const> arenas, absl::Span<const Slice> slices);

 private:
  explicit GpuGroup(const NcclApi& api) : api_(api) {}
  absl::Status Error(int error, const char* call, NcclComm* comm) const;
  // Aborts, with the context current. Returns `status`.
  absl::Status Fail(absl::Status status);
  // The first error that a communicator has had since it was made.
  absl::Status AsyncError(const char* call) const;
  // Calls enqueue(slice, gpu, at) for each, as one group of NCCL's; then waits for all streams.
  template <typename F>
  absl::Status Run(const char* call, absl::Span<float* const> arenas,
                   absl::Span<const Slice> slices, F enqueue);

  const NcclApi api_;
  std::vector<std::unique_ptr<GpuStream>> streams_;
  std::vector<NcclComm*> comms_;
  absl::Status failed_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_GPU_GROUP_H_
