// A process of the swarm that uses the client: a worker of a job, which pushes to its own units of
// the job's tables and pulls all of them, or a reader, which only pulls. Several operations are
// in progress at once.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_CLIENT_H_
#define VERBENA_TESTS_CLUSTER_SWARM_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "client/operations/operations.h"
#include "tests/cluster/swarm_stepper.h"
#include "tests/cluster/swarm_world.h"

namespace verbena::test {

class SwarmClient {
 public:
  // Starts the process. `slot`: which of the job's workers it is.
  SwarmClient(SwarmWorld* world, const SwarmJob* job, uint32_t slot, bool observer,
              const std::string& host);
  // The process dies.
  ~SwarmClient();
  SwarmClient(const SwarmClient&) = delete;
  SwarmClient& operator=(const SwarmClient&) = delete;

  // Advances the program; called between turns of the cluster.
  void Run();
  // Whether the process has ended: another one takes the slot.
  bool ended() const { return phase_ == Phase::kEnded; }
  // Of the staleness that an observer allows, in leases.
  static constexpr int64_t kLongestStaleness = 3;
  // Ends its operations, leaves the job, and ends.
  void Leave() { leaving_ = true; }
  // Reads every unit of the job's tables once, in the stage kFinish.
  void ReadAll() { reads_all_ = true; }
  // It was kept from renewing its lease: that may end.
  void Excuse() { excused_ = true; }
  SimWorker* process() const { return process_; }
  bool joining() const { return phase_ == Phase::kJoining; }
  bool observer() const { return observer_; }
  bool idle() const { return calls_ == 0 && operations_ == 0; }
  // Since the recovery began it has used every table that it should; else *missing names another.
  bool Proved(std::string* missing) const;
  std::string Describe() const;

 private:
  enum class Phase : uint8_t { kStart, kJoining, kRunning, kLeaving, kEnded };
  // An operation on a table.
  struct Operation {
    client::OperationId id = 0;
    uint32_t table = 0;
    bool pushes = false, pulls = false;
    bool assigns = false;  // it pushes new parameters
    bool state = false;    // it pushes new state of the optimizer, or pulls state
    bool ends = false;     // the step of a sync table
    bool whole = false;    // all units
    bool bags = false;     // a lookup of bags of one row each
    bool done = false;
    bool known_lost = false;  // by the client's own view one of the units was, when it began
    uint64_t revision = 0;    // of the client's view then
    int64_t amount = 0;       // of a push
    uint64_t step = 0;        // of a sync table
    std::optional<uint64_t> version;              // that a pull of a worker shows of a sync table
    std::vector<uint32_t> units;                  // in the order of the buffers
    std::vector<uint32_t> lives;                  // of the units' partitions, when it began
    std::vector<double> least;                    // of a pull
    float assigned = 0;                           // the state that it assigns
    std::shared_ptr<client::PulledState> pulled;  // the state that it pulls
    std::vector<int64_t> values_to_be;            // of an assignment, by unit
    std::vector<int64_t> gains;                   // by unit: the most that is acknowledged with it
    uint64_t changes = 0;                         // of the rate, before it
    std::optional<uint64_t> change;               // of the rate: its id in SwarmRates
    uint32_t staleness_ms = 0;                    // more than 0: followers may answer
    uint32_t run = 0;                             // of the table's job, when it began
    std::shared_ptr<rdma::MemoryBlock> gradient, values;
    int64_t began_ns = 0, deadline_ns = 0;

    client::Write write() const {
      if (state) return client::Write::kState;
      return assigns ? client::Write::kAssign : client::Write::kPush;
    }
  };
  struct Used {
    bool pushed = false, pulled = false;
  };
  // The greatest value that this observer has read of a unit, in a life of it and a run of its job.
  struct Read {
    double value = 0;
    uint32_t life = 0, run = 0;
  };

