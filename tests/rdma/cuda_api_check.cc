// That our declarations of the CUDA driver (rdma/memory/cuda/driver_api.h) are those of cuda.h:
// compiling is the test.
#include <cuda.h>

#include <cstddef>

#include "rdma/memory/cuda/driver_api.h"
#include "tests/support/same_function.h"

namespace verbena::rdma::cuda {
namespace {

using test::SameFunction;

// cuda.h must declare the used functions under the names of their symbols: an unknown name does not
// compile.
#define CHECK_FUNCTION(name, parameters) \
  static_assert(SameFunction<decltype(DriverApi::name), decltype(&::name)>::value, #name);
VERBENA_CUDA_FUNCTIONS(CHECK_FUNCTION)
VERBENA_CUDA_NEWER_FUNCTIONS(CHECK_FUNCTION)
#if CUDA_VERSION >= 13000
VERBENA_CUDA_13_FUNCTIONS(CHECK_FUNCTION)
#endif
#undef CHECK_FUNCTION

static_assert(kSuccess == CUDA_SUCCESS);
static_assert(kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kNotInitialized == CUDA_ERROR_NOT_INITIALIZED);
static_assert(kDeinitialized == CUDA_ERROR_DEINITIALIZED);
static_assert(kStubLibrary == CUDA_ERROR_STUB_LIBRARY);
static_assert(kDeviceUnavailable == CUDA_ERROR_DEVICE_UNAVAILABLE);
static_assert(kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kInvalidDevice == CUDA_ERROR_INVALID_DEVICE);
static_assert(kInvalidImage == CUDA_ERROR_INVALID_IMAGE);
static_assert(kInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(kEccUncorrectable == CUDA_ERROR_ECC_UNCORRECTABLE);
static_assert(kNvlinkUncorrectable == CUDA_ERROR_NVLINK_UNCORRECTABLE);
static_assert(kUnsupportedPtxVersion == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(kContained == CUDA_ERROR_CONTAINED);
static_assert(kOperatingSystem == CUDA_ERROR_OPERATING_SYSTEM);
static_assert(kInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(kNotFound == CUDA_ERROR_NOT_FOUND);
static_assert(kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(kLaunchOutOfResources == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
static_assert(kLaunchTimeout == CUDA_ERROR_LAUNCH_TIMEOUT);
static_assert(kContextIsDestroyed == CUDA_ERROR_CONTEXT_IS_DESTROYED);
static_assert(kAssert == CUDA_ERROR_ASSERT);
static_assert(kHostMemoryAlreadyRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(kHostMemoryNotRegistered == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
static_assert(kHardwareStackError == CUDA_ERROR_HARDWARE_STACK_ERROR);
static_assert(kIllegalInstruction == CUDA_ERROR_ILLEGAL_INSTRUCTION);
static_assert(kMisalignedAddress == CUDA_ERROR_MISALIGNED_ADDRESS);
static_assert(kInvalidAddressSpace == CUDA_ERROR_INVALID_ADDRESS_SPACE);
static_assert(kInvalidPc == CUDA_ERROR_INVALID_PC);
static_assert(kLaunchFailed == CUDA_ERROR_LAUNCH_FAILED);
static_assert(kTensorMemoryLeak == CUDA_ERROR_TENSOR_MEMORY_LEAK);
static_assert(kNotPermitted == CUDA_ERROR_NOT_PERMITTED);
static_assert(kNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(kSystemNotReady == CUDA_ERROR_SYSTEM_NOT_READY);
static_assert(kSystemDriverMismatch == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
static_assert(kMpsClientTerminated == CUDA_ERROR_MPS_CLIENT_TERMINATED);
static_assert(kStreamCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(kStreamCaptureWrongThread == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
static_assert(kExternalDevice == CUDA_ERROR_EXTERNAL_DEVICE);
static_assert(kUnknown == CUDA_ERROR_UNKNOWN);

static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kCaptureStatusNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kPointerSyncMemops == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
static_assert(kPointerIsManaged == CU_POINTER_ATTRIBUTE_IS_MANAGED);
static_assert(kPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kPointerIsLegacyIpcCapable == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
static_assert(kPointerMempoolHandle == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
static_assert(kMemoryTypeHost == CU_MEMORYTYPE_HOST);
static_assert(kMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);
static_assert(kAttributeMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kAttributePciBusId == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
static_assert(kAttributePciDeviceId == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
static_assert(kAttributePciDomainId == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
static_assert(kAttributeComputeCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kAttributeComputeCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kAttributeGpuDirectRdmaSupported == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
static_assert(kAttributeGpuDirectRdmaFlushOptions ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
static_assert(kAttributeGpuDirectRdmaWritesOrdering ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
static_assert(kAttributeDmaBufSupported == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
static_assert(kFlushOptionHost == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
static_assert(kOrderingOwner == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
static_assert(kFlushToOwner == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
static_assert(kFlushCurrentContext == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
static_assert(kSourceOrderStream == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(sizeof(CopyAttributes) == sizeof(CUmemcpyAttributes));
static_assert(offsetof(CopyAttributes, source_order) ==
              offsetof(CUmemcpyAttributes, srcAccessOrder));
static_assert(offsetof(CopyAttributes, source_hint) == offsetof(CUmemcpyAttributes, srcLocHint));
static_assert(offsetof(CopyAttributes, destination_hint) ==
              offsetof(CUmemcpyAttributes, dstLocHint));
static_assert(offsetof(CopyAttributes, flags) == offsetof(CUmemcpyAttributes, flags));
static_assert(kRangeHandleDmaBufFd == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);

}  // namespace
}  // namespace verbena::rdma::cuda
