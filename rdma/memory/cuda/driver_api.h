// The used part of the CUDA driver's interface, declared here. The driver is loaded at run time, so
// one build works with and without a GPU and needs no toolkit.
//
// Names, types and numbers are those of the exported symbols ("CUDA Driver API reference", cuda.h
// of CUDA 13). The interface of a symbol never changes; a new one gets a new suffix, such as _v2.
// tests/rdma/cuda_api_check.cc compares them with cuda.h where available. Enumerations of cuda.h
// are ints here.
//
// **Thread safety**: plain data. The driver's functions may be called from any thread.
#ifndef VERBENA_RDMA_MEMORY_CUDA_DRIVER_API_H_
#define VERBENA_RDMA_MEMORY_CUDA_DRIVER_API_H_

#include <cstddef>
#include <cstdint>

namespace verbena::rdma::cuda {

using Result = int;        // CUresult
using DeviceNumber = int;  // CUdevice
using Address = uint64_t;  // CUdeviceptr
struct ContextObject;      // CUctx_st
struct StreamObject;       // CUstream_st
struct EventObject;        // CUevent_st
struct ModuleObject;       // CUmod_st
struct FunctionObject;     // CUfunc_st
using Context = ContextObject*;
using Stream = StreamObject*;
using Event = EventObject*;
using Module = ModuleObject*;
using Function = FunctionObject*;

// The values of CUresult that this project distinguishes.
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kStubLibrary = 34;
inline constexpr Result kDeviceUnavailable = 46;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kEccUncorrectable = 214;
inline constexpr Result kNvlinkUncorrectable = 220;
inline constexpr Result kUnsupportedPtxVersion = 222;
inline constexpr Result kContained = 226;
inline constexpr Result kOperatingSystem = 304;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kLaunchOutOfResources = 701;
inline constexpr Result kLaunchTimeout = 702;
inline constexpr Result kContextIsDestroyed = 709;
inline constexpr Result kAssert = 710;
inline constexpr Result kHostMemoryAlreadyRegistered = 712;
inline constexpr Result kHostMemoryNotRegistered = 713;
inline constexpr Result kHardwareStackError = 714;
inline constexpr Result kIllegalInstruction = 715;
inline constexpr Result kMisalignedAddress = 716;
inline constexpr Result kInvalidAddressSpace = 717;
inline constexpr Result kInvalidPc = 718;
inline constexpr Result kLaunchFailed = 719;
inline constexpr Result kTensorMemoryLeak = 721;
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kSystemNotReady = 802;
inline constexpr Result kSystemDriverMismatch = 803;
inline constexpr Result kMpsClientTerminated = 810;
inline constexpr Result kStreamCaptureUnsupported = 900;  // first of the codes about captures
inline constexpr Result kStreamCaptureWrongThread = 908;  // last of the codes about captures
inline constexpr Result kExternalDevice = 911;
inline constexpr Result kUnknown = 999;

inline constexpr unsigned kStreamNonBlocking = 1;     // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kEventDisableTiming = 2;    // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kHostRegisterPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE
inline constexpr int kCaptureModeRelaxed = 2;         // CU_STREAM_CAPTURE_MODE_RELAXED
inline constexpr int kCaptureStatusNone = 0;          // CU_STREAM_CAPTURE_STATUS_NONE
// CUpointer_attribute
inline constexpr int kPointerMemoryType = 2;           // unsigned
inline constexpr int kPointerSyncMemops = 6;           // unsigned
inline constexpr int kPointerIsManaged = 8;            // unsigned
inline constexpr int kPointerDeviceOrdinal = 9;        // int
inline constexpr int kPointerIsLegacyIpcCapable = 10;  // unsigned; 0: not from cuMemAlloc
inline constexpr int kPointerMempoolHandle = 17;       // a pointer; null: not from a pool. CUDA
                                                       // 11.3
inline constexpr unsigned kMemoryTypeHost = 1;         // CU_MEMORYTYPE_HOST
inline constexpr unsigned kMemoryTypeDevice = 2;       // CU_MEMORYTYPE_DEVICE
// CUdevice_attribute
inline constexpr int kAttributeMultiprocessorCount = 16;
inline constexpr int kAttributePciBusId = 33;
inline constexpr int kAttributePciDeviceId = 34;
inline constexpr int kAttributePciDomainId = 50;
inline constexpr int kAttributeComputeCapabilityMajor = 75;
inline constexpr int kAttributeComputeCapabilityMinor = 76;
inline constexpr int kAttributeGpuDirectRdmaSupported = 116;
inline constexpr int kAttributeGpuDirectRdmaFlushOptions = 117;
inline constexpr int kAttributeGpuDirectRdmaWritesOrdering = 118;
inline constexpr int kAttributeDmaBufSupported = 124;
// GPUDirect RDMA
inline constexpr int kFlushOptionHost = 1;      // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST
inline constexpr int kOrderingOwner = 100;      // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
inline constexpr int kFlushToOwner = 100;       // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER
inline constexpr int kFlushCurrentContext = 0;  // ..._WRITES_TARGET_CURRENT_CTX
inline constexpr int kRangeHandleDmaBufFd = 1;  // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

// CUmemcpyAttributes, for batched copies; each hint is a location's type and number.
struct CopyAttributes {
  int source_order;
  int source_hint[2];
  int destination_hint[2];
  unsigned flags;
};
inline constexpr int kSourceOrderStream = 1;  // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM

// All required functions: symbol name and parameters. The newest of them are from CUDA 11.0.
inline constexpr const char kOldestDriver[] = "CUDA 11.0 (Linux driver 450)";
// clang-format off
#define VERBENA_CUDA_FUNCTIONS(X)                                                                  \
  X(cuInit, (unsigned flags))                                                                      \
  X(cuDriverGetVersion, (int* version))                                                            \
  X(cuGetErrorName, (Result code, const char** text))                                              \
  X(cuGetErrorString, (Result code, const char** text))                                            \
  X(cuDeviceGetCount, (int* count))                                                                \
  X(cuDeviceGet, (DeviceNumber* device, int ordinal))                                              \
  X(cuDeviceGetName, (char* name, int bytes, DeviceNumber device))                                 \
  X(cuDeviceGetAttribute, (int* value, int attribute, DeviceNumber device))                        \
  X(cuDevicePrimaryCtxRetain, (Context* context, DeviceNumber device))                             \
  X(cuDevicePrimaryCtxRelease_v2, (DeviceNumber device))                                           \
  X(cuCtxPushCurrent_v2, (Context context))                                                        \
  X(cuCtxPopCurrent_v2, (Context* context))                                                        \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                                \
  X(cuMemGetInfo_v2, (size_t* free, size_t* total))                                                \
  X(cuMemAlloc_v2, (Address* address, size_t bytes))                                               \
  X(cuMemFree_v2, (Address address))                                                               \
  X(cuMemGetAddressRange_v2, (Address* base, size_t* bytes, Address address))                      \
  X(cuPointerGetAttributes, (unsigned count, int* attributes, void** data, Address address))       \
  X(cuPointerSetAttribute, (const void* value, int attribute, Address address))                    \
  X(cuMemHostRegister_v2, (void* data, size_t bytes, unsigned flags))                              \
  X(cuMemHostUnregister, (void* data))                                                             \
  X(cuMemcpyDtoHAsync_v2, (void* to, Address from, size_t bytes, Stream stream))                   \
  X(cuMemcpyHtoDAsync_v2, (Address to, const void* from, size_t bytes, Stream stream))             \
  X(cuMemsetD8Async, (Address to, unsigned char value, size_t bytes, Stream stream))               \
  X(cuStreamCreate, (Stream* stream, unsigned flags))                                              \
  X(cuStreamDestroy_v2, (Stream stream))                                                           \
  X(cuStreamSynchronize, (Stream stream))                                                          \
  X(cuStreamIsCapturing, (Stream stream, int* status))                                             \
  X(cuEventCreate, (Event* event, unsigned flags))                                                 \
  X(cuEventDestroy_v2, (Event event))                                                              \
  X(cuEventRecord, (Event event, Stream stream))                                                   \
  X(cuEventQuery, (Event event))                                                                   \
  X(cuModuleLoadData, (Module* module, const void* image))                                         \
  X(cuModuleUnload, (Module module))                                                               \
  X(cuModuleGetFunction, (Function* function, Module module, const char* name))                    \
  X(cuLaunchKernel, (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,         \
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,  \
                     Stream stream, void** parameters, void** extra))
// Functions that older drivers lack (CUDA 11.3, 11.7): null there.
#define VERBENA_CUDA_NEWER_FUNCTIONS(X)                                                            \
  X(cuFlushGPUDirectRDMAWrites, (int target, int scope))                                           \
  X(cuMemGetHandleForAddressRange, (void* handle, Address address, size_t bytes, int type,         \
                                    unsigned long long flags))
// Functions of CUDA 13.0, which the toolkit of a build may also lack: null in older drivers.
#define VERBENA_CUDA_13_FUNCTIONS(X)                                                               \
  X(cuMemcpyBatchAsync_v2, (Address* to, Address* from, size_t* bytes, size_t count,               \
                            CopyAttributes* attributes, size_t* attribute_of,                      \
                            size_t attributes_count, Stream stream))
// clang-format on

// All functions, resolved in the driver (driver.h).
struct DriverApi {
#define VERBENA_CUDA_POINTER(name, parameters) Result(*name) parameters = nullptr;
  VERBENA_CUDA_FUNCTIONS(VERBENA_CUDA_POINTER)
  VERBENA_CUDA_NEWER_FUNCTIONS(VERBENA_CUDA_POINTER)
  VERBENA_CUDA_13_FUNCTIONS(VERBENA_CUDA_POINTER)
#undef VERBENA_CUDA_POINTER
};

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_DRIVER_API_H_
