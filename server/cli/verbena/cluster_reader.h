// Asks a cluster's coordinator and servers what they know.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. No call waits longer than the timeout; all servers are asked at the same time.
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

  // The coordinator's view and, `with_servers`, what each server of it says; one that does not
  // answer is in the result, with the reason. The error says what is wrong with the coordinator,
  // and what to try; with an `earlier` state its view is taken instead.
  absl::StatusOr<ClusterState> Read(bool with_servers, const ClusterState* earlier = nullptr);
  // CANCELLED when interrupted before the time is over.
  absl::Status Sleep(absl::Duration time);

 private:
  absl::StatusOr<v1::GetViewResponse> ReadView();
  absl::StatusOr<std::vector<ServerState>> ReadServers(const v1::ClusterView& view);

  const Coordinator coordinator_;
};

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_CLUSTER_READER_H_
