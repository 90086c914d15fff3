// The swarm's model of the rate of one table's optimizer, by partition: the initial rate, and the
// changes by workers.
//
// A change that was acknowledged is in force in all partitions; one that was attempted is in each
// or not. Changes are in force in the order of their steps, and in a step of the workers' ranks. In
// a table without steps, whose job has one worker, the number of changes before counts as the step.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_RATES_H_
#define VERBENA_TESTS_CLUSTER_SWARM_RATES_H_

#include <cstdint>
#include <vector>

namespace verbena::test {

struct SwarmBounds {
  double low = 0, high = 0;
};

class SwarmRates {
 public:
  SwarmRates(double initial, uint32_t partitions);

  // A worker of that rank changes it from `step` on. Returns the change's id.
  uint64_t Attempt(uint64_t step, int32_t rank, double rate);
  void Acknowledge(uint64_t id);
  // The process that attempted it has died: it may come at any later time. For tables without
  // steps.
  void Orphan(uint64_t id);
  // All changes are in force from the first step of the job's next generation on.
  void BeginGeneration();
  // The partition was lost, and begins again.
  void Reset(uint32_t partition);
  // All of it is made from a checkpoint of a table with these.
  void Restore(const SwarmRates& saved);

  // The rates that the partition may have in the apply of a step.
  SwarmBounds At(uint32_t partition, uint64_t step) const;
  uint64_t changes() const { return changes_; }

 private:
  struct Change {
    uint64_t step = 0;
    int32_t rank = 0;
    uint64_t id = 0;
    double rate = 0;
    bool certain = false, orphan = false;
  };
  struct Partition {
    SwarmBounds before;           // that of the first change
    std::vector<Change> changes;  // in the order in which they are in force
  };

  template <typename What>
  void Each(uint64_t id, What what);

  const double initial_;
  SwarmBounds ever_;  // the least and the greatest that a partition may have had
  std::vector<Partition> partitions_;
  uint64_t changes_ = 0;  // that were attempted
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_RATES_H_
