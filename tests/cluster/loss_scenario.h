// Servers with the only replicas of their partitions die and come back empty, under load, with
// faults of the network and of the control plane, from one seed.
//
// Each worker has a job of its own with some async tables of one chunk, and is the only one that
// writes to them: it pushes ones and pulls. Checked all the while:
//
//  1. A pull that is answered holds every push that was acknowledged before it began, none that was
//     not attempted, and whole chunks: so never initial values in the place of lost ones.
//  2. DATA_LOSS is returned only where a replica was lost, and from then on no other status until
//     the table is dropped.
//  3. An operation ends by its deadline.
//  4. Tables that lost nothing go on, and so do those that are created anew.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_LOSS_SCENARIO_H_
#define VERBENA_TESTS_CLUSTER_LOSS_SCENARIO_H_

#include <cstdint>
#include <string>
#include <vector>

namespace verbena::test {

struct LossOptions {
  uint64_t seed = 1;
  int servers = 3;
  int workers = 2;
  int tables = 4;  // of each worker
};

struct LossResult {
  std::vector<std::string> violations;  // empty when everything held
  int crashed = 0;                      // servers
  int lost = 0;                         // tables whose worker got DATA_LOSS
  int checked = 0;                      // pulls
  int unavailable = 0;                  // operations that ended without an answer
};

LossResult RunLossScenario(const LossOptions& options);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_LOSS_SCENARIO_H_
