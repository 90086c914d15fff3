// Random kills of coordinators under training, and the time that each change of the leader takes.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_TESTS_FAULTS_COORDINATOR_KILLS_H_
#define VERBENA_TESTS_FAULTS_COORDINATOR_KILLS_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/faults/coordinator_work.h"
#include "verbena/client.h"

namespace verbena::test {

// A change of the leader, in seconds from its death.
struct LeaderChange {
  double leads = 0;     // until another coordinator answers as the leader
  double answered = 0;  // until a call is answered that a client began after the death
};

class CoordinatorKills {
 public:
  // Joins a worker to the cluster of `world`, whose members it counts anew.
  CoordinatorKills(World* world, uint64_t seed);

  // Kills one of the coordinators, the leader in two of three cases, and starts it again. Returns
  // when all coordinators run and both trainings go on.
  void Kill();
  // Kills the leader, and measures.
  void KillLeader();

  const std::vector<LeaderChange>& changes() const { return changes_; }
  int standbys() const { return standbys_; }  // that were killed
  // One line for each change, then median, p99 and the longest.
  std::string Report() const;
  // Of the calls; 0: no change was measured.
  double p99() const;

 private:
  void KillStandby();
  void Restart(int coordinator);
  // A changing call, as a worker makes it. Returns when it was answered.
  absl::Time Change();

  World& world_;
  std::mt19937_64 random_;
  std::unique_ptr<Client> client_;
  std::vector<LeaderChange> changes_;
  int standbys_ = 0;
  int tables_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_COORDINATOR_KILLS_H_
