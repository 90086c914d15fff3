// Failpoints that the swarm has to find: those that are planted together, the seed that finds them,
// and the violation that shows them.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_FAILPOINTS_H_
#define VERBENA_TESTS_CLUSTER_SWARM_FAILPOINTS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/failpoint.h"
#include "tests/cluster/swarm_plan.h"

namespace verbena::test {

// Each failpoint must be found within so many seeds.
constexpr uint64_t kFailpointSeeds = 3000;

struct PlantedFault {
  std::string name;
  std::vector<Failpoint*> bugs;    // planted together: one of them may be hidden by a second guard
  uint64_t found_by = 0;           // is tried first; 0: it is searched by hand alone
  std::vector<std::string> shows;  // the violation has one of these; none: any shows it
  // No other seeds are searched: those that reach the first of `bugs` have these.
  std::vector<SwarmFeature> needs = {};

  bool reached() const { return bugs.front()->reached(); }
  bool MayShow(const SwarmPlan& plan) const {
    return std::all_of(needs.begin(), needs.end(),
                       [&](SwarmFeature feature) { return plan.has(feature); });
  }
};

std::vector<PlantedFault> PlantedFaults();

// Switches them on for one scope.
class PlantedTogether {
 public:
  explicit PlantedTogether(const PlantedFault& fault) : fault_(fault) {
    for (Failpoint* bug : fault_.bugs) *bug = true;
  }
  ~PlantedTogether() {
    for (Failpoint* bug : fault_.bugs) *bug = false;
  }
  PlantedTogether(const PlantedTogether&) = delete;
  PlantedTogether& operator=(const PlantedTogether&) = delete;

 private:
  const PlantedFault& fault_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_FAILPOINTS_H_
