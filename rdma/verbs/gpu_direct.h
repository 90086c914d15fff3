// GPUDirect RDMA: whether and how a NIC directly accesses a GPU's memory, and the registration of
// such memory.
//
// There are two ways. The GPU's driver exports the memory as a dma-buf, to which the NIC's driver
// attaches (ibv_reg_dmabuf_mr(3), Linux 5.12). Or NVIDIA's kernel module nvidia_peermem gives the
// NIC's driver the addresses for a registration with ibv_reg_mr(3).
//
// **Thread safety**: GpuDirect is thread-safe; a MemorySource belongs to one thread.
#ifndef VERBENA_RDMA_VERBS_GPU_DIRECT_H_
#define VERBENA_RDMA_VERBS_GPU_DIRECT_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"
#include "rdma/verbs/verbs_endpoint.h"

namespace verbena::rdma {

// GPUDirect support of one NIC.
class GpuDirect {
 public:
  GpuDirect(ibv_context* context, const VerbsOptions& options);

  // Returns the same result for a device each time.
  DevicePath PathTo(const Device& device);
  const std::string& nic() const { return nic_; }

 private:
  DevicePath Choose(const Device& device);
  bool TakesDmaBufs();
  bool PeerModule() const;

  ibv_context* const context_;
  const std::string nic_;
  const GpuDirectUse use_;
  const std::string sysfs_;
  const int node_;
  std::mutex mutex_;
  std::optional<bool> takes_dma_bufs_;       // under mutex_
  std::map<std::string, DevicePath> paths_;  // by the device's name; under mutex_
};

// Registers a block's memory by its kind.
class MemorySource {
 public:
  // UNIMPLEMENTED: memory of a device that the NIC cannot access. Other errors: those of
  // Device::ExportDmaBuf().
  static absl::StatusOr<MemorySource> Of(const MemoryBlock& block, GpuDirect* gpu_direct);

  // Registers [data, data + bytes) of the block. RESOURCE_EXHAUSTED has the system's error.
  absl::StatusOr<ibv_mr*> Register(ibv_pd* pd, std::byte* data, size_t bytes, int access) const;
  // Memory windows cannot be bound to a region of a dma-buf (ibv_reg_mr(3): its allowed flags).
  bool windows() const { return path_.route != DeviceRoute::kDmaBuf; }

 private:
  MemorySource(const MemoryBlock& block, std::string nic) : block_(&block), nic_(std::move(nic)) {}

  const MemoryBlock* block_;
  std::string nic_;
  DevicePath path_;
  Device::DmaBuf exported_;  // kDmaBuf; closed after registration: regions keep the memory
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_GPU_DIRECT_H_
