#include "server/node_state.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "server/access/peer_log.h"
#include "server/coordinator/sqlite_store.h"

namespace verbena::server {

namespace {

// Of a store that fails and recovers.
WatchedStore::Say SayFailures() {
  const auto failures = Bounded([](const std::string& text) { spdlog::error("{}", text); });
  const auto recoveries = Bounded([](const std::string& text) { spdlog::info("{}", text); });
  return [failures, recoveries](bool failing, const std::string& text) {
    (failing ? failures : recoveries)(text);
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<WatchedStore>> OpenStateStore(const NodeOptions& options) {
  std::unique_ptr<Store> store;
  if (options.state.empty()) {
    // Once a process life.
    spdlog::warn("no --state: the coordinator's state is lost when it ends");
    store = std::make_unique<MemoryStore>();
  } else {
    absl::StatusOr<std::unique_ptr<SqliteStore>> opened = SqliteStore::Open(options.state);
    if (!opened.ok()) return opened.status();
    store = *std::move(opened);
  }
  return std::make_unique<WatchedStore>(std::move(store), SayFailures());
}

absl::StatusOr<std::unique_ptr<ElectedOffice>> OpenOffice(const NodeOptions& options,
                                                          const CoordinatorOptions& coordinator,
                                                          const Clock* clock,
                                                          std::function<void()> changed) {
  // Leaders may change as often as etcd fails.
  const auto losses = Bounded([](const std::string& text) { spdlog::warn("{}", text); });
  const auto offices = Bounded([](const std::string& text) { spdlog::info("{}", text); });
  return ElectedOffice::Create(
      options.etcd, coordinator, clock, SayFailures(), std::move(changed),
      [losses, offices](bool bad, const std::string& text) { (bad ? losses : offices)(text); });
}

void LogSettings(const v1::ClusterView& view, const NodeOptions& options) {
  // Once a process life.
  spdlog::info(
      "cluster {}: {} partitions, {} replicas of each, pushes wait below {}, {} servers expected",
      view.cluster_id(), view.partitions_size(), view.replicas(), view.min_replicas(),
      view.expected_servers());
  if (static_cast<uint32_t>(view.partitions_size()) != options.partitions) {
    // Once a process life.
    spdlog::warn("--partitions {}: without effect; the cluster keeps its {} partitions",
                 options.partitions, view.partitions_size());
  }
  if (!options.accept_older_state.empty() && !view.terms().rbegin()->accepted()) {
    // Once an office.
    spdlog::warn(
        "--accept-older-state {}: without effect: the state has no such term, or was accepted "
        "before",
        options.accept_older_state);
  }
}

}  // namespace verbena::server
