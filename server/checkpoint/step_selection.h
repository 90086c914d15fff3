// Chooses the step at which a checkpoint takes each sync table: one that training will reach soon,
// and the same for all tables that count the same steps.
//
// **Thread safety**: one owner.
#ifndef VERBENA_SERVER_CHECKPOINT_STEP_SELECTION_H_
#define VERBENA_SERVER_CHECKPOINT_STEP_SELECTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace verbena::server {

// The shards are asked twice for their steps. If no step has changed in between, no shard is past
// the newest steps, and there may be no more steps: those are saved. Otherwise it chooses a step
// that training will reach soon. Shards may be past it when the request arrives (TooLate), or
// training may have stopped before it (StoodStill).
//
// Tables of one training are at the same step, apart from the steps between two answers, and are
// saved at the same step: one to whose next step a worker has contributed is in the middle of a
// step of the training, and waits for it also if it stands still. A table with its own count (made
// later, or trained by others), or that is no longer trained, is saved at a step of its own, as far
// ahead as its own training moves. Without workers no table moves, and each is saved where it is.
class StepChoice {
 public:
  explicit StepChoice(size_t tables = 0)
      : late_(tables), newest_(tables), moved_(tables), open_(tables), steps_(tables) {}

  size_t tables() const { return steps_.size(); }
  // Whether shards are to be asked for their steps; else steps() are chosen.
  bool looking() const { return looks_ < 2; }
  const std::vector<uint64_t>& steps() const { return steps_; }

  // The newest step of each table, of all shards. open: a worker has contributed to the next one.
  void Looked(absl::Span<const uint64_t> newest, const std::vector<bool>& open);
  // A shard is past its step: chooses others, farther ahead each time. False: that was often
  // enough.
  bool TooLate(absl::Span<const uint64_t> newest);
  // The step was not reached for that long: looks anew. In the end tables that stand still are
  // saved at their current step.
  void StoodStill();
  int64_t still_nanos() const;
  int stood() const { return stood_; }  // how often
  // Whether there are workers that make steps. True at first.
  void SetTrained(bool trained) { trained_ = trained; }
  bool trained() const { return trained_; }

 private:
  void Choose();
  // Steps ahead for tables that have moved `moved` steps since the previous look, and were too late
  // `late` times.
  static uint64_t Ahead(uint64_t moved, int late);

  bool trained_ = true;
  int looks_ = 0;
  int tries_ = 0;          // that were too late in a row
  int stood_ = 0;          // how often
  std::vector<int> late_;  // in how many of the tries the table was past its step
  std::vector<uint64_t> newest_;
  std::vector<uint64_t> moved_;  // since the look before
  std::vector<bool> open_;
  std::vector<uint64_t> steps_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_STEP_SELECTION_H_
