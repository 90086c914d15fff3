// Faults of the swarm that aim at an answer of the coordinator: it comes late, not at all, or from
// an older state.
//
// **Thread safety**: one thread.
//
// Invariants:
//  1. Draws come from a random source of its own: a seed without these features runs as before.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_ANSWERS_H_
#define VERBENA_TESTS_CLUSTER_SWARM_ANSWERS_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/cluster/swarm_client.h"
#include "tests/cluster/swarm_faults.h"
#include "tests/cluster/swarm_world.h"

namespace verbena::test {

class SwarmAnswers {
 public:
  SwarmAnswers(SwarmWorld* world, SwarmFaults* faults,
               std::vector<std::unique_ptr<SwarmClient>>* clients);
  void Run();
  // A process has sent such a request to the coordinator.
  void OnRequest(const std::string& method);

 private:
  // A primary that has handed a partition over, and some clients, do not hear that it is at its new
  // place.
  void DeafenPrimary();
  // A follower stands still until it is dropped. Neither it nor most observers hear of that, so
  // that they go on to ask it.
  void DropFollower();
  // A decision on joining workers takes longer than steps of the run.
  void DelayAdmission();
  // Servers are cut off from an older state until a client has joined it, and for a while after the
  // newest one is back.
  void LetStray();
  void CutServers(bool cut);
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool Chance(double p) { return std::bernoulli_distribution(p)(random_); }
  int64_t Leases(int64_t least_percent, int64_t most_percent) {
    return world_->plan.lease_ns() * Between(least_percent, most_percent) / 100;
  }

  SwarmWorld* const world_;
  SwarmFaults* const faults_;
  std::vector<std::unique_ptr<SwarmClient>>* const clients_;
  std::mt19937_64 random_;
  v1::ClusterView before_;  // kDeafPrimaries
  int64_t next_move_at_ = 0, next_admission_at_ = 0, next_stray_at_ = 0, next_drop_at_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_ANSWERS_H_
