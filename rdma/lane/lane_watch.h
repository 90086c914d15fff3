// Supervises a WorkerLane for its owner: opening must end in time, a silent lane is probed, and
// writes must complete.
//
// States: connecting -> granting -> open, like the lane; a closing lane is not supervised. While a
// lane connects, its transport's own timeouts apply (Endpoint::Connect() ends in kEstablished or
// kFailed). With many lanes at once, all stages together may exceed the timeout of one stage.
//
// **Thread safety**: one owner thread, the lane's.
//
// Invariants:
//  1. A lane with unanswered records and no completion for an interval has been probed: its server
//     may have dropped it in an outage that also dropped the notification. (A shard needs no probe:
//     the worker's next lane, or the end of its lease, closes a lane that it missed.)
#ifndef VERBENA_RDMA_LANE_LANE_WATCH_H_
#define VERBENA_RDMA_LANE_LANE_WATCH_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "rdma/lane/worker_lane.h"

namespace verbena::rdma {

class LaneWatch {
 public:
  // Limit of each of two stages of opening a lane: the request, and the grant after connecting.
  static constexpr int64_t kOpenTimeoutNanos = 5'000'000'000;

  // A lane was granted and connects.
  void Opening(int64_t now);
  void Opened(int64_t now);
  // Call for each completion of the lane.
  void Heard() { ++heard_; }

  // When Check() is due. It does not depend on pending records, so the first one after a pause
  // changes no timer.
  int64_t due() const { return due_; }
  // Not OK: the lane is unusable and must be closed with this status. `transport`: name for
  // messages.
  absl::Status Check(WorkerLane* lane, std::string_view transport, int64_t now);

  // Time of the last received completion, rounded up to the interval.
  int64_t heard_at() const { return heard_at_; }

 private:
  absl::Status CheckOpening(const WorkerLane& lane, int64_t now);

  bool granting_ = false;
  bool open_ = false;
  int64_t due_ = 0;
  uint64_t heard_ = 0;
  uint64_t heard_before_ = 0;  // at the last check
  int64_t heard_at_ = 0;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_LANE_WATCH_H_
