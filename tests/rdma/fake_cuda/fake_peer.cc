// The driver's functions about access by other devices, and the kernel's part of them.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/rdma/fake_cuda/fake_call.h"

namespace verbena::rdma::cuda {
namespace {

// The contents of the file that stands for a dma-buf.
struct Exported {
  uint64_t magic = 0x6675622d616d64;
  Address base = 0;
  uint64_t bytes = 0;
};

}  // namespace

Result cuMemGetHandleForAddressRange(void* handle, Address address, size_t bytes, int type,
                                     unsigned long long flags) {
  FakeCall call("cuMemGetHandleForAddressRange");
  if (!call.NeedContext().ok()) return call.error;
  const auto page = static_cast<Address>(sysconf(_SC_PAGESIZE));
  if (address % page != 0 || bytes % page != 0 || type != kRangeHandleDmaBufFd || flags != 0) {
    return kInvalidValue;
  }
  // All mapped, from the beginning of an allocation to the end of one.
  Address at = address;
  while (at < address + bytes) {
    const auto found = call.gpus.allocations.find(at);
    if (found == call.gpus.allocations.end()) return kInvalidValue;
    if (found->second.managed) return kNotSupported;
    at += found->second.mapped;
  }
  const Exported exported = {Exported().magic, address, bytes};
  const int fd = memfd_create("fake-dma-buf", MFD_CLOEXEC);
  if (fd < 0) return kOperatingSystem;
  if (write(fd, &exported, sizeof(exported)) != sizeof(exported)) {
    close(fd);
    return kOperatingSystem;
  }
  *static_cast<int*>(handle) = fd;
  ++call.gpus.counts.exports;
  return kSuccess;
}

Result cuFlushGPUDirectRDMAWrites(int target, int scope) {
  FakeCall call("cuFlushGPUDirectRDMAWrites");
  if (!call.NeedContext().ok()) return call.error;
  if (target != kFlushCurrentContext || scope != kFlushToOwner) return kInvalidValue;
  ++call.gpus.counts.flushes;
  return kSuccess;
}

Result cuPointerSetAttribute(const void* value, int attribute, Address address) {
  FakeCall call("cuPointerSetAttribute");
  if (!call.NeedContext().ok()) return call.error;
  const auto found = call.gpus.Find(address);
  if (found == call.gpus.allocations.end() || attribute != kPointerSyncMemops) return kInvalidValue;
  unsigned set = 0;  // all of its bytes count
  std::memcpy(&set, value, sizeof(set));
  if (set != 1) return kInvalidValue;
  found->second.synced = true;
  return kSuccess;
}

}  // namespace verbena::rdma::cuda

namespace verbena::rdma {

using cuda::FakeGpus;

void fake_cuda_set_attribute(int device, int attribute, int value) {
  FakeGpus& gpus = FakeGpus::Get();
  const std::lock_guard<std::recursive_mutex> lock(gpus.mutex);
  gpus.devices[static_cast<size_t>(device)].attributes[attribute] = value;
}

bool fake_cuda_dma_buf(int fd, uint64_t* base, uint64_t* bytes) {
  cuda::Exported exported;
  const uint64_t magic = exported.magic;
  if (pread(fd, &exported, sizeof(exported), 0) != sizeof(exported)) return false;
  *base = exported.base;
  *bytes = exported.bytes;
  return exported.magic == magic;
}

void* fake_cuda_bytes(const void* address, size_t bytes) {
  FakeGpus& gpus = FakeGpus::Get();
  const std::lock_guard<std::recursive_mutex> lock(gpus.mutex);
  const auto begin = reinterpret_cast<cuda::Address>(address);
  const auto found = gpus.Find(begin);
  if (found == gpus.allocations.end()) return nullptr;
  const size_t offset = begin - found->first;
  // The segments of one mapping lie one after the other, here too.
  size_t there = found->second.mapped - offset;
  for (auto next = std::next(found); there < bytes && next != gpus.allocations.end(); ++next) {
    if (next->first != begin + there || !next->second.segment) return nullptr;
    there += next->second.mapped;
  }
  return there < bytes ? nullptr : found->second.shadow + offset;
}

}  // namespace verbena::rdma
