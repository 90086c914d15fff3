// Watches over a WorkerLane for whoever opened it: that it opens in time, that a lane which has
// gone quiet is asked whether the shard's end is still there, that its writes end.
//
// States: connecting -> granting -> open, as the lane's; nothing is watched once it closes. While a
// lane connects, its transport's own timeouts hold (Endpoint::Connect() ends in kEstablished or
// kFailed): with many lanes at once, all stages together may take longer than any of them may.
//
// **Thread safety**: one owner thread, the lane's.
//
// Invariants:
//  1. A lane with records unanswered and nothing heard for an interval has been probed: its server
//     may have dropped it in an outage that kept the news from coming through. (A shard needs no
//     probe: the worker's next lane, or the end of its lease, closes a lane that it missed.)
#ifndef VERBENA_RDMA_LANE_LANE_WATCH_H_
#define VERBENA_RDMA_LANE_LANE_WATCH_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "rdma/lane/worker_lane.h"

namespace verbena::rdma {

class LaneWatch {
 public:
  // Of a stage of opening a lane: asking for it; the grant, once it is connected.
  static constexpr int64_t kOpenTimeoutNanos = 5'000'000'000;

  // A lane was granted and connects.
  void Opening(int64_t now);
  void Opened(int64_t now);
  // A completion of the lane.
  void Heard() { ++heard_; }

  // When Check() is due. Whether or not there are records: the first one after a pause changes no
  // timer.
  int64_t due() const { return due_; }
  // Not OK: the lane is of no use any more, and is to be closed with that. `transport`: for people.
  absl::Status Check(WorkerLane* lane, std::string_view transport, int64_t now);

  // No later than this something came over it: to the interval.
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
