// What reads of the swarm's tables showed at least in the last seconds: the model of reads that
// followers answer (read_followers), which may be stale within a bound.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_PAST_H_
#define VERBENA_TESTS_CLUSTER_SWARM_PAST_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "tests/cluster/swarm_table.h"

namespace verbena::test {

class SwarmPast {
 public:
  // Called at each turn; the past is known for `longest_ns`.
  void Note(const SwarmTable& table, int64_t now, int64_t longest_ns);
  // The least value that a read of the unit which began at that time had to show. Nothing: the
  // unit's partition has begun again since, so that any value of before may be shown.
  std::optional<double> Least(const SwarmTable& table, uint32_t unit, int64_t time) const;

 private:
  struct Moment {
    int64_t time = 0;
    double least = 0;
    uint32_t life = 0;
  };
  std::map<std::pair<uint32_t, uint32_t>, std::deque<Moment>> units_;  // by table and unit
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_PAST_H_
