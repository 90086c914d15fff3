// Training and changes of tables on a cluster whose coordinators are elected, and the checks that
// no call has failed and nothing is lost.
//
// **Thread safety**: one owner thread; the work runs on threads of its own.
#ifndef VERBENA_TESTS_FAULTS_COORDINATOR_WORK_H_
#define VERBENA_TESTS_FAULTS_COORDINATOR_WORK_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/faults/coordinator_callers.h"
#include "tests/faults/etcd_cluster.h"
#include "verbena/client.h"

namespace verbena::test {

inline constexpr uint64_t kElements = 20000;
// Of every call: longer than any fault here takes.
inline constexpr absl::Duration kPatience = absl::Seconds(90);

v1::TableSpec Spec(const std::string& name, v1::Consistency consistency = v1::CONSISTENCY_ASYNC);

// A coordinator at `address` whose state is where the options `state` name. Ready.
std::unique_ptr<Process> StartCoordinator(const std::string& address,
                                          std::vector<std::string> state);

// Workers that push gradients of one and pull, one of an async table and one of a sync table, and
// one that makes and drops tables.
class Work {
 public:
  explicit Work(const std::string& coordinators);
  ~Work() { End(); }

  void End();
  // All pushes that were acknowledged are in the tables once each.
  void CheckTables();
  // Of the slower training.
  int64_t pushes() const { return std::min(trainings_[0].pushes, trainings_[1].pushes); }
  int64_t tables() const { return tables_; }
  int64_t calls() const { return calls_; }
  // Counts a call of another one, from any thread. If it failed, all work ends.
  void Note(const char* call, const absl::Status& status);
  // The first call that failed; empty: none.
  std::string failed();

 private:
  static constexpr v1::Consistency kinds[] = {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC};
  struct Training {
    Table table;
    std::atomic<int64_t> pushes = 0;
  };

  void Train(size_t i);
  void Tables();

  std::vector<std::unique_ptr<Client>> clients_;
  std::array<Training, 2> trainings_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> tables_ = 0, calls_ = 0;
  std::mutex mutex_;
  std::string failed_;  // guarded by mutex_
};

// Incarnations of all members but the callers': another one would mean that a lease has ended.
std::vector<uint64_t> Members(const v1::ClusterView& view);

// A cluster with work on it.
class World {
 public:
  explicit World(const EtcdClusterOptions& options = {});
  // Work of both kinds was done since, after the fault.
  void Goes(const char* after);
  // Pushes are answered while no coordinator leads.
  void Flows(const char* during);
  // No call has failed, no lease has ended, nothing is lost, and the answers are those of one
  // coordinator. Returns the counts.
  std::string Check();

  EtcdCluster cluster;
  std::unique_ptr<Work> work;
  std::vector<uint64_t> members;
  std::unique_ptr<CoordinatorCallers> callers;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_COORDINATOR_WORK_H_
