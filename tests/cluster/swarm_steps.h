// The swarm's model of the steps of a sync table: for each unit (a chunk, or a row) and step, the
// least and the most that the step can have added, and so the bounds of each version.
//
// Readers of a table with narrow numbers see them rounded, but for bags, which servers sum in f32.
//
// A contribution adds a positive integer to all numbers of a unit. One whose push was acknowledged
// is in its step; one that was attempted is in it once or not at all. An assignment, of more than
// the unit can have, takes the place of its step's gradients; of several one counts. A step has the
// rate of its unit's partition (swarm_rates.h).
//
// With a mean, contributions are multiples of every number of workers, and a worker that has
// departed may be one of those by which the sum is divided. With clip_global_norm a step is scaled
// by one factor for all tables of the job (SwarmNorm), which has the bounds that the contributions
// of all of them give.
//
// Versions count the steps of one generation of the job; the next one begins at 0 with whatever the
// one before has left.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_STEPS_H_
#define VERBENA_TESTS_CLUSTER_SWARM_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cluster/swarm_rates.h"

namespace verbena::test {

class SwarmNorm;

class SwarmSteps {
 public:
  // `elements`: numbers of each unit. `shown`: the number that a reader sees for an exact value; it
  // is monotone. `reads_exactly`: a reader sees the value itself.
  SwarmSteps(std::vector<uint64_t> elements, bool mean, std::function<double(double)> shown,
             bool reads_exactly);
  // Its steps are clipped so that the norm over all tables of `norm` is at most `limit`.
  void Clip(const SwarmNorm* norm, double limit) { norm_ = norm, limit_ = limit; }

  // A step is scaled by the rate of its unit's partition. `partitions`: by unit.
  void Scale(const SwarmRates* rates, std::vector<uint32_t> partitions);

  // The job's next generation is `generation`. Called for all tables of a norm before FollowJob()
  // is for any: their last values depend on the steps of all.
  void Leave(uint32_t generation);
  // The job as the coordinator has it. `departed`: of the expected workers.
  void FollowJob(uint32_t generation, uint32_t expected, uint32_t departed);
  // Of an elastic job: a server commits the unit's step as one of so many workers. Returns the
  // problem with a version that was read before, or an empty string.
  std::string Divide(uint32_t generation, uint64_t step, uint32_t unit, uint32_t workers);
  uint32_t generation() const { return generation_; }
  // Steps that some worker of this generation has pushed to, or ended.
  uint64_t newest() const { return newest_; }
  // Steps that some worker that began with the first one has ended.
  uint64_t ended() const { return ended_; }
  // The unit's partition was lost, and begins again.
  void Reset(uint32_t unit);
  // It was restored: version 0 of this generation, whichever it is, is `value`.
  void Restore(uint32_t unit, double value);

  // ---- actions of workers of `generation`; those of other generations no longer count ----
  void Attempt(uint32_t generation, uint64_t step, uint32_t unit, int64_t amount);
  // Whether a worker may assign the unit in this step: not below a greater assignment of a later
  // one, after which values would fall.
  bool MayAssign(uint64_t step, uint32_t unit) const { return step >= units_[unit].last_assigned; }
  // A worker assigns the unit more than it can have by then, in steps without a norm. Returns that
  // value.
  int64_t AttemptAssign(uint32_t generation, uint64_t step, uint32_t unit);
  // The rate of steps from `step` on is another, or is known better.
  std::string RateChanged(uint64_t step);
  // Both return the problem with a version that was read before, or an empty string.
  std::string AcknowledgeAssign(uint32_t generation, uint64_t step, uint32_t unit);
  std::string Acknowledge(uint32_t generation, uint64_t step, uint32_t unit, int64_t amount);
  // first: with which the worker began.
  void End(uint32_t generation, uint64_t step, uint64_t first);
  // A worker assigns the unit's state in this step: gradients of others may not count.
  void AttemptState(uint32_t generation, uint64_t step, uint32_t unit);
  // The unit is known to have been at `version` or later.
  void Commit(uint32_t generation, uint32_t unit, uint64_t version);

