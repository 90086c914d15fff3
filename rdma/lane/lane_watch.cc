#include "rdma/lane/lane_watch.h"

#include "absl/strings/str_cat.h"
#include "rdma/lane/write_watch.h"

namespace verbena::rdma {

void LaneWatch::Opening(int64_t now) {
  granting_ = open_ = false;
  due_ = now + WriteWatch::kIntervalNanos;
}

void LaneWatch::Opened(int64_t now) {
  open_ = true;
  heard_at_ = now;
  due_ = now + WriteWatch::kIntervalNanos;
}

absl::Status LaneWatch::CheckOpening(const WorkerLane& lane, int64_t now) {
  if (granting_) {
    return absl::UnavailableError(
        absl::StrCat("the lane is connected, but its shard did not grant it within ",
                     kOpenTimeoutNanos / 1'000'000'000, " s"));
  }
  granting_ = lane.state() != WorkerLane::State::kConnecting;
  due_ = now + (granting_ ? kOpenTimeoutNanos : WriteWatch::kIntervalNanos);
  return absl::OkStatus();
}

absl::Status LaneWatch::Check(WorkerLane* lane, std::string_view transport, int64_t now) {
  if (now < due_) return absl::OkStatus();
  if (!open_) return CheckOpening(*lane, now);
  due_ = now + WriteWatch::kIntervalNanos;
  if (heard_ != heard_before_) {
    heard_before_ = heard_;
    heard_at_ = now;
  } else if (lane->unanswered_count() > 0) {
    lane->Probe();
  }
  if (!lane->WritesHang(now, WriteWatch::kTimeoutNanos)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "writes over ", absl::string_view(transport.data(), transport.size()),
      " have been in flight for ", WriteWatch::kTimeoutNanos / WriteWatch::kIntervalNanos,
      " s and none has ended"));
}

}  // namespace verbena::rdma
