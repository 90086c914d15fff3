// One worker's use of one table of a checkpoint scenario: it pushes and pulls, checks the values,
// and goes on with the table that takes the place of one that was lost or dropped.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_CHECKPOINT_WORKER_H_
#define VERBENA_TESTS_CLUSTER_CHECKPOINT_WORKER_H_

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "tests/cluster/checkpoint_model.h"
#include "tests/cluster/checkpoint_scenario.h"
#include "tests/cluster/sim_cluster.h"

namespace verbena::test {

// State shared by all parts of the scenario.
struct CheckpointState {
  CheckpointOptions options;
  CheckpointResult result;
  CheckpointModel model;
  std::mt19937_64 random;
  SimCluster* cluster = nullptr;
  std::set<uint32_t> said_lost;  // ids of tables that a worker got DATA_LOSS for
  bool faults_stopped = false;
  bool expired = false;  // a worker's lease has ended: the contents of steps from then on are
                         // unknown

  void Violation(const std::string& what) { result.violations.push_back(what); }
  int64_t now() const { return cluster->now(); }
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  }
  bool Chance(double p) { return std::bernoulli_distribution(p)(random); }
};

class TableUse {
 public:
  TableUse(CheckpointState* state, SimWorker* process, size_t rank, size_t table)
      : state_(state), process_(process), rank_(rank), table_(table) {}

  // Advances it; call between turns of the cluster.
  void Run();
  // The number of reads of the present table since the faults stopped.
  int proved() const { return proved_; }
  std::string Describe() const;

 private:
  enum class Phase : uint8_t { kOpen, kFirstPull, kPush, kPull };

  client::ClientCore& core() { return process_->core(); }
  TableLife& life() { return state_->model.lives().at(id_); }
  int64_t Deadline();
  int64_t Begin();  // of a call of which there is one at a time
  // Handles the end of any call. False: it has to be tried again, or the table has ended.
  bool End(const absl::Status& status);
  void Leave();
  void Open();
  void Adopt(const v1::Table& table);
  void Push();
  void PushSync();
  void Pull();
  void Check(const TableValues& values, const GroupCounts& least);
  std::shared_ptr<rdma::MemoryBlock> Block() const;

  CheckpointState* const state_;
  SimWorker* const process_;
  const size_t rank_, table_;
  Phase phase_ = Phase::kOpen;
  uint32_t id_ = 0, left_ = 0;  // 0: none. The one before, which is no more
  bool made_ = false, busy_ = false;
  uint64_t step_ = 0;  // sync: of this table
  int64_t next_at_ = 0;
  int proved_ = 0;
  absl::Status last_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_CHECKPOINT_WORKER_H_
