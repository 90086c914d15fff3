// The store of a node's coordinator, and the logging of its failures.
//
// **Thread safety**: a free function, of any thread.
#ifndef VERBENA_SERVER_NODE_STATE_H_
#define VERBENA_SERVER_NODE_STATE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/coordinator/watched_store.h"
#include "server/node_options.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// In the directory --state, or in memory without one. Errors of SqliteStore::Open().
absl::StatusOr<std::unique_ptr<WatchedStore>> OpenStateStore(const NodeOptions& options);

// Logs the settings that a coordinator has taken from its state and from its options.
void LogSettings(const v1::ClusterView& view, const NodeOptions& options);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_NODE_STATE_H_
