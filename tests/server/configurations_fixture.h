// Shared by the tests of partition configurations.
#ifndef VERBENA_TESTS_SERVER_CONFIGURATIONS_FIXTURE_H_
#define VERBENA_TESTS_SERVER_CONFIGURATIONS_FIXTURE_H_

#include <string>
#include <vector>

#include "tests/server/coordinator_fixture.h"

namespace verbena::server {

inline CoordinatorOptions Replicated(uint32_t partitions = 4) {
  return {.partitions = partitions, .lease_ms = kLeaseMs, .replicas = 2};
}

// "1+2?3": primary 1, follower 2, learner 3.
inline std::string Words(const v1::Partition& p) {
  std::string words = std::to_string(p.primary());
  for (const v1::Replica& r : p.followers()) words += "+" + std::to_string(r.server());
  for (const v1::Replica& r : p.learners()) words += "?" + std::to_string(r.server());
  return words;
}

// A lease passes in which these are heard of and others are not.
inline void PassLease(TestCoordinator* c, const std::vector<uint64_t>& beating) {
  for (int i = 0; i < 4; ++i) {
    c->clock.AdvanceMs(kLeaseMs / 4);
    for (const uint64_t server : beating) REQUIRE(c->Heartbeat(server).ok());
    (*c)->RunOnce();
  }
}

inline bool Lost(const TestCoordinator& c) {
  for (const v1::Table& t : c.view().tables()) {
    if (!t.lost_partitions().empty()) return true;
  }
  return false;
}

}  // namespace verbena::server

#endif  // VERBENA_TESTS_SERVER_CONFIGURATIONS_FIXTURE_H_
