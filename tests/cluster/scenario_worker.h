// A simulated training worker: joins, opens the table, then pushes, ends and pulls step after step.
// It repeats calls that end by their deadline, and checks the values that it pulls.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SCENARIO_WORKER_H_
#define VERBENA_TESTS_CLUSTER_SCENARIO_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/cluster/reference.h"
#include "tests/cluster/scenario.h"
#include "tests/cluster/sim_cluster.h"

namespace verbena::test {

class ScenarioWorker;

// State shared by all workers of a scenario.
struct ScenarioState {
  ScenarioOptions options;
  ScenarioResult* result = nullptr;
  SimCluster* cluster = nullptr;
  std::unique_ptr<ScenarioTable> table;
  std::unique_ptr<SyncReference> reference;
  std::vector<std::unique_ptr<ScenarioWorker>> workers;
  // Every buffer that was returned to its worker: the process by the block, whose number is unique.
  std::unordered_map<uint64_t, std::string> settled;
  void Violation(const std::string& what) { result->violations.push_back(what); }
};

class ScenarioWorker {
 public:
  ScenarioWorker(ScenarioState* state, SimWorker* process, int rank, uint64_t seed);

  // Advances the worker's program; call between turns of the cluster.
  void Run();
  bool finished() const { return phase_ == Phase::kFinished; }
  bool expired() const { return phase_ == Phase::kExpired; }
  SimWorker* process() const { return process_; }
  int rank() const { return rank_; }
  bool late() const { return rank_ >= state_->options.workers; }
  uint64_t ended() const { return ended_; }  // steps
  // The first step that it has not ended.
  uint64_t first_open_step() const { return first_ + ended_; }
  uint32_t acknowledged() const { return acknowledged_; }
  uint32_t attempted() const { return attempted_; }
  std::string Describe() const;

 private:
  enum class Phase {
    kStart,
    kJoining,
    kJoined,
    kOpening,
    kStep,
    kPull,
    kPulling,
    kLeaving,
    kFinished,
    kExpired
  };
  struct Use {  // one operation and the buffer it uses
    client::OperationId id = 0;
    std::shared_ptr<rdma::MemoryBlock> block;
    std::shared_ptr<rdma::MemoryBlock> gradient;  // of a push and pull in one call
    int64_t deadline = 0;
    bool done = false;
    bool is_push = false;
    absl::Status status;
  };

  int64_t RandomDeadline();
  std::shared_ptr<Use> NewUse(bool is_push);
  void Ended(const std::shared_ptr<Use>& use, const absl::Status& status);
  void Join();
  void Open();
  void Begin();
  void PushStep();
  // Pushes the elements [begin, end) of the table, which have the same place in the buffer.
  absl::StatusOr<client::OperationId> Push(const std::shared_ptr<Use>& use, uint64_t begin,
                                           uint64_t end);
  void StartPull();
  // A push, and a pull that includes it.
  absl::StatusOr<client::OperationId> PushPull(const std::shared_ptr<Use>& use);
  absl::StatusOr<client::OperationId> LookupBags(const std::shared_ptr<Use>& use,
                                                 std::optional<uint64_t> version, int64_t deadline,
                                                 client::ClientCore::Done done);
  void CheckPull(const Use& use);
  void CheckStaleness();
  // async, ssp: the pushes of all workers in the last pull.
  void CheckCounts(absl::Span<const float> data);
  void Leave();
  void Settle();
  bool Fatal(const absl::Status& status);

  ScenarioState* state_;
  SimWorker* process_;
  int rank_;
  const v1::TableSpec& spec_;
  std::mt19937_64 random_;
  Phase phase_ = Phase::kStart;
  uint32_t table_ = 0;
  uint64_t step_ = 0, ended_ = 0;
  uint64_t first_ = 0;       // of its steps
  uint64_t last_ = 0;        // it leaves before this one
  bool computed_ = false;    // this step's gradient
  uint64_t push_pulls_ = 0;  // steps that have had one
  uint32_t acknowledged_ = 0, attempted_ = 0;
  float last_seen_ = 0;
  std::vector<uint32_t> least_;  // by rank: pushes acknowledged before the pull began
  std::shared_ptr<Use> pull_;
  std::vector<std::shared_ptr<Use>> uses_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SCENARIO_WORKER_H_
