#include "rdma/memory/cuda/cuda_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "rdma/memory/cuda/driver_api.h"

namespace verbena::rdma::cuda {
namespace {

using Scope = CudaContext::Scope;

absl::Status WithMore(const absl::Status& status, std::string_view more) {
  return absl::Status(status.code(),
                      absl::StrCat(std::string(status.message()), "; ", std::string(more)));
}

std::string MemlockInForce() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return absl::StrCat(limit.rlim_cur, " bytes");
}

// The driver's information about an address.
struct PointerInfo {
  unsigned type = 0;  // 0: unknown address
  unsigned managed = 0;
  int ordinal = -1;
  unsigned legacy = 1;  // from cuMemAlloc
};

Result Look(const DriverApi& api, Address address, PointerInfo* info) {
  int attributes[] = {kPointerMemoryType, kPointerIsManaged, kPointerDeviceOrdinal,
                      kPointerIsLegacyIpcCapable};
  void* values[] = {&info->type, &info->managed, &info->ordinal, &info->legacy};
  const Result code = api.cuPointerGetAttributes(4, attributes, values, address);
  // "CUDA_ERROR_INVALID_CONTEXT: not allocated by, mapped by, or registered with" a context is a
  // valid result too.
  if (code != kInvalidContext && code != kInvalidValue) return code;
  info->type = 0;
  return kSuccess;
}

// Whether the memory is from a pool (cudaMallocAsync). Drivers before CUDA 11.3 have no pools and
// do not know the attribute.
bool OfPool(const DriverApi& api, Address address) {
  void* pool = nullptr;
  int attribute = kPointerMempoolHandle;
  void* value = &pool;
  return api.cuPointerGetAttributes(1, &attribute, &value, address) == kSuccess && pool != nullptr;
}

// OK: the pointer is memory of this device.
absl::Status CheckPointer(const CudaContext& context, const PointerInfo& info,
                          const std::string& where) {
  if (info.type == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is not known to the CUDA driver (ordinary host memory, or freed?)"));
  }
  if (info.managed != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(where,
                     " is managed memory (cudaMallocManaged), which has no fixed place; use "
                     "cudaMalloc"));
  }
  if (info.type != kMemoryTypeDevice) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is host memory, not memory of ", context.name()));
  }
  if (info.ordinal != context.ordinal()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is memory of cuda:", info.ordinal, ", not of ", context.name()));
  }
  return absl::OkStatus();
}

absl::Status TooLong(const std::string& where, size_t allocation, size_t left, size_t asked) {
  return absl::InvalidArgumentError(absl::StrCat("the allocation of ", where, " has ", allocation,
                                                 " bytes, only ", left, " from there, and ", asked,
                                                 " are asked for"));
}

}  // namespace

absl::StatusOr<std::byte*> AllocateMemory(CudaContext* context, size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("cannot allocate 0 bytes");
  const Scope scope(context);
  if (!scope.status().ok()) return scope.status();
  const DriverApi& api = context->api();
  Address address = 0;
  const Result code = api.cuMemAlloc_v2(&address, bytes);
  if (code == kSuccess) return reinterpret_cast<std::byte*>(address);
  const absl::Status status = context->Fail(code, absl::StrCat("cuMemAlloc of ", bytes, " bytes"));
  size_t free = 0;
  size_t total = 0;
  if (code != kOutOfMemory || api.cuMemGetInfo_v2(&free, &total) != kSuccess) return status;
  return WithMore(status,
                  absl::StrCat(free, " of its ", total,
                               " bytes are free (nvidia-smi lists the processes that use the rest; "
                               "PyTorch caches freed memory: torch.cuda.empty_cache())"));
}

void FreeMemory(CudaContext* context, std::byte* data) {
  // Also on a lost device, although the driver will refuse: the memory is released with the
  // process.
  const Scope scope(context, Scope::When::kAlways);
  const Result code = context->api().cuMemFree_v2(reinterpret_cast<Address>(data));
  if (code != kSuccess) (void)context->Fail(code, "cuMemFree");
}

absl::Status CheckMemory(CudaContext* context, const std::byte* data, size_t bytes) {
  const Scope scope(context);
  if (!scope.status().ok()) return scope.status();
  const DriverApi& api = context->api();
  const auto begin = reinterpret_cast<Address>(data);
  const std::string where = absl::StrCat("0x", absl::Hex(begin));
  size_t known = 0;  // bytes from `begin` that are memory of this device
  size_t allocation = 0;
  while (known < bytes) {
    PointerInfo info;
    if (const Result code = Look(api, begin + known, &info); code != kSuccess) {
      return context->Fail(code, "cuPointerGetAttributes");
    }
    const absl::Status pointer = CheckPointer(*context, info, where);
    if (!pointer.ok() && known == 0) return pointer;
    if (!pointer.ok()) return TooLong(where, allocation, known, bytes);
    Address base = 0;
    size_t size = 0;
    const Result code = api.cuMemGetAddressRange_v2(&base, &size, begin + known);
    if (code != kSuccess) return context->Fail(code, "cuMemGetAddressRange");
    const Address offset = begin + known - base;
    if (offset >= size) return absl::InternalError("cuMemGetAddressRange: not around its address");
    allocation += size;
    known += size - offset;
    // An allocation of cuMemAlloc or of a pool is one range; memory after it belongs to another.
    // Memory of cuMemMap (PyTorch's expandable segments) is reported range by range, although a
    // tensor may cover several adjacent ones (openucx/ucx #11461).
    if (known < bytes && (info.legacy != 0 || OfPool(api, begin))) {
      return TooLong(where, allocation, known, bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status PinMemory(CudaContext* context, std::byte* data, size_t bytes) {
  const Scope scope(context);
  if (!scope.status().ok()) return scope.status();
  // Portable: page-locked for all devices, not only for this context.
  const Result code = context->api().cuMemHostRegister_v2(data, bytes, kHostRegisterPortable);
  if (code == kSuccess) return absl::OkStatus();
  const absl::Status status = context->Fail(
      code, absl::StrCat("cannot page-lock ", bytes, " bytes of host memory: cuMemHostRegister"));
  if (code != kOutOfMemory && code != kOperatingSystem && code != kNotPermitted) return status;
  return absl::ResourceExhaustedError(
      absl::StrCat(std::string(status.message()), "; RLIMIT_MEMLOCK in force: ", MemlockInForce(),
                   ". Ask for less, or raise the limit (ulimit -l unlimited; systemd: "
                   "LimitMEMLOCK=infinity; container: --ulimit memlock=-1) and see free -h"));
}

void UnpinMemory(CudaContext* context, std::byte* data) {
  // Also on a lost device: the memory is about to be unmapped.
  const Scope scope(context, Scope::When::kAlways);
  const Result code = context->api().cuMemHostUnregister(data);
  if (code != kSuccess) (void)context->Fail(code, "cuMemHostUnregister");
}

}  // namespace verbena::rdma::cuda
