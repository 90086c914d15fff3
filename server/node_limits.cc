#include "server/node_limits.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/threads.h"
#include "rdma/base/unique_fd.h"

namespace verbena::server {
namespace {

// Threads in addition to gRPC's.
int ThreadsOf(const NodeOptions& options) {
  // The threads of the coordinator, membership, files, checkpoints, audit log, control port and its
  // end, /metrics and /healthz.
  constexpr int kOfProcess = 9;
  constexpr int kOfRocksDb = 2;
  const int shards = static_cast<int>(options.shards);
  if (options.cold_dir.empty()) return kOfProcess + shards;
  return kOfProcess + kOfRocksDb + 2 * shards;
}

// Without workers. With fewer a server starts, and never joins.
size_t DescriptorsOf(const NodeOptions& options) {
  constexpr size_t kOfProcess = 32, kOfShard = 8;
  return kOfProcess + kOfShard * options.shards;
}

absl::Status CheckDescriptors(size_t wanted) {
  std::vector<rdma::UniqueFd> opened;
  while (opened.size() < wanted) {
    rdma::UniqueFd fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (fd.valid()) {
      opened.push_back(std::move(fd));
      continue;
    }
    if (errno != EMFILE && errno != ENFILE) return absl::OkStatus();  // another error
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    return absl::ResourceExhaustedError(absl::StrCat(
        "verbenad needs ", wanted, " free descriptors to start, and more for workers; there are ",
        opened.size(), " (", std::strerror(errno), "; the limit is ", limit.rlim_cur,
        "); raise it (ulimit -n, LimitNOFILE= of systemd)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLimits(const NodeOptions& options) {
  rlimit size = {};
  if (getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur != RLIM_INFINITY) {
    // Once, at the start.
    spdlog::warn(
        "files may have {} bytes at most (RLIMIT_FSIZE, ulimit -f): state, checkpoints and cold "
        "rows beyond that fail with 'File too large'",
        size.rlim_cur);
  }
  if (absl::Status status = CheckDescriptors(DescriptorsOf(options)); !status.ok()) return status;
  return CheckGrpcThreadRoom(ThreadsOf(options), "verbenad");
}

void WarnOfPinning(uint32_t shards, size_t processors) {
  if (processors == 0) {
    // Once, at the start.
    spdlog::warn("--pin: the processors that this process may use are not known; not pinned");
  } else if (shards > processors) {
    // Once, at the start.
    spdlog::warn(
        "--pin: {} shards on {} processors that this process may use: some share one; use fewer "
        "--shards, or allow more processors",
        shards, processors);
  }
}

}  // namespace verbena::server
