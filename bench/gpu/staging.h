// Bytes between a GPU and page-locked host memory: in chunks through the client's staging, and in
// one copy.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_GPU_STAGING_H_
#define VERBENA_BENCH_GPU_STAGING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/staging/device_staging.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"

namespace verbena::bench {

class StagingWorld {
 public:
  using Direction = rdma::Device::Direction;
  static constexpr uint32_t kChunk = 256 << 10;  // of a table, by default
  static constexpr uint64_t kBuffers = uint64_t{64} << 20;

  static absl::StatusOr<std::unique_ptr<StagingWorld>> Make(std::shared_ptr<rdma::Device> device,
                                                            uint64_t bytes);

  // Bytes per second, of transfers one after the other for about so long. A buffer is given back as
  // soon as its copy is done, as by a server that answers at once.
  absl::StatusOr<double> Chunked(Direction direction, int milliseconds);
  absl::StatusOr<double> Whole(Direction direction, int milliseconds);

 private:
  StagingWorld(std::shared_ptr<rdma::Device> device, uint64_t bytes)
      : device_(device), bytes_(bytes), staging_(device, kBuffers) {}
  absl::Status OneChunked(Direction direction);
  absl::Status Reap(Direction direction, uint64_t until);

  const std::shared_ptr<rdma::Device> device_;
  const uint64_t bytes_;
  client::DeviceStaging staging_;
  std::shared_ptr<rdma::MemoryBlock> on_device_;
  std::shared_ptr<rdma::MemoryBlock> pinned_;
  std::vector<std::byte*> taken_;  // by cookie
  uint64_t done_ = 0;              // chunks of the current transfer
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_GPU_STAGING_H_
