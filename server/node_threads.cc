#include "server/node_threads.h"

#include <spdlog/spdlog.h>

namespace verbena::server {

void WarnOfPinning(uint32_t shards, size_t processors) {
  if (processors == 0) {
    spdlog::warn("--pin: the processors that this process may use are not known; not pinned");
  } else if (shards > processors) {
    spdlog::warn(
        "--pin: {} shards on {} processors that this process may use: some share one; use fewer "
        "--shards, or allow more processors",
        shards, processors);
  }
}

int ThreadsOf(const NodeOptions& options) {
  // Of the coordinator, membership, files, checkpoints, audit log, control port and its end,
  // /metrics and /healthz.
  constexpr int kOfProcess = 9;
  constexpr int kOfRocksDb = 2;
  const int shards = static_cast<int>(options.shards);
  if (options.cold_dir.empty()) return kOfProcess + shards;
  return kOfProcess + kOfRocksDb + 2 * shards;
}

}  // namespace verbena::server
