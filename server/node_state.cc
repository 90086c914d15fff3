#include "server/node_state.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "server/coordinator/sqlite_store.h"

namespace verbena::server {

absl::StatusOr<std::unique_ptr<WatchedStore>> OpenStateStore(const NodeOptions& options) {
  std::unique_ptr<Store> store;
  if (options.state.empty()) {
    spdlog::warn("no --state: what the coordinator knows is lost when it ends");
    store = std::make_unique<MemoryStore>();
  } else {
    absl::StatusOr<std::unique_ptr<SqliteStore>> opened = SqliteStore::Open(options.state);
    if (!opened.ok()) return opened.status();
    store = *std::move(opened);
  }
  return std::make_unique<WatchedStore>(
      std::move(store), [](bool failing, const std::string& text) {
        spdlog::log(failing ? spdlog::level::err : spdlog::level::info, "{}", text);
      });
}

void LogSettings(const v1::ClusterView& view, const NodeOptions& options) {
  spdlog::info(
      "cluster {}: {} partitions, {} copies of each, pushes wait below {}, {} servers expected",
      view.cluster_id(), view.partitions_size(), view.replicas(), view.min_replicas(),
      view.expected_servers());
  if (static_cast<uint32_t>(view.partitions_size()) != options.partitions) {
    spdlog::warn("--partitions {}: without effect; the cluster keeps its {} partitions",
                 options.partitions, view.partitions_size());
  }
}

}  // namespace verbena::server
