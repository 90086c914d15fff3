#include "rdma/verbs/gpu_direct.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "rdma/memory/topology.h"
#include "rdma/verbs/verbs_errors.h"
#include "rdma/verbs/verbs_handles.h"

namespace verbena::rdma {

GpuDirect::GpuDirect(ibv_context* context, const VerbsOptions& options)
    : context_(context),
      nic_(ibv_get_device_name(context->device)),
      use_(options.gpu_direct),
      sysfs_(options.sysfs),
      node_(NodeOfPciDevice(absl::StrCat(sysfs_, "/class/infiniband/", nic_, "/device"))) {}

DevicePath GpuDirect::PathTo(const Device& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = paths_.find(device.name());
  if (known != paths_.end()) return known->second;
  return paths_[device.name()] = Choose(device);
}

DevicePath GpuDirect::Choose(const Device& device) {
  if (use_ == GpuDirectUse::kOff) return {DeviceRoute::kStaging, "GPUDirect is turned off"};
  const Device::PeerAccess access = device.Access();
  const bool far = access.numa_node >= 0 && node_ >= 0 && access.numa_node != node_;
  if (far && use_ == GpuDirectUse::kAuto) {
    // This path between sockets is slower than through host memory.
    return {DeviceRoute::kStaging,
            absl::StrCat(device.name(), " is near NUMA node ", access.numa_node, " and ", nic_,
                         " near ", node_, ": they are far from each other")};
  }
  std::string why = access.missing;
  const auto add = [&](const std::string& text) {
    absl::StrAppend(&why, why.empty() ? "" : "; ", text);
  };
  if (access.dma_buf) {
    if (TakesDmaBufs()) return {DeviceRoute::kDmaBuf, ""};
    add(absl::StrCat("the kernel's driver of ", nic_, " takes no dma-buf"));
  }
  if (access.peer_memory) {
    if (PeerModule()) return {DeviceRoute::kPeerMemory, why};
    add("the kernel module nvidia_peermem is not loaded (modprobe nvidia_peermem)");
  }
  return {DeviceRoute::kStaging, why};
}

// There is no query. Like NCCL, this registers an invalid descriptor: the errno differs (EBADF if
// dma-bufs are supported).
bool GpuDirect::TakesDmaBufs() {
  if (takes_dma_bufs_.has_value()) return *takes_dma_bufs_;
  const PdHandle pd(ibv_alloc_pd(context_));
  if (pd == nullptr) return false;
  errno = 0;
  const MrHandle none(ibv_reg_dmabuf_mr(pd.get(), 0, 0, 0, -1, 0));
  takes_dma_bufs_ = errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOSYS;
  return *takes_dma_bufs_;
}

// The module of MLNX_OFED's drivers, under its two names, and the kernel's own.
bool GpuDirect::PeerModule() const {
  for (const char* path : {"/kernel/mm/memory_peers/nvidia-peermem",
                           "/kernel/mm/memory_peers/nv_mem", "/module/nvidia_peermem"}) {
    if (access((sysfs_ + path).c_str(), F_OK) == 0) return true;
  }
  return false;
}

// ---- registering --------------------------------------------------------------------------------

absl::StatusOr<MemorySource> MemorySource::Of(const MemoryBlock& block, GpuDirect* gpu_direct) {
  MemorySource source(block, gpu_direct->nic());
  if (block.kind() != MemoryKind::kCuda) return source;
  Device& device = *block.device();
  source.path_ = gpu_direct->PathTo(device);
  if (!source.path_.direct()) {
    return absl::UnimplementedError(absl::StrCat("memory of ", device.name(),
                                                 " cannot be registered with RDMA device ",
                                                 source.nic_, ": ", source.path_.reason));
  }
  if (source.path_.route == DeviceRoute::kDmaBuf) {
    absl::StatusOr<Device::DmaBuf> exported = device.ExportDmaBuf(block.data(), block.size());
    if (!exported.ok()) return exported.status();
    source.exported_ = *std::move(exported);
  }
  return source;
}

absl::StatusOr<ibv_mr*> MemorySource::Register(ibv_pd* pd, std::byte* data, size_t bytes,
                                               int access) const {
  ibv_mr* region = nullptr;
  if (path_.route == DeviceRoute::kDmaBuf) {
    region = ibv_reg_dmabuf_mr(pd, static_cast<uint64_t>(data - exported_.base), bytes,
                               reinterpret_cast<uintptr_t>(data), exported_.fd.get(),
                               access & ~IBV_ACCESS_MW_BIND);
  } else {
    region = ibv_reg_mr(pd, data, bytes, access);
  }
  if (region != nullptr) return region;
  const int error = errno;
  if (block_->kind() != MemoryKind::kCuda) return RegistrationError(block_->size(), nic_, error);
  return DeviceRegistrationError(block_->size(), block_->device()->name(),
                                 DeviceRouteName(path_.route), nic_, error);
}

}  // namespace verbena::rdma