  // ---- reads ----
  // The least of any read that begins now, and the most of any read that ends now.
  double Low(uint32_t unit) { return At(unit, units_[unit].known).low; }
  double High(uint32_t unit);
  // A read showed `value` as `version` of the generation. Returns the problem with it, or an empty
  // string. `exact`: it is not rounded (a bag, a checkpoint).
  std::string Check(uint32_t generation, uint32_t unit, uint64_t version, double value, bool exact);

  // The sum of squares of the numbers that a step applies, before it is clipped.
  SwarmBounds Squares(uint64_t step) const;

 private:
  struct Sum {
    int64_t certain = 0, attempted = 0;
    // The least and the greatest assignment that was attempted, and whether one was acknowledged.
    std::optional<SwarmBounds> assigned = std::nullopt;
    bool assigns = false;
    uint32_t listed = 0;  // once it is known committed: by how many workers at least
    // Of how many workers servers have committed it: more than one number where some was lost.
    std::optional<SwarmBounds> divided = std::nullopt;
  };
  struct Unit {
    uint64_t elements = 0;
    uint64_t known = 0;                       // the version that it has at least
    std::vector<Sum> sums;                    // by step
    std::vector<SwarmBounds> bounds;          // by version; never beyond `known`
    std::vector<std::optional<double>> seen;  // by version
    SwarmBounds left;                         // by the generation that ends
    uint64_t last_assigned = 0;               // the last step in which a worker has assigned it
  };

  Sum& SumOf(Unit* unit, uint64_t step);
  SwarmBounds RateOf(const Unit& unit, uint64_t step) const;
  SwarmBounds Mean(const Sum& sum) const;
  bool Hidden(const Unit& unit, uint64_t step) const;
  SwarmBounds SquaresOf(const Unit& unit, uint64_t step) const;
  // The amount that a step adds.
  SwarmBounds Added(const Unit& unit, uint64_t step, bool committed) const;
  // A value after a step, if it is within `before` at first.
  SwarmBounds After(const Unit& unit, uint64_t step, const SwarmBounds& before,
                    bool committed) const;
  // The problem with versions that were read, now that more is known of a step before them.
  std::string Changed(uint32_t unit, uint64_t step);
  SwarmBounds& At(uint32_t unit, uint64_t version) { return Extend(unit, version, nullptr); }
  SwarmBounds& Extend(uint32_t unit, uint64_t version, std::string* wrong);
  std::string Wrong(uint32_t unit, uint64_t version, double value, const SwarmBounds& bounds) const;
  bool Within(double value, const SwarmBounds& bounds, bool exact) const {
    if (exact) return bounds.low <= value && value <= bounds.high;
    return shown_(bounds.low) <= value && value <= shown_(bounds.high);
  }

  const bool mean_;
  const std::function<double(double)> shown_;
  const bool reads_exactly_;
  const SwarmNorm* norm_ = nullptr;
  double limit_ = 0;
  const SwarmRates* rates_ = nullptr;  // null: the rate is 1
  std::vector<uint32_t> partitions_;
  std::vector<Unit> units_;
  std::set<std::pair<uint32_t, uint64_t>> hidden_;  // unit and step: AttemptState()
  std::vector<double> reset_;  // by step, the most that units which begin again had of Squares()
  uint32_t generation_ = 0, expected_ = 1, departed_ = 0;
  uint64_t newest_ = 0, ended_ = 0;
};

// The tables of a job whose steps are clipped by one norm.
class SwarmNorm {
 public:
  // A table is there; it outlives this object. Again: nothing changes.
  void Add(const SwarmSteps* steps);
  // The table was dropped, or has lost units: its part of norms is not known any more.
  void Disturb(const SwarmSteps* steps, bool dropped);
  // Tables whose steps cannot be ended together: one was created when others had made steps.
  bool Apart() const;
  // The least and the greatest factor of a step of a generation that keep its norm at `limit` or
  // below.
  SwarmBounds Scale(uint32_t generation, uint64_t step, double limit) const;
  // Lists each table's part of the square of a step's norm.
  std::string Describe(uint32_t generation, uint64_t step) const;

 private:
  struct Table {
    const SwarmSteps* steps;
    bool dropped;
  };
  std::vector<Table> tables_;
  uint32_t disturbed_ = 0;  // the last generation in which tables came or went under its steps
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_STEPS_H_
