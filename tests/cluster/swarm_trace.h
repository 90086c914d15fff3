// Records the events of partitions of a simulated cluster that the model of the control protocol
// has, to be checked against it (tests/model/trace_checker.h).
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_TRACE_H_
#define VERBENA_TESTS_CLUSTER_SWARM_TRACE_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "shard/engine.h"
#include "tests/cluster/swarm_world.h"
#include "tests/model/trace_checker.h"

namespace verbena::test {

class SwarmTrace {
 public:
  using Partitions = std::map<uint32_t, std::vector<TraceEvent>>;

  SwarmTrace(SwarmWorld* world, Partitions* traces) : world_(world), traces_(traces) {}
  // The coordinator's view has changed.
  void FollowView();
  void Observe(const shard::Commit& commit);
  // Between turns: the leases that are in force.
  void LookAtLeases();

 private:
  struct Reader {
    uint64_t server = 0, epoch = 0;
    bool operator==(const Reader&) const = default;
  };
  void Add(uint32_t partition, const TraceEvent& event);
  std::vector<Reader> ReadersOf(uint32_t partition) const;

  SwarmWorld* const world_;
  Partitions* const traces_;
  uint64_t revision_ = 0;
  v1::ClusterView before_;
  std::map<uint32_t, std::vector<Reader>> readers_;  // by partition, when last looked at
  std::set<uint32_t> crowded_;                       // partitions that have had more than one copy
  std::map<uint32_t, uint64_t> placed_in_;  // by partition: the epoch in which it had nothing
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_TRACE_H_
