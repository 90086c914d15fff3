// A snapshot of a cluster, as the operator's command line has read it.
//
// **Thread safety**: plain data.
#ifndef VERBENA_SERVER_CLI_VERBENA_CLUSTER_STATE_H_
#define VERBENA_SERVER_CLI_VERBENA_CLUSTER_STATE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::cli {

// More than any server has: limits the output of a report for a wrong view.
inline constexpr uint32_t kMostShards = 1024;

// A server of the view, and its own report.
struct ServerState {
  v1::Server server;
  // FAILED_PRECONDITION: another process answered at its address; any other error: it did not
  // answer. The message is safe to print.
  absl::StatusOr<v1::GetStatisticsResponse> statistics = absl::UnknownError("not asked");
  double read_at = 0;  // seconds of a steady clock
};

struct ClusterState {
  std::string coordinator;  // host:port it was asked at
  absl::Time time;          // when, for people
  double read_at = 0;       // the same in seconds of a steady clock
  v1::ClusterView view;
  std::vector<ServerState> servers;  // in the view's order
  std::vector<v1::FailingCheckpoint> failing_checkpoints;
  std::vector<v1::FullServer> full_servers;
  v1::ProtocolRange coordinator_protocol;
  std::string coordinator_version;
  // Not OK: the view is an older one, because the coordinator did not answer this time.
  absl::Status coordinator_status;
};

// Servers whose statistics are missing.
inline int Unanswered(const ClusterState& state) {
  int count = 0;
  for (const ServerState& server : state.servers) count += server.statistics.ok() ? 0 : 1;
  return count;
}

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_CLUSTER_STATE_H_
