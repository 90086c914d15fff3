// Records from the lanes to the engine, and its answers to the lanes.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_REQUEST_DISPATCH_H_
#define VERBENA_SERVER_EXECUTOR_REQUEST_DISPATCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rdma/lane/shard_lane.h"
#include "server/executor/lane_state.h"
#include "shard/operations/operations.h"

namespace verbena::server {

struct ShardCore;

class RequestDispatch {
 public:
  explicit RequestDispatch(ShardCore* core) : core_(*core) { completions_.resize(64); }

  // Takes completions of the transport, and handles the records among them.
  bool Poll(size_t transport);
  // Answers the request, or has it wait.
  void Handle(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  // Handles the engine's events.
  bool DrainEngine();

 private:
  void Dispatch(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  shard::Outcome HandleByEngine(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  // A pull that a follower may answer: it does, or refuses so that the primary is asked.
  void AnswerAsFollower(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  // Performs the outcome that the handler of the request's operation returned.
  void Act(Lane* lane, const rdma::ShardLane::Arrival& arrival, const shard::Outcome& outcome);
  // At most half of a lane's operations may wait, so that pushes always get through. Beyond that, a
  // request is answered if it can be at once, and otherwise the worker has to ask again.
  bool MayDefer(const Lane& lane) const {
    return lane.deferred < std::max(lane.lane->params().config.operations / 2, 1u);
  }
  void OnEngineEvent(const shard::Event& event);

  ShardCore& core_;
  // Reused, so that the hot path does not allocate.
  std::vector<rdma::Completion> completions_;
  std::vector<shard::Event> engine_events_;
  std::vector<uint64_t> written_;
  shard::Scratch scratch_;
  rdma::ShardLane::Arrival arrival_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_REQUEST_DISPATCH_H_
