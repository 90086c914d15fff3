// The store of a node's coordinator, or the office of one that is elected, and the logging of
// failures.
//
// **Thread safety**: a free function, of any thread.
#ifndef VERBENA_SERVER_NODE_STATE_H_
#define VERBENA_SERVER_NODE_STATE_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "rdma/base/clock.h"
#include "server/coordinator/etcd/elected_office.h"
#include "server/coordinator/watched_store.h"
#include "server/node_options.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// In the directory --state, or in memory without one. Errors of SqliteStore::Open().
absl::StatusOr<std::unique_ptr<WatchedStore>> OpenStateStore(const NodeOptions& options);

// The office of a coordinator that is elected by etcd. `changed` is called by any thread.
absl::StatusOr<std::unique_ptr<ElectedOffice>> OpenOffice(const NodeOptions& options,
                                                          const CoordinatorOptions& coordinator,
                                                          const Clock* clock,
                                                          std::function<void()> changed);

// Logs the settings that a coordinator has taken from its state and from its options.
void LogSettings(const v1::ClusterView& view, const NodeOptions& options);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_NODE_STATE_H_