  void CheckStaleness() const;
  void Join();
  void OpenTables();
  void Prioritize(uint32_t table);
  bool Wants(const SwarmTable& table) const;
  void Begin();
  void BeginOn(SwarmTable* table);
  // On a sync table, of a worker.
  void BeginStep(SwarmTable* table);
  bool WaitsForOthers(const SwarmTable& table) const {
    return table.steps() != nullptr && !observer_;
  }
  // Counts the pushes of the operation, and issues it. False: nothing of it was begun.
  bool Start(SwarmTable* table, const std::shared_ptr<Operation>& operation);
  // Counts the operation's push to the unit.
  void Attempt(SwarmTable* table, Operation* operation, uint32_t unit);
  // Whether this push is an assignment of its units.
  bool Assigns(const SwarmTable& table, const Operation& operation);
  // Whether it may be one: the model has one value that is right, whatever becomes of earlier
  // pushes.
  bool MayAssign(const SwarmTable& table, const Operation& operation) const;
  std::vector<uint32_t> DrawUnits(const SwarmTable& table, bool push);
  void Fill(const SwarmTable& table, Operation* operation);
  // Whether this push is an assignment of state, or this pull one of state (swarm_client_state.cc).
  bool OfState(const SwarmTable& table, const Operation& operation);
  // Whether followers may answer this pull, and what it may show then (swarm_client_followers.cc).
  void DrawReplicas(const SwarmTable& table, Operation* operation);
  void AllowPast(const SwarmTable& table, uint32_t unit, Operation* operation) const;
  void CheckRead(const Operation& operation, const SwarmTable& table, size_t i, float value);
  std::optional<float> AppliedAtPrimary(const SwarmTable& table, uint32_t unit) const;
  uint32_t RunOf(const SwarmTable& table) const;
  bool MayAssignState(const SwarmTable& table, const Operation& operation) const;
  void BeginState(SwarmTable* table, Operation* operation);
  void CheckStates(const Operation& operation, const SwarmTable& table);
  void FillAssigned(const SwarmTable& table, Operation* operation);
  absl::StatusOr<client::OperationId> Issue(const SwarmTable& table,
                                            const std::shared_ptr<Operation>& operation);
  absl::StatusOr<client::OperationId> Lookup(const SwarmTable& table,
                                             const std::shared_ptr<Operation>& operation,
                                             absl::Span<const uint64_t> keys);
  void EndStep(SwarmTable* table);
  // Whether workers change the rate of this table, which is a sum. Without steps that is exact
  // where one worker pushes.
  bool VariesRate(const SwarmTable& table) const {
    return world_->has(SwarmFeature::kRates) && table.MayChangeRate() &&
           (table.steps() != nullptr || job_->plan.places() == 1);
  }
  void SetOptimizer(SwarmTable* table, double rate);
  void AttemptRate(SwarmTable* table, Operation* change, double rate);
  // It was acknowledged.
  void RateChanged(SwarmTable* table, const Operation& change);
  void Acknowledge(SwarmTable* table, const Operation& operation, size_t i);
  void Ended(const std::shared_ptr<Operation>& operation, const absl::Status& status);
  // The operation is over, and OK.
  void Succeeded(const Operation& operation, SwarmTable* table);
  void Committed(const Operation& operation, SwarmTable* table);
  // No worker can join its job now: all ranks are given, and it has sync tables.
  bool Full() const;
  void CheckValues(const Operation& operation, SwarmTable* table);
  // Whether a call may end so.
  void Judge(const absl::Status& status, const SwarmTable& table, const Operation& operation);
  // The partition is lost, or was in a view that is not older than the one that the client had.
  bool MayBeLost(const SwarmTable& table, uint32_t partition, const Operation& operation) const;
  // For want of memory; and whether it may be: some of its rows may be new.
  bool RefusesRows(const absl::Status& status) const;
  bool MayBeRefused(const SwarmTable& table, const Operation& operation) const;
  // It began after the faults.
  bool Proves(const Operation& operation) const;
  // By this client's own view one of the units is lost.
  bool KnowsLost(const SwarmTable& table, absl::Span<const uint32_t> units) const;
  // Its view is of an older state that was put back.
  bool FollowsOlder() const;
  // The name was a table's of another job at some time since then.
  bool OfOtherJob(const std::string& name, int64_t since_ns) const;
  void Expired(const absl::Status& status, const char* call);
  void Settle();
  int64_t DrawDeadline();
  int64_t DrawStepDeadline();

  SwarmWorld* const world_;
  const SwarmJob* const job_;
  const uint32_t slot_;
  const bool observer_;
  SimWorker* process_;
  Phase phase_ = Phase::kStart;
  bool leaving_ = false, excused_ = false, reads_all_ = false;
  int64_t next_at_ = 0;
  uint32_t calls_ = 0;       // to the coordinator
  uint32_t operations_ = 0;  // on tables
  uint32_t pushes_ = 0;      // begun
  uint32_t of_state_ = 0;    // operations on tables with state, begun
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> pushing_;  // in flight, by table and unit
  uint32_t waiting_ = 0;  // of them, those that wait for steps of other workers
  // Changes of rates that were not acknowledged, by table.
  std::set<std::pair<uint32_t, uint64_t>> unsure_rates_;
  std::mt19937_64 own_;  // its draws change nothing in seeds that do not use it
  std::set<uint32_t> opened_;
  std::set<std::string> opening_;
  uint64_t tables_seen_ = 0;  // SwarmWorld::table_changes when it last looked for tables to open
  SwarmStepper stepper_;
  std::map<uint32_t, Used> used_;                       // since the recovery began
  std::map<std::pair<uint32_t, uint32_t>, Read> read_;  // kReadFollowers: by table and unit
  // Buffers of ended operations.
  std::vector<std::pair<client::OperationId, std::shared_ptr<rdma::MemoryBlock>>> unsettled_;
  uint64_t settled_in_ = 0;  // turns of the process when it looked through them
  absl::Status last_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_CLIENT_H_
