// Training under faults in the simulator, with the invariants checked after every seed.
//
// Gradients are integers, the rate is 1 and sums are exact, so the right contents of a chunk follow
// from the commits alone, bit for bit.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SCENARIO_H_
#define VERBENA_TESTS_CLUSTER_SCENARIO_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/cluster/sim_cluster.h"

namespace verbena::test {

struct ScenarioOptions {
  uint64_t seed = 1;
  v1::Consistency consistency = v1::CONSISTENCY_SYNC;
  uint32_t staleness = 0;  // ssp
  int64_t step_ns = 0;     // a worker computes that long in each step
  int slow_factor = 1;     // and rank 0 so many times longer
  bool joins = false;      // workers beyond the expected ones come later
  // sync: an elastic job. Workers come later, leave after a step, and more than one is killed.
  bool elastic = false;
  bool mean = false;  // sync: of the gradients of a step's workers
  int workers = 3;
  int steps = 6;
  bool narrow = false;  // gradients in bf16, and parameters, too, but for those of async and ssp,
                        // which count in f32
  v1::Codec push_codec = v1::CODEC_NONE;  // one that loses nothing of a scenario's gradients
  v1::Codec pull_codec = v1::CODEC_NONE;  // the same of its parameters
  uint32_t keys = 0;                      // more than 0: an embedding table, and these of its keys
  uint64_t elements = 3 * kSimChunkBytes / 4 + 40;  // three whole chunks and a short one
  double push_pulls = 0.25;  // async, ssp: of the steps, those that push and pull in one call, too
  double connection_loss = 0.002;
  double missed_loss = 0.2;  // of a side that could: sim_network.h
  double connect_failure = 0.1;
  double control_loss = 0.02;
  int64_t death_delay_ns = 20'000'000;  // of a lost lane: sim_network.h
  bool crashes = true;
  bool stalls = true;
  bool coordinator_restarts = true;
  bool hangs = true;       // of lanes
  bool partitions = true;  // of the control plane, in one direction or both
  int drift_ppm = 10'000;  // of every machine's clock: far more than any has
  // More than one: rails stall, die and come back under load, and some are not there at first.
  uint32_t rails = 1;
  // 2: servers die, too, once all partitions have a follower again, and stall for longer than a
  // lease; new ones come in their place.
  uint32_t replicas = 1, min_replicas = 1;
  bool tight_log = false;  // of odd seeds: logs for copies have room for few records
};

// Violations; empty when every invariant held.
struct ScenarioResult {
  std::vector<std::string> violations;
  int commits = 0;
  int crashed = 0;
  int stalled = 0;
  int joined = 0;    // of those that came later
  int admitted = 0;  // of those, into a run of an elastic job
  int left = 0;      // an elastic job before its last step
  int hung = 0;      // processes whose posted records on lanes did not move any more
  int partitioned = 0;
  int servers_killed = 0, servers_stalled = 0;
  int outlived = 0;  // leases, by a server that the others had given up
  int rails_cut = 0, rails_stalled = 0;
  uint64_t rail_moves = 0;  // of partitions of tables, by all workers
  int64_t started_ns = 0;   // the first step
  int64_t fast_ns = 0;      // when the last worker but rank 0 had finished its steps
  std::array<uint64_t, kStalenessBuckets> staleness = {};
  int resumed_operations = 0;  // operations that ended by deadline and were tried again
};

ScenarioResult RunScenario(const ScenarioOptions& options);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SCENARIO_H_
