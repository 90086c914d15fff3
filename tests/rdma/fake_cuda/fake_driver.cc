// The driver's functions about devices, contexts and memory. They behave as the "CUDA Driver API
// reference" describes, as far as this project relies on it.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "tests/rdma/fake_cuda/fake_call.h"

namespace verbena::rdma::cuda {
namespace {

struct ErrorEntry {
  Result code;
  const char* name;
  const char* text;
};
constexpr ErrorEntry kErrors[] = {
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kDeviceUnavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device is busy or unavailable"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kStreamCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
};

const ErrorEntry* FindError(Result code) {
  const auto* const found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                         [code](const ErrorEntry& e) { return e.code == code; });
  return found == std::end(kErrors) ? nullptr : found;
}

bool IsDevice(int device) { return device >= 0 && device < kFakeDevices; }

}  // namespace

Result cuInit(unsigned) { return FakeCall("cuInit").error; }

Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return FakeCall("cuDriverGetVersion").error;
}

Result cuGetErrorName(Result code, const char** text) {
  const ErrorEntry* error = FindError(code);
  *text = error == nullptr ? nullptr : error->name;
  return error == nullptr ? kInvalidValue : kSuccess;
}

Result cuGetErrorString(Result code, const char** text) {
  const ErrorEntry* error = FindError(code);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? kInvalidValue : kSuccess;
}

// ---- devices and contexts -----------------------------------------------------------------------

Result cuDeviceGetCount(int* count) {
  *count = kFakeDevices;
  return FakeCall("cuDeviceGetCount").error;
}

Result cuDeviceGet(DeviceNumber* device, int ordinal) {
  *device = ordinal;
  return IsDevice(ordinal) ? FakeCall("cuDeviceGet").error : kInvalidDevice;
}

Result cuDeviceGetName(char* name, int bytes, DeviceNumber device) {
  std::snprintf(name, static_cast<size_t>(bytes), "Fake GPU %d", device);
  return FakeCall("cuDeviceGetName").error;
}

Result cuDeviceGetAttribute(int* value, int attribute, DeviceNumber device) {
  if (!IsDevice(device)) return kInvalidDevice;
  FakeCall call("cuDeviceGetAttribute");
  call.device = device;
  const auto found = call.on().attributes.find(attribute);
  *value = found == call.on().attributes.end() ? 0 : found->second;
  return call.error;
}

Result cuDevicePrimaryCtxRetain(Context* context, DeviceNumber device) {
  FakeCall call("cuDevicePrimaryCtxRetain");
  if (!IsDevice(device)) return kInvalidDevice;
  call.device = device;
  if (call.ok()) call.error = call.on().lost;
  if (!call.ok()) return call.error;
  *context = &call.on().context;
  ++call.gpus.retained;
  return kSuccess;
}

Result cuDevicePrimaryCtxRelease_v2(DeviceNumber device) {
  FakeCall call("cuDevicePrimaryCtxRelease_v2");
  if (!IsDevice(device) || call.gpus.retained == 0) return kInvalidContext;
  --call.gpus.retained;
  return call.error;
}

Result cuCtxPushCurrent_v2(Context context) {
  const FakeCall call("cuCtxPushCurrent_v2");
  if (call.ok()) fake_stack.push_back(context);
  return call.error;
}

Result cuCtxPopCurrent_v2(Context* context) {
  const FakeCall call("cuCtxPopCurrent_v2");
  if (fake_stack.empty()) return kInvalidContext;
  *context = fake_stack.back();
  fake_stack.pop_back();
  return call.error;
}

Result cuThreadExchangeStreamCaptureMode(int* mode) {
  const FakeCall call("cuThreadExchangeStreamCaptureMode");
  if (call.ok()) std::swap(*mode, fake_capture_mode);
  return call.error;
}

// ---- memory -------------------------------------------------------------------------------------

Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  FakeCall call("cuMemGetInfo_v2");
  if (!call.NeedContext().ok()) return call.error;
  *total = call.on().memory;
  *free = call.on().memory - std::min(call.on().memory, call.on().used);
  return kSuccess;
}

Result cuMemAlloc_v2(Address* address, size_t bytes) {
  FakeCall call("cuMemAlloc_v2");
  if (!call.NeedContext().Unsafe().ok()) return call.error;
  if (bytes == 0) return kInvalidValue;
  *address = call.gpus.Allocate(call.device, bytes, 1, false);
  return *address == 0 ? kOutOfMemory : kSuccess;
}

Result cuMemFree_v2(Address address) {
  FakeCall call("cuMemFree_v2");
  if (!call.NeedContext().Unsafe().ok() && (call.device < 0 || call.on().lost == kSuccess)) {
    return call.error;
  }
  const auto found = call.gpus.allocations.find(address);
  if (found == call.gpus.allocations.end()) return kInvalidValue;
  // The real one waits for the device, too.
  call.gpus.Drain(&call.lock, found->second.device, nullptr);
  (void)call.gpus.Free(address);
  return call.error;
}

Result cuMemGetAddressRange_v2(Address* base, size_t* bytes, Address address) {
  FakeCall call("cuMemGetAddressRange_v2");
  if (!call.NeedContext().ok()) return call.error;
  const auto found = call.gpus.Find(address);
  if (found == call.gpus.allocations.end()) return kNotFound;
  *base = found->first;
  *bytes = found->second.bytes;
  return kSuccess;
}

Result cuPointerGetAttributes(unsigned count, int* attributes, void** data, Address address) {
  FakeCall call("cuPointerGetAttributes");
  if (!call.NeedContext().ok()) return call.error;
  const auto found = call.gpus.Find(address);
  const bool device = found != call.gpus.allocations.end();
  const bool host = call.gpus.Pinned(reinterpret_cast<const void*>(address), 1);
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] == kPointerMempoolHandle) {
      const void* pool = device && found->second.pooled ? &found->second : nullptr;
      std::memcpy(data[i], &pool, sizeof(pool));
      continue;
    }
    // All others that are asked for here have four bytes; zero when nothing is known.
    int value = 0;
    if (attributes[i] == kPointerMemoryType) {
      value = device ? kMemoryTypeDevice : host ? kMemoryTypeHost : 0;
    } else if (device && attributes[i] == kPointerIsManaged) {
      value = found->second.managed ? 1 : 0;
    } else if (attributes[i] == kPointerDeviceOrdinal) {
      value = device ? found->second.device : host ? 0 : -2;
    } else if (device && attributes[i] == kPointerIsLegacyIpcCapable) {
      value = found->second.segment || found->second.pooled ? 0 : 1;
    }
    std::memcpy(data[i], &value, sizeof(value));
  }
  return kSuccess;
}

Result cuMemHostRegister_v2(void* data, size_t bytes, unsigned flags) {
  FakeCall call("cuMemHostRegister_v2");
  if (!call.NeedContext().Unsafe().ok()) return call.error;
  if (bytes == 0 || flags != kHostRegisterPortable) return kInvalidValue;
  if (bytes > call.gpus.pin_limit) return kOutOfMemory;
  if (call.gpus.Pinned(data, 1)) return kHostMemoryAlreadyRegistered;
  call.gpus.registrations[reinterpret_cast<uintptr_t>(data)] = bytes;
  return kSuccess;
}

Result cuMemHostUnregister(void* data) {
  FakeCall call("cuMemHostUnregister");
  if (!call.NeedContext().ok() && call.device < 0) return call.error;
  const bool was = call.gpus.registrations.erase(reinterpret_cast<uintptr_t>(data)) > 0;
  return call.ok() && !was ? kHostMemoryNotRegistered : call.error;
}

}  // namespace verbena::rdma::cuda
