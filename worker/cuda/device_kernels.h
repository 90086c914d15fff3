// The kernels of a worker (kernel_types.h) on one GPU: loaded into its primary context, launched in
// a stream of the caller.
//
// **Thread safety**: thread-safe. A launch only enqueues; Load() and MakeTable() are for set-up and
// wait for the GPU.
//
// Invariants:
//  1. No launch waits for the device or allocates on it.
//  2. No call leaves a CUDA context current on the caller's thread that was not before.
#ifndef VERBENA_WORKER_CUDA_DEVICE_KERNELS_H_
#define VERBENA_WORKER_CUDA_DEVICE_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"
#include "worker/cuda/kernel_types.h"

namespace verbena::worker {

class KernelModule;

// Conversion of an element during a move. Copies keep every bit.
enum class Conversion : uint8_t {
  kCopy32,
  kCopy16,
  kFloatToBFloat16,
  kBFloat16ToFloat,
  kFloatToFloat16,
  kFloat16ToFloat,
};

class DeviceKernels {
 public:
  // Segments in memory of the device, for Gather() and Scatter(), as often as wanted. Must outlive
  // the launches that use it.
  class Table {
   public:
    uint64_t elements() const { return elements_; }

   private:
    friend class DeviceKernels;
    std::shared_ptr<rdma::MemoryBlock> memory_;  // segments, then tiles; null: nothing to move
    uint64_t tiles_ = 0;                         // where they begin, in bytes
    uint64_t elements_ = 0;
    uint32_t tile_count_ = 0;
    uint32_t blocks_ = 0;
    uint32_t element_size_ = 0;
  };

  // Errors of KernelModule::Load().
  static absl::StatusOr<std::unique_ptr<DeviceKernels>> Load(std::shared_ptr<rdma::Device> device);
  ~DeviceKernels();
  DeviceKernels(const DeviceKernels&) = delete;
  DeviceKernels& operator=(const DeviceKernels&) = delete;

  // `tensors` are pieces of tensors, with elements of `element_size` bytes (2 or 4), and their
  // places in a bucket. INVALID_ARGUMENT: as PlanMove(). RESOURCE_EXHAUSTED: no memory for it.
  absl::StatusOr<Table> MakeTable(absl::Span<const Segment> tensors, uint32_t element_size) const;

  // ---- launches ---------------------------------------------------------------------------------
  // `stream` as the driver's handle (CUstream, cudaStream_t); 0: the default stream. All other
  // addresses are of memory that this GPU may access. INVALID_ARGUMENT: an address that is no
  // multiple of its element's size, or a stream that is gone. UNAVAILABLE: the device is lost.

  // out[i] = in[i] for i < n, converted.
  absl::Status Convert(Conversion conversion, const void* in, void* out, uint64_t n,
                       uintptr_t stream) const;
  // out[i] = ((in0[i] + in1[i]) + in2[i]) + ...; 1 to kMostInputs inputs, `out` may be one of them.
  absl::Status Sum(absl::Span<const float* const> inputs, float* out, uint64_t n,
                   uintptr_t stream) const;
  // From the table's tensors to the bucket, or back. The tensors' elements have the size of the
  // table; f16 is not converted on the way (UNIMPLEMENTED).
  absl::Status Gather(Conversion conversion, const Table& table, void* bucket,
                      uintptr_t stream) const;
  absl::Status Scatter(Conversion conversion, const Table& table, const void* bucket,
                       uintptr_t stream) const;

 private:
  explicit DeviceKernels(std::unique_ptr<KernelModule> module);
  absl::Status Move(const char* kernel, std::string_view what, uint32_t table_size,
                    uint32_t bucket_size, const Table& table, uint64_t bucket,
                    uintptr_t stream) const;

  const std::unique_ptr<KernelModule> module_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_DEVICE_KERNELS_H_
