#include "server/checkpoint/step_selection.h"

#include <algorithm>

#include "server/checkpoint/files/failpoints.h"

namespace verbena::server {
namespace {

// More each time that shards were too late, doubled.
constexpr int kMostLate = 24;
constexpr int kMostDoublings = 10;
// After so many waits, some 45 seconds, a table counts as no longer trained.
constexpr int kAbandonedAfter = 4;
// Training that was seen to make a step between two calls makes some in this time.
constexpr int64_t kStillNanos = 3'000'000'000;
// Tables that are so close, and as far as training moves in several calls, count the same steps.
constexpr uint64_t kNear = 64;
constexpr uint64_t kNearMoves = 8;
// So close are tables of one training in any case: one may be in the middle of a step.
constexpr uint64_t kNearest = 8;
constexpr uint64_t kNearestMoves = 2;

}  // namespace

void StepChoice::Looked(absl::Span<const uint64_t> newest, const std::vector<bool>& open) {
  open_ = open;
  for (size_t t = 0; t < newest_.size(); ++t) {
    const uint64_t now = std::max(newest_[t], newest[t]);
    moved_[t] = now - newest_[t];
    newest_[t] = now;
  }
  if (++looks_ == 2) Choose();
}

bool StepChoice::TooLate(absl::Span<const uint64_t> newest) {
  if (++tries_ > kMostLate) return false;
  bool any = false;
  for (size_t t = 0; t < newest_.size(); ++t) {
    const bool past = newest[t] > steps_[t];
    late_[t] += past ? 1 : 0;
    any |= past;
    if (newest[t] <= newest_[t]) continue;
    moved_[t] = newest[t] - newest_[t];
    newest_[t] = newest[t];
  }
  // A shard was past its step, and did not name the table: it may be any table.
  for (int& late : late_) late += any ? 0 : 1;
  Choose();
  return true;
}

void StepChoice::StoodStill() {
  looks_ = tries_ = 0;
  std::fill(late_.begin(), late_.end(), 0);
  ++stood_;
}

int64_t StepChoice::still_nanos() const { return kStillNanos << std::min(stood_, kMostDoublings); }

uint64_t StepChoice::Ahead(uint64_t moved, int late) {
  if (late > 0) return uint64_t{1} << (late - 1);
  return moved == 0 ? 0 : 2 * moved + 1;
}

void StepChoice::Choose() {
  if (steps_.empty()) return;
  const uint64_t front = *std::max_element(newest_.begin(), newest_.end());
  const uint64_t moved = *std::max_element(moved_.begin(), moved_.end());
  // Closer each time that one of them did not come there.
  const bool one_pace = VERBENA_FAILPOINT(checkpoint, checkpoint_at_one_pace);
  const int halvings = one_pace ? 0 : std::min(std::max(stood_ - 1, 0), 63);
  const uint64_t nearest =
      std::max((kNear + kNearMoves * moved) >> halvings, kNearest + kNearestMoves * moved);
  const auto near = [&](size_t t) { return front - newest_[t] <= nearest; };
  uint64_t moved_near = 0;
  int late_near = 0;
  for (size_t t = 0; t < steps_.size(); ++t) {
    if (!near(t) && !one_pace) continue;
    moved_near = std::max(moved_near, moved_[t]);
    late_near = std::max(late_near, late_[t]);
  }
  for (size_t t = 0; t < steps_.size(); ++t) {
    const bool stands = moved_[t] == 0;
    if (open_[t] && near(t) && (!trained_ || stands) &&
        !VERBENA_FAILPOINT(checkpoint, checkpoint_inside_step)) {
      steps_[t] = front + (trained_ ? Ahead(moved_near, late_near) : 0);
    } else if (!trained_ || (stands && (stood_ >= kAbandonedAfter || !near(t)))) {
      steps_[t] = newest_[t];
    } else if (near(t)) {
      steps_[t] = front + Ahead(moved_near, late_near);
    } else {
      steps_[t] =
          newest_[t] + (one_pace ? Ahead(moved_near, late_near) : Ahead(moved_[t], late_[t]));
    }
  }
}

}  // namespace verbena::server
