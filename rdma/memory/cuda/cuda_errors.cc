#include "rdma/memory/cuda/cuda_errors.h"

#include "absl/strings/str_cat.h"

namespace verbena::rdma::cuda {
namespace {

bool IsAboutCapture(Result code) {
  return code >= kStreamCaptureUnsupported && code <= kStreamCaptureWrongThread;
}

absl::StatusCode CodeOf(Result code) {
  if (IsSticky(code)) return absl::StatusCode::kUnavailable;
  if (IsAboutCapture(code)) return absl::StatusCode::kFailedPrecondition;
  switch (code) {
    case kOutOfMemory:
    case kLaunchOutOfResources:
      return absl::StatusCode::kResourceExhausted;
    case kInvalidValue:
    case kInvalidDevice:
    case kInvalidHandle:
    case kInvalidImage:
    case kHostMemoryAlreadyRegistered:
    case kHostMemoryNotRegistered:
      return absl::StatusCode::kInvalidArgument;
    case kNotFound:
      return absl::StatusCode::kNotFound;
    case kNotPermitted:
      return absl::StatusCode::kPermissionDenied;
    case kNotSupported:
    case kNoBinaryForGpu:
    case kUnsupportedPtxVersion:
      return absl::StatusCode::kUnimplemented;
    case kNotInitialized:
    case kInvalidContext:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

std::string ErrorText(const DriverApi& api, Result code) {
  const char* name = nullptr;
  const char* text = nullptr;
  // Both leave null for a code that this driver does not know.
  if (api.cuGetErrorName(code, &name) != kSuccess) name = nullptr;
  if (api.cuGetErrorString(code, &text) != kSuccess) text = nullptr;
  return absl::StrCat(name == nullptr ? "an unknown CUDA error" : name, " (", code, ")",
                      text == nullptr ? "" : ": ", text == nullptr ? "" : text);
}

bool IsSticky(Result code) {
  switch (code) {
    case kDeinitialized:  // the driver has been shut down: the process is ending
    case kDeviceUnavailable:
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kContextIsDestroyed:
    case kMpsClientTerminated:
    // cuda.h of each: "The context cannot be used anymore" or "This leaves the process in an
    // inconsistent state and any further CUDA work will return the same error."
    case kContained:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kAssert:
    case kHardwareStackError:
    case kIllegalInstruction:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kInvalidPc:
    case kLaunchFailed:
    case kTensorMemoryLeak:
    case kExternalDevice:
      return true;
    default:
      return false;
  }
}

absl::Status DriverError(const DriverApi& api, Result code, std::string_view device,
                         std::string_view call) {
  const std::string_view hint = ErrorHint(code);
  return absl::Status(CodeOf(code), absl::StrCat(std::string(device), ": ", std::string(call), ": ",
                                                 ErrorText(api, code), hint.empty() ? "" : "; ",
                                                 std::string(hint)));
}

absl::Status LostError(const DriverApi& api, Result code, std::string_view device,
                       std::string_view call) {
  const std::string_view hint = ErrorHint(code);
  return absl::UnavailableError(
      absl::StrCat(std::string(device), " is lost: ", ErrorText(api, code), ", in ",
                   std::string(call), hint.empty() ? "" : "; ", std::string(hint),
                   "; no CUDA call of this process works any more: restart this process"));
}

std::string_view ErrorHint(Result code) {
  if (IsAboutCapture(code)) {
    return "a stream is being captured into a CUDA graph: do this before or after the capture";
  }
  switch (code) {
    case kNotInitialized:
      return "in a child of fork(2) CUDA does not work once the parent has used it: start the "
             "child anew (spawn), or fork first";
    case kDeinitialized:
      return "the process is ending";
    case kStubLibrary:
      return "the library is the CUDA toolkit's stub, not a driver: take it out of "
             "LD_LIBRARY_PATH";
    case kDeviceUnavailable:
      return "another process has it in exclusive mode, or nobody may use it (nvidia-smi -q -d "
             "COMPUTE)";
    case kNoDevice:
      return "there is no GPU, or CUDA_VISIBLE_DEVICES or the container hides it (nvidia-smi -L)";
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kContained:
      return "the hardware failed (dmesg | grep Xid; nvidia-smi -q -d ECC)";
    case kIllegalAddress:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kIllegalInstruction:
    case kInvalidPc:
    case kHardwareStackError:
    case kLaunchFailed:
    case kAssert:
      return "a kernel of this process is at fault (CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer "
             "names it), or the hardware (dmesg | grep Xid)";
    case kContextIsDestroyed:
    case kInvalidContext:
      return "was it reset (cudaDeviceReset)?";
    case kSystemNotReady:
      return "a service is missing: is nvidia-fabricmanager running?";
    case kSystemDriverMismatch:
      return "library and kernel module of NVIDIA's driver differ: reboot after an update";
    case kUnknown:
      return "is the kernel module loaded, and /dev/nvidia* there (nvidia-smi)?";
    default:
      return "";
  }
}

}  // namespace verbena::rdma::cuda
