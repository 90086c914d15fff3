// Reads the state of a cluster from its coordinator and servers.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. No call waits longer than the timeout or beyond set_end(); all servers are called at the same
//  time.
//  2. An interrupt ends every wait at once, with CANCELLED.
#ifndef VERBENA_SERVER_CLI_VERBENA_CLUSTER_READER_H_
#define VERBENA_SERVER_CLI_VERBENA_CLUSTER_READER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cli/verbena/cluster_state.h"
#include "server/cli/verbena/coordinator_call.h"

namespace verbena::cli {

class ClusterReader {
 public:
  // Its channel outlives the reader.
  explicit ClusterReader(Coordinator coordinator);

  // The coordinator's view and, `with_servers`, the statistics of each server in it. A server that
  // does not respond is in the result, with the reason. The error has the coordinator's problem and
  // the fix. With an `earlier` state, that state's view is used instead of the coordinator's.
  absl::StatusOr<ClusterState> Read(bool with_servers, const ClusterState* earlier = nullptr);
  // Servers report the bytes of their partitions, too.
  void WantPartitions() { partitions_ = true; }
  // Later calls end by `end`, too.
  void set_end(absl::Time end) { end_ = end; }
  // CANCELLED when interrupted before the time is over.
  absl::Status Sleep(absl::Duration time);

 private:
  absl::StatusOr<v1::GetViewResponse> ReadView();
  absl::StatusOr<std::vector<ServerState>> ReadServers(const v1::ClusterView& view);

  // The coordinator, with a timeout that is over by end_.
  Coordinator Bounded() const;

  const Coordinator coordinator_;
  absl::Time end_ = absl::InfiniteFuture();
  bool partitions_ = false;
};

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_CLUSTER_READER_H_
