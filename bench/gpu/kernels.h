// A worker's GPU kernels, and the copy in device memory that they are held against.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_GPU_KERNELS_H_
#define VERBENA_BENCH_GPU_KERNELS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"
#include "worker/cuda/device_kernels.h"

namespace verbena::bench {

class KernelWorld {
 public:
  static absl::StatusOr<std::unique_ptr<KernelWorld>> Make(std::shared_ptr<rdma::Device> device,
                                                           uint64_t elements);
  static std::vector<std::string> Names();

  // Bytes read and written per second, launched back to back for about so long.
  absl::StatusOr<double> Run(const std::string& name, int milliseconds);
  absl::StatusOr<double> Copy(int milliseconds);  // cuMemcpyDtoDAsync

 private:
  struct Work {
    uint64_t bytes;
    std::function<absl::Status()> launch;
  };
  KernelWorld() = default;
  absl::StatusOr<Work> Find(const std::string& name);
  absl::StatusOr<double> Time(const Work& work, int milliseconds);
  absl::Status Wait();

  std::shared_ptr<rdma::Device> device_;
  uint64_t elements_ = 0;
  std::unique_ptr<worker::DeviceKernels> kernels_;
  std::vector<std::shared_ptr<rdma::MemoryBlock>> blocks_;  // of `elements_` f32 each
  worker::DeviceKernels::Table table_;                      // of the first block
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_GPU_KERNELS_H_
