// At which step a save takes each sync table: one that training comes to soon, and the same for all
// that count the same steps.
//
// **Thread safety**: one owner.
#ifndef VERBENA_SERVER_SAVES_STEP_CHOICE_H_
#define VERBENA_SERVER_SAVES_STEP_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace verbena::server {

// The shards are asked twice what they are at. If nothing has moved in between, nobody is past the
// newest steps, and there may never come others: those are saved. Else it is a step that training
// comes to soon. Shards may be past it when they are told (TooLate), or training may have stopped
// before it (StoodStill).
//
// Tables of one training are at the same step, give or take what it moves between two answers, and
// are saved at the same one. One that counts by itself (made later, or trained by others), or that
// nobody trains any more, is saved at a step of its own.
class StepChoice {
 public:
  explicit StepChoice(size_t tables = 0) : newest_(tables), moved_(tables), steps_(tables) {}

  size_t tables() const { return steps_.size(); }
  // Whether shards are to be asked what they are at; else steps() are chosen.
  bool looking() const { return looks_ < 2; }
  const std::vector<uint64_t>& steps() const { return steps_; }

  // The newest step of each table, of all shards.
  void Looked(absl::Span<const uint64_t> newest);
  // A shard is past its step: chooses others, farther ahead each time. False: that was often
  // enough.
  bool TooLate(absl::Span<const uint64_t> newest);
  // What was waited for has not come for that long: looks anew. In the end tables that stand still
  // are saved where they stand.
  void StoodStill();
  int64_t still_nanos() const;

 private:
  void Choose();

  int looks_ = 0;
  int late_ = 0;   // how often in a row
  int stood_ = 0;  // how often
  std::vector<uint64_t> newest_;
  std::vector<uint64_t> moved_;  // since the look before
  std::vector<uint64_t> steps_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_SAVES_STEP_CHOICE_H_
