// The state that the actors of one swarm seed share: the plan, the cluster, the models of its
// tables, and the violations.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_WORLD_H_
#define VERBENA_TESTS_CLUSTER_SWARM_WORLD_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cluster/sim_cluster.h"
#include "tests/cluster/swarm.h"
#include "tests/cluster/swarm_members.h"
#include "tests/cluster/swarm_past.h"
#include "tests/cluster/swarm_plan.h"
#include "tests/cluster/swarm_table.h"

namespace verbena::test {

enum class SwarmStage : uint8_t {
  kFaults,    // everything happens
  kRecovery,  // no more faults, drops and crashes; clients go on at the same rate
  kFinish,    // clients end their operations
};

struct SwarmJob {
  SwarmJobPlan plan;
  bool draining = false;  // its workers leave, so that a table can be reset, or it begins again
  bool restart = false;   // they leave once: the next ones begin a new run
  SwarmNorm norm;         // of its tables that are clipped
};

struct SwarmWorld {
  SwarmPlan plan;
  SwarmResult* result = nullptr;
  SimCluster* cluster = nullptr;
  std::mt19937_64 random;
  const bool trace = std::getenv("VERBENA_SWARM_TRACE") != nullptr;
  SwarmStage stage = SwarmStage::kFaults;
  int64_t recovery_began_ns = 0;
  bool old_state = false;    // the coordinator has an older state: its answers do not count now
  std::set<uint64_t> terms;  // ids of those that the coordinator had with the newest state
  std::vector<SwarmJob> jobs;
  SwarmMembers members;                   // of elastic jobs
  SwarmPast past;                         // kReadFollowers
  std::map<uint32_t, SwarmTable> tables;  // by id, those that were dropped included
  uint64_t table_changes = 1;             // grows when a table is made or dropped
  std::vector<int> lives;                 // by server: how often its process has died
  std::set<std::string> removed;          // names of servers that the operator had removed
  // Every buffer that its process has back: the process by the block, whose number is unique.
  std::unordered_map<uint64_t, std::string> settled;

  int64_t now() const { return cluster->now(); }
  bool has(SwarmFeature feature) const { return plan.has(feature); }
  void Violation(const std::string& text) {
    result->violations.push_back(absl::StrCat("at ", now() / kMilli, " ms: ", text));
  }
  // With VERBENA_SWARM_TRACE set: prints an event as a line to stderr.
  void Trace(const std::string& text) const {
    if (trace) std::fprintf(stderr, "%8.3f  %s\n", static_cast<double>(now()) / 1e9, text.c_str());
  }
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  }
  size_t Pick(size_t count) {
    return static_cast<size_t>(Between(0, static_cast<int64_t>(count) - 1));
  }
  bool Chance(double p) { return std::bernoulli_distribution(p)(random); }
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_WORLD_H_
