// Reads the coordinator's view and the load of every live server.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_BALANCE_LOAD_WATCH_H_
#define VERBENA_SERVER_BALANCE_LOAD_WATCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "proto/control/control_channel.h"
#include "server/balance/cluster_load.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

struct ClusterLoad {
  v1::ClusterView view;
  ServerReports reports;
  std::set<uint64_t> full;  // servers that had no memory for a replica
};

class LoadWatch {
 public:
  // UNAVAILABLE: the coordinator or a live server did not answer.
  using Done = std::function<void(absl::StatusOr<ClusterLoad> load)>;

  LoadWatch(std::string coordinator, ControlChannel* control)  // which outlives it
      : coordinator_(std::move(coordinator)), control_(*control) {}
  ~LoadWatch() { *alive_ = false; }

  // Not while a call is in flight.
  void Ask(Done done);

 private:
  void OnView(absl::StatusOr<v1::GetViewResponse> response);
  void OnReport(const v1::Server& server, absl::StatusOr<v1::GetStatisticsResponse> response);

  const std::string coordinator_;
  ControlChannel& control_;
  Done done_;
  ClusterLoad load_;
  absl::Status problem_;  // of a server
  size_t asked_ = 0;      // servers that have not answered
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_BALANCE_LOAD_WATCH_H_
