#include "server/saves/step_choice.h"

#include <algorithm>

namespace verbena::server {
namespace {

// More each time that shards were too late, doubled.
constexpr int kMostLate = 24;
constexpr int kMostDoublings = 10;
// After so many waits, some 45 seconds, a table is taken for one that is not trained any more.
constexpr int kAbandonedAfter = 4;
// Training that was seen to make a step between two calls makes some in this time.
constexpr int64_t kStillNanos = 3'000'000'000;
// Tables that are so close, and as far as training moves in several calls, count the same steps.
constexpr uint64_t kNear = 64;
constexpr uint64_t kNearMoves = 8;

}  // namespace

void StepChoice::Looked(absl::Span<const uint64_t> newest) {
  for (size_t t = 0; t < newest_.size(); ++t) {
    const uint64_t now = std::max(newest_[t], newest[t]);
    moved_[t] = now - newest_[t];
    newest_[t] = now;
  }
  if (++looks_ == 2) Choose();
}

bool StepChoice::TooLate(absl::Span<const uint64_t> newest) {
  if (++late_ > kMostLate) return false;
  for (size_t t = 0; t < newest_.size(); ++t) {
    if (newest[t] <= newest_[t]) continue;
    moved_[t] = newest[t] - newest_[t];
    newest_[t] = newest[t];
  }
  Choose();
  return true;
}

void StepChoice::StoodStill() {
  looks_ = late_ = 0;
  ++stood_;
}

int64_t StepChoice::still_nanos() const { return kStillNanos << std::min(stood_, kMostDoublings); }

void StepChoice::Choose() {
  if (steps_.empty()) return;
  const uint64_t front = *std::max_element(newest_.begin(), newest_.end());
  const uint64_t moved = *std::max_element(moved_.begin(), moved_.end());
  uint64_t ahead = moved == 0 ? 0 : 2 * moved + 1;
  if (late_ > 0) ahead = uint64_t{1} << (late_ - 1);
  for (size_t t = 0; t < steps_.size(); ++t) {
    const bool stands = moved_[t] == 0;
    const bool near = front - newest_[t] <= kNear + kNearMoves * moved;
    if (stands && (stood_ >= kAbandonedAfter || !near)) {
      steps_[t] = newest_[t];
    } else {
      steps_[t] = (near ? front : newest_[t]) + ahead;
    }
  }
}

}  // namespace verbena::server
