// Looks at clients of a swarm for one that stands still: it has requests in queues of open lanes,
// and nothing in flight that could let them go. An operation then ends at its deadline alone, which
// no check of its result shows where deadlines are short.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_STANDSTILL_H_
#define VERBENA_TESTS_CLUSTER_SWARM_STANDSTILL_H_

#include <cstdint>
#include <map>
#include <string>

#include "tests/cluster/swarm_client.h"
#include "tests/cluster/swarm_world.h"

namespace verbena::test {

class SwarmStandstill {
 public:
  explicit SwarmStandstill(SwarmWorld* world) : world_(world) {}

  // To be called again and again, for each client that runs.
  void Look(const SwarmClient& client);

 private:
  struct State {
    uint64_t progress = 0;  // records that were answered, lanes that opened
    int64_t since_ns = 0;   // without progress, and with requests that could go; 0: not so
  };

  SwarmWorld* world_;
  std::map<std::string, State> states_;  // by host, which is of one process
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_STANDSTILL_H_
