// The swarm's model of one table: for each unit (a chunk, or a row) the amount that was pushed to
// it, and the part of the amount that was acknowledged.
//
// Every push adds a small integer, times the rate (swarm_rates.h), to all numbers of a unit, so
// that the unit's value is a sum that f32 holds exactly. A unit has one writer at a time: its
// worker slot's process, or the next one.
//
// Steps of a sync table, whose units all workers push to, are modelled by swarm_steps.h.
//
// The model follows the coordinator's view: a partition that is lost there is lost here, and one
// that is not lost any more starts again from initial values.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_TABLE_H_
#define VERBENA_TESTS_CLUSTER_SWARM_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "tests/cluster/swarm_plan.h"
#include "tests/cluster/swarm_states.h"
#include "tests/cluster/swarm_steps.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::test {

// A specification of any kind that the plan's features allow.
v1::TableSpec DrawTableSpec(const SwarmPlan& plan, std::mt19937_64* random);
// Makes it a sync table, at times one with a norm over several chunks, where the job may have some.
void DrawSteps(const SwarmPlan& plan, const SwarmJobPlan& job, std::mt19937_64* random,
               v1::TableSpec* spec);

class SwarmTable {
 public:
  struct Unit {
    uint64_t key = 0;  // of a row
    uint32_t partition = 0;
    int64_t acknowledged = 0, attempted = 0;
    int64_t seen = 0;  // the greatest value that a read has shown
    float start = 0;   // the initial value
  };

  // `revision`: of the first view that has it.
  SwarmTable(const v1::Table& table, uint64_t revision);

  uint32_t id() const { return id_; }
  const v1::TableSpec& spec() const { return spec_; }
  bool embedding() const { return spec_.dim() > 0; }
  const std::vector<Unit>& units() const { return units_; }
  uint64_t first_element(uint32_t chunk) const { return uint64_t{chunk} * chunk_elements_; }
  // Rows of a partition that an eviction by number leaves, once there have been so many; 0: the
  // table has none.
  uint32_t rows_left() const { return rows_left_; }
  // Numbers of a unit.
  uint64_t elements(uint32_t unit) const;
  uint32_t parameter_bytes() const { return parameter_bytes_; }
  uint32_t gradient_bytes() const { return gradient_bytes_; }
  // Null: it has no steps.
  SwarmSteps* steps() const { return steps_.get(); }
  // Steps in the checkpoint that the table was made from.
  uint64_t restored_steps() const { return restored_steps_; }
  bool clipped() const { return spec_.optimizer().clip_global_norm() > 0; }
  // The amount that a worker of a job with `workers` pushes: the mean over them is exact, too.
  int64_t PushedAmount(int64_t drawn, uint32_t workers) const;
  // The units that worker slot `slot` of `slots` pushes to: [first, second).
  std::pair<uint32_t, uint32_t> OwnedBy(uint32_t slot, uint32_t slots) const;

  // ---- the view ----
  // Follows the same table in a later view. Returns the partitions that it has newly lost.
  std::vector<uint32_t> Follow(const v1::Table& table, uint64_t revision);
  // It is made from a checkpoint, and read by nobody before it has all of that.
  bool restoring() const { return restoring_; }
  // It may have the rate of a table of another job.
  bool from_checkpoint() const { return from_checkpoint_; }
  // The table is restored: the initial value of each unit, and the rates that the checkpoint may
  // have.
  void Restored(const std::vector<float>& values, const SwarmRates& rates);
  void Drop(int64_t now_ns) { dropped_ns_ = now_ns; }
  bool dropped() const { return dropped_ns_.has_value(); }
  // A name may have been this table's at some time since then.
  bool served_since(int64_t ns) const { return !restoring_ && dropped_ns_.value_or(ns) >= ns; }
  bool lost_any() const { return !lost_.empty(); }
  bool lost(uint32_t partition) const { return lost_.contains(partition); }
  bool ever_lost(uint32_t partition) const { return lost(partition) || lives_[partition] > 0; }
  // The revision of the view in which the partition began again; 0: it never did.
  uint64_t reset_revision(uint32_t partition) const { return resets_[partition]; }
  bool ever_lost_any() const {
    return lost_any() ||
           std::any_of(lives_.begin(), lives_.end(), [](uint32_t life) { return life > 0; });
  }
  // Grows when the partition starts again.
  uint32_t life(uint32_t partition) const { return lives_[partition]; }

