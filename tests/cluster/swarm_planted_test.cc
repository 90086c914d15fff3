// Planted bugs that the swarm finds: what it draws has them in reach, and its invariants show them.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "shard/planted_bugs.h"
#include "tests/cluster/scenario_runs.h"
#include "tests/cluster/swarm.h"

namespace verbena::test {
namespace {

struct PlantedFault {
  const char* name;
  bool shard::PlantedBugs::*bug;
  uint64_t found_by;  // is tried first; after a change of the swarm another seed may find it
  uint64_t at_most;   // then seeds from 1 on
  std::vector<std::string> shows;  // the violation has one of these
};

const PlantedFault kFaults[] = {
    {"skip_dedupe", &shard::PlantedBugs::skip_dedupe, 3, 100, {"more than was pushed"}},
    {"acknowledge_early",
     &shard::PlantedBugs::acknowledge_early,
     6,
     100,
     {"acknowledged pushes", "is not what its primary"}},
};

bool Finds(const PlantedFault& fault, uint64_t seed) {
  for (const std::string& violation : RunSwarm(seed).violations) {
    for (const std::string& text : fault.shows) {
      if (violation.find(text) == std::string::npos) continue;
      std::fprintf(stderr, "%s is found by seed %llu: %s\n", fault.name,
                   static_cast<unsigned long long>(seed), violation.c_str());
      return true;
    }
  }
  return false;
}

TEST_CASE("planted bugs: the swarm finds each") {
  for (const PlantedFault& fault : kFaults) {
    CAPTURE(fault.name);
    const Planted planted(fault.bug);
    bool found = Finds(fault, fault.found_by);
    for (uint64_t seed = 1; !found && seed <= fault.at_most; ++seed) found = Finds(fault, seed);
    CHECK(found);
  }
}

}  // namespace
}  // namespace verbena::test
