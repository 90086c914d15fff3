// Progress of each job's sync tables: reads the coordinator's view and every server's statistics.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CHECKPOINT_STEP_WATCH_H_
#define VERBENA_SERVER_CHECKPOINT_STEP_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/control/control_channel.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

class StepWatch {
 public:
  // By job, the step of the table that is farthest, counted as in checkpoints.
  using Steps = std::map<std::string, uint64_t>;
  // `view`: the coordinator's, from before the statistics; null: it has not answered, and there are
  // no steps.
  using Done = std::function<void(const v1::ClusterView* view, const Steps& steps)>;

  StepWatch(std::string coordinator, ControlChannel* control)  // which outlives it
      : coordinator_(std::move(coordinator)), control_(*control) {}
  ~StepWatch() { *alive_ = false; }

  // Not while a call is in flight. A server that does not answer is left out this time.
  void Ask(Done done);

 private:
  void OnView(absl::StatusOr<v1::GetViewResponse> response);
  void OnStatistics(const absl::StatusOr<v1::GetStatisticsResponse>& response);

  const std::string coordinator_;
  ControlChannel& control_;
  Done done_;
  v1::ClusterView view_;
  Steps steps_;
  size_t asked_ = 0;  // servers that have not answered
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_STEP_WATCH_H_
