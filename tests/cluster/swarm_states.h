// The swarm's model of the state of one table's optimizer (adagrad: the sum of squares), which
// workers assign and read.
//
// An assignment gives a unit a greater number than every earlier one, and pushes only add to it. So
// a read that begins after an acknowledged assignment shows that number or more, and at most the
// greatest number that was assigned and the little that pushes add.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_STATES_H_
#define VERBENA_TESTS_CLUSTER_SWARM_STATES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace verbena::test {

class SwarmStates {
 public:
  // `units`: 0: the table has no state that is modelled.
  explicit SwarmStates(size_t units) : units_(units) {}

  bool any() const { return !units_.empty(); }
  // Whether a worker may assign the unit in a step of a generation: in no step that others assign
  // it, nor in an earlier one. Without steps a unit has one worker.
  bool MayAssign(uint32_t unit, uint32_t generation, uint64_t step) const {
    const std::pair<uint32_t, uint64_t> now = {generation, step + 1};
    return units_[unit].last < now;
  }
  // A worker assigns the units; `step`: none without steps. Returns the number, whose count of
  // applies is AppliesOf().
  float Attempt(absl::Span<const uint32_t> units, uint32_t generation, uint64_t step);
  static uint64_t AppliesOf(float value);
  void Acknowledge(uint32_t unit, float value);
  // The table begins with state that is not known.
  void Restore() { restored_ = true; }
  // The unit's partition was lost, and begins again.
  void Reset(uint32_t unit);
  // The least number that a read which begins now must show.
  float Least(uint32_t unit) const { return units_[unit].acknowledged; }
  // The problem with the numbers of a unit that were read, or an empty string.
  std::string Check(uint32_t unit, absl::Span<const float> values, float least) const;

 private:
  struct Unit {
    float acknowledged = 0, attempted = 0;
    std::pair<uint32_t, uint64_t> last = {0, 0};  // generation, and step + 1
  };

  bool restored_ = false;
  uint64_t assigned_ = 0;
  std::vector<Unit> units_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_STATES_H_
