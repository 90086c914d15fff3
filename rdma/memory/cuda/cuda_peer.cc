#include "rdma/memory/cuda/cuda_peer.h"

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rdma/memory/topology.h"

namespace verbena::rdma::cuda {
namespace {

using Scope = CudaContext::Scope;

// 0: the driver does not know the attribute; a device without the feature also returns 0.
int AttributeOf(const CudaContext& context, int attribute) {
  int value = 0;
  const Result code = context.api().cuDeviceGetAttribute(&value, attribute, context.device());
  return code == kSuccess ? value : 0;
}

int NodeOf(const CudaContext& context) {
  const int domain = AttributeOf(context, kAttributePciDomainId);
  const int bus = AttributeOf(context, kAttributePciBusId);
  const int device = AttributeOf(context, kAttributePciDeviceId);
  return NodeOfPciDevice(absl::StrFormat("/sys/bus/pci/devices/%04x:%02x:%02x.0",
                                         static_cast<unsigned>(domain), static_cast<unsigned>(bus),
                                         static_cast<unsigned>(device)));
}

}  // namespace

Device::PeerAccess PeerAccessOf(CudaContext* context) {
  Device::PeerAccess access;
  const bool exports = context->api().cuMemGetHandleForAddressRange != nullptr;
  access.dma_buf = exports && AttributeOf(*context, kAttributeDmaBufSupported) != 0;
  access.peer_memory = AttributeOf(*context, kAttributeGpuDirectRdmaSupported) != 0;
  if (!exports) {
    access.missing = "NVIDIA's driver is older than CUDA 11.7 and exports no dma-buf";
  } else if (!access.dma_buf) {
    access.missing =
        "NVIDIA's driver exports no dma-buf of this GPU (its open kernel modules do, on Linux 5.12 "
        "and later)";
  }
  if (!access.peer_memory) {
    absl::StrAppend(&access.missing, access.missing.empty() ? "" : "; ",
                    "NVIDIA's driver does not support GPUDirect RDMA with this GPU");
  }
  access.numa_node = NodeOf(*context);
  return access;
}

absl::StatusOr<Device::DmaBuf> ExportDmaBuf(CudaContext* context, const std::byte* data,
                                            size_t bytes) {
  const Scope scope(context);
  if (!scope.status().ok()) return scope.status();
  const DriverApi& api = context->api();
  if (api.cuMemGetHandleForAddressRange == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(context->name(), ": the driver is older than CUDA 11.7"));
  }
  // Whole allocations: a range that begins or ends within a page shared with other memory cannot be
  // exported. Memory of cuMemMap is found range by range (cuda_memory.cc).
  const auto begin = reinterpret_cast<Address>(data);
  Address base = begin;
  Address end = begin;
  const unsigned sync = 1;
  while (end < begin + bytes) {
    Address from = 0;
    size_t size = 0;
    const Result code = api.cuMemGetAddressRange_v2(&from, &size, end);
    if (code != kSuccess) return context->Fail(code, "cuMemGetAddressRange");
    if (end - from >= size) return absl::InternalError("cuMemGetAddressRange: not around it");
    if (end == begin) base = from;
    // Each range has its own attribute. With it, cudaMemcpy() is complete when it returns; nothing
    // else orders it with a NIC's reads. Memory that cannot have it is ordered only by marks.
    (void)api.cuPointerSetAttribute(&sync, kPointerSyncMemops, from);
    end = from + size;
  }
  const auto page = static_cast<Address>(sysconf(_SC_PAGESIZE));
  base = base / page * page;
  end = (end + page - 1) / page * page;
  int fd = -1;
  const Result code = api.cuMemGetHandleForAddressRange(&fd, base, static_cast<size_t>(end - base),
                                                        kRangeHandleDmaBufFd, 0);
  if (code != kSuccess) {
    return context->Fail(code, absl::StrCat("a dma-buf of ", end - base, " bytes at 0x",
                                            absl::Hex(base), ": cuMemGetHandleForAddressRange"));
  }
  Device::DmaBuf exported;
  exported.fd = UniqueFd(fd);
  exported.base = reinterpret_cast<const std::byte*>(base);
  exported.bytes = static_cast<size_t>(end - base);
  return exported;
}

bool NeedsFlush(CudaContext* context) {
  return AttributeOf(*context, kAttributeGpuDirectRdmaWritesOrdering) < kOrderingOwner &&
         context->api().cuFlushGPUDirectRDMAWrites != nullptr &&
         (AttributeOf(*context, kAttributeGpuDirectRdmaFlushOptions) & kFlushOptionHost) != 0;
}

absl::Status FlushPeerWrites(CudaContext* context) {
  const Scope scope(context);
  if (!scope.status().ok()) return scope.status();
  const Result code =
      context->api().cuFlushGPUDirectRDMAWrites(kFlushCurrentContext, kFlushToOwner);
  if (code == kSuccess) return absl::OkStatus();
  return context->Fail(code, "cuFlushGPUDirectRDMAWrites");
}

}  // namespace verbena::rdma::cuda
