// The options of a run of random_faults and the plan that a seed draws from them.
//
// **Thread safety**: pure functions and plain data.
//
// **Invariants**
// 1. The plan is a function of the options alone, so every process of a run draws the same one.
// 2. Each job has at least one client and one table; a table belongs to one job.
#ifndef VERBENA_TESTS_FAULTS_RANDOM_FAULTS_PLAN_H_
#define VERBENA_TESTS_FAULTS_RANDOM_FAULTS_PLAN_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "verbena/client.h"

namespace verbena::test {

// The same numbers on every machine: the distributions of <random> are the library's own.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  // From `least` to `most`, both included.
  uint64_t Between(uint64_t least, uint64_t most) { return least + random_() % (most - least + 1); }
  bool OneIn(uint64_t n) { return random_() % n == 0; }
  template <typename T>
  const T& Of(const std::vector<T>& values) {
    return values[random_() % values.size()];
  }

 private:
  std::mt19937_64 random_;
};

struct FaultOptions {
  uint64_t seed = 1;
  int faults = 20;
  int lease_ms = 1500;
  int servers = 3;
  int shards = 0;                          // 0: drawn, 1 or 2
  int clients = 0;                         // 0: drawn, 3 to 16
  std::string transport = "mixed";         // "shm", "ofi"; "mixed": each client draws one
  std::string tables = "dense,rows,cold";  // kinds to draw from
  std::string modes = "async,ssp,sync";    // consistencies to draw from
  std::string kinds = "kill,stop,coordinator-kill,coordinator-stop";  // faults to draw from
  bool changes = true;    // tables made and dropped, workers and readers that join and leave
  bool probe = true;      // quick calls beside a waiting one
  bool overlap = true;    // a second fault before redundancy is back
  int call_s = 60;        // deadline of each call that must succeed
  int redundancy_s = 60;  // longest wait for full redundancy after a fault
  int quiet_s = 5;        // under load and without a fault, before the first one
  int slack_mib = 16;     // memory that each process may have beyond 1.5 times its quiet value
  int limit_s = 0;        // of the whole run; 0: from the number of faults
  // Options of verbenad, with spaces between. By default the replica log of a server takes 256 MiB
  // while a follower is silent, many times the size of these tables.
  std::string server_options = "--replica-log-limit 16777216";
  std::string keep;  // directory for logs of a failed run; empty: none is kept
};

enum class TableKind { kDense, kRows, kCold };
const char* NameOf(TableKind kind);
const char* NameOf(v1::Consistency consistency);

// The ledger has a counter for each unit of a table: a chunk of a dense table, a row of an
// embedding table.
struct TablePlan {
  int index = 0;  // in Plan::tables and in the ledger
  int job = 0;
  std::string name;
  TableKind kind = TableKind::kDense;
  v1::Consistency consistency = v1::CONSISTENCY_ASYNC;
  uint32_t staleness = 0;  // of ssp
  uint64_t units = 0;
  uint32_t width = 0;  // numbers of a unit
  uint64_t elements() const { return units * width; }
  bool embedding() const { return kind != TableKind::kDense; }
};

struct ClientPlan {
  int index = 0;  // in Plan::clients and in the ledger
  int job = 0;
  int rank = 0;     // in its job
  int process = 0;  // which worker process has it
  std::string transport;
  bool caller_progress = false;
};

struct JobPlan {
  std::string name;
  int clients = 0;
  std::vector<int> tables;  // indices
};

struct Plan {
  int shards = 1;
  int partitions = 32;
  int processes = 1;
  std::vector<JobPlan> jobs;
  std::vector<TablePlan> tables;
  std::vector<ClientPlan> clients;
};

Plan MakePlan(const FaultOptions& options);
std::string Describe(const Plan& plan);

// A table starts at zero and every push subtracts ones (sgd with rate 1), so sums are exact.
v1::TableSpec SpecOf(const Plan& plan, const TablePlan& table);

// The key of row `unit`.
inline uint64_t KeyOf(uint64_t unit) { return unit * 9'000'011 + 3; }

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_RANDOM_FAULTS_PLAN_H_
