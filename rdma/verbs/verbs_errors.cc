#include "rdma/verbs/verbs_errors.h"

#include <arpa/inet.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace verbena::rdma {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
      return absl::StatusCode::kResourceExhausted;
    case EPERM:
    case EACCES:
      return absl::StatusCode::kPermissionDenied;
    case EINVAL:
    case EOPNOTSUPP:
    case EADDRINUSE:
      return absl::StatusCode::kFailedPrecondition;
    case ETIMEDOUT:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

std::string MemlockInForce() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return absl::StrCat(limit.rlim_cur, " bytes");
}

}  // namespace

absl::Status ErrnoStatus(std::string_view what, int error) {
  return absl::Status(CodeOf(error), absl::StrCat(std::string(what), ": ", strerror(error),
                                                  " (errno ", error, ")"));
}

absl::Status RegistrationError(size_t bytes, std::string_view device, int error) {
  std::string text = absl::StrCat("cannot register ", bytes, " bytes of memory with RDMA device ",
                                  std::string(device), ": ", strerror(error), " (errno ", error,
                                  "); RLIMIT_MEMLOCK in force: ", MemlockInForce());
  switch (error) {
    case ENOMEM:
    case EAGAIN:
    case EPERM:
      absl::StrAppend(
          &text,
          ". Registered memory is locked: raise the limit (ulimit -l unlimited; systemd: "
          "LimitMEMLOCK=infinity; container: --ulimit memlock=-1 or CAP_IPC_LOCK)");
      break;
    case EFAULT:
      absl::StrAppend(&text, ". The memory is not mapped, or not writable, over its whole length");
      break;
    default:
      break;
  }
  return absl::ResourceExhaustedError(text);
}

absl::Status DeviceRegistrationError(size_t bytes, std::string_view gpu, std::string_view route,
                                     std::string_view device, int error) {
  std::string text =
      absl::StrCat("cannot register ", bytes, " bytes of ", std::string(gpu), " with RDMA device ",
                   std::string(device), " (", std::string(route), "): ", strerror(error),
                   " (errno ", error, ")");
  switch (error) {
    case ENOMEM:
    case ENOSPC:
    case EAGAIN:
      absl::StrAppend(&text,
                      ". A GPU shows other devices as much memory as its BAR1 has room for "
                      "(nvidia-smi -q -d MEMORY): register less, or set up a large BAR in the "
                      "firmware");
      break;
    case EINVAL:
    case EFAULT:
    case EOPNOTSUPP:
      absl::StrAppend(&text,
                      ". The kernel's log has details; nvidia_peermem must have been built for the "
                      "drivers that are loaded, and memory of cuMemCreate made with "
                      "gpuDirectRDMACapable");
      return absl::FailedPreconditionError(text);
    default:
      break;
  }
  return absl::ResourceExhaustedError(text);
}

std::string_view CompletionHint(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer did not answer within the retry budget: is it alive, is the path lossy "
             "(PFC, MTU, switch drops), is its port up?";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer had no receive posted: an accounting error of this library; please report "
             "it";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer's device refused the key or range: its memory is not exposed to this "
             "queue pair (any more)";
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer's device refused the request: different path MTU or a device limit?";
    case IBV_WC_REM_OP_ERR:
      return "the peer's device could not do it: see its kernel log and hw_counters";
    case IBV_WC_LOC_PROT_ERR:
      return "local memory is not (any more) registered over the range of a write";
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
      return "the device refused a work request, or its network interface went down: see the "
             "kernel log";
    case IBV_WC_FATAL_ERR:
    case IBV_WC_GENERAL_ERR:
      return "the device failed: see the kernel log";
    default:
      return {};
  }
}

std::string GidText(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  if (inet_ntop(AF_INET6, gid.raw, text, sizeof(text)) == nullptr) return "?";
  return text;
}

}  // namespace verbena::rdma