  // ---- pushes and reads ----
  void Attempt(uint32_t unit, int64_t amount) { units_[unit].attempted += amount; }
  void Acknowledge(uint32_t unit, int64_t amount, uint32_t life);
  // The change of the unit by a push that comes after so many changes of the rate.
  SwarmBounds Gain(uint32_t unit, int64_t amount, uint64_t changes) const;
  // A push that was counted so may have no more than that after all.
  void Reconsider(uint32_t unit, int64_t counted, int64_t most, uint32_t life);
  // Whether a unit may be assigned: all numbers that it may have then are exact.
  bool MayAssign(uint32_t unit) const;
  // Not for a sync table: a worker assigns the unit the sum of all attempted pushes and `amount`.
  // Returns this value, and the increase of the acknowledged amount. Pushes that others have
  // attempted may still be added.
  std::pair<int64_t, int64_t> AttemptAssign(uint32_t unit, int64_t amount);
  // Whether workers may change the rate, and every sum stays exact.
  bool MayChangeRate() const;
  SwarmRates& rates() { return rates_; }
  // The state that workers may assign; none while it is restored.
  SwarmStates& states() { return states_; }
  const SwarmStates& states() const { return states_; }
  const SwarmRates& rates() const { return rates_; }
  // Whether every acknowledged push shows in reads, exactly.
  bool exact() const { return exact_ && complete_; }
  // Whether acknowledged pushes stay.
  bool complete() const { return complete_; }
  // Whether another push can be counted exactly.
  bool MayPush(uint32_t unit) const { return units_[unit].attempted < most_; }
  // The least value that a read which begins now must show.
  double Least(uint32_t unit) const;
  // `values`: the unit's numbers; `bag`: as a bag of one row shows them, which servers sum in f32.
  // Returns the problem with them, or an empty string.
  std::string Check(uint32_t unit, absl::Span<const float> values, double least, uint32_t life,
                    bool bag);
  // The same for the values of a checkpoint, which are not rounded as for readers.
  std::string CheckSaved(uint32_t unit, float value, double least, uint32_t life) const;
  // The same for a sync table, whose saved values are those after so many steps of a generation.
  std::string CheckSavedStep(uint32_t unit, float value, uint64_t steps, uint32_t generation,
                             uint32_t life) const;

  // Whether a read has shown more than a reader sees of a chunk with that content.
  bool ShowsMore(float read, float content) const {
    return read > Shown(static_cast<double>(content));
  }

 private:
  void MakeSteps();
  // As a reader sees an exact value.
  float Shown(double value) const;
  float Shown(double value, bool bag) const {
    return bag ? static_cast<float>(value) : Shown(value);
  }

  const uint32_t id_;
  const v1::TableSpec spec_;
  const uint64_t restored_steps_;
  uint32_t chunk_elements_ = 0;
  uint64_t elements_ = 0;
  uint32_t parameter_bytes_ = 4, gradient_bytes_ = 4;
  int64_t most_ = 0;      // up to it every sum is exact
  bool exact_ = true;     // values are sums
  bool complete_ = true;  // nothing acknowledged may be missing
  bool keeps_rows_ = true;
  uint32_t rows_left_ = 0;
  bool narrow_ = false;  // readers see numbers rounded to bf16
  std::vector<Unit> units_;
  SwarmRates rates_;
  SwarmStates states_;
  std::unique_ptr<SwarmSteps> steps_;
  std::vector<uint32_t> lives_;   // by partition
  std::vector<uint64_t> resets_;  // likewise: reset_revision()
  std::set<uint32_t> lost_;
  std::optional<int64_t> dropped_ns_;
  bool restoring_ = false, from_checkpoint_ = false;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_TABLE_H_
