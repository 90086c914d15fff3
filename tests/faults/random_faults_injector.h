// Draws faults, brings them about, and waits after each for full redundancy.
//
// **Thread safety**: one owner thread.
//
// **Invariants**
// 1. A server is killed only when no partition can lose its last copy by it; a fault that comes
//    before redundancy is back kills no server.
// 2. Which faults come, how long they last and whether they meet the server with the most, the
// second
//    most, ... primaries are functions of the seed; which server that is, and when one may be
//    killed, is not.
#ifndef VERBENA_TESTS_FAULTS_RANDOM_FAULTS_INJECTOR_H_
#define VERBENA_TESTS_FAULTS_RANDOM_FAULTS_INJECTOR_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/faults/random_faults_cluster.h"
#include "tests/faults/random_faults_ledger.h"
#include "tests/faults/random_faults_memory.h"
#include "tests/faults/random_faults_plan.h"

namespace verbena::test {

class FaultInjector {
 public:
  // `look` is called every 50 ms or more often: it reports processes that ended by themselves.
  FaultInjector(const FaultOptions& options, FaultCluster* cluster, Ledger* ledger,
                MemoryWatch* memory, std::chrono::steady_clock::time_point start,
                std::function<void()> look);

  // Waits until redundancy is full; false: it is not in time, or the run is over.
  bool AwaitRedundancy(double* seconds);
  // All faults of the run, each with a line on standard output; ends early with the run.
  void Run();

  int done() const { return done_; }
  double longest_seconds() const { return longest_; }

 private:
  enum class Kind { kKill, kStop, kCoordinatorKill, kCoordinatorStop };
  struct Fault {
    Kind kind;
    size_t place;   // of the server, by the number of its primaries
    double begin;   // seconds after the first of its group
    double length;  // seconds until the process goes on, or another is started
    int member = FaultCluster::kCoordinator;  // from Play() on
  };
  struct Action {
    double at;
    size_t fault;
    bool begins;
  };

  std::vector<Fault> DrawGroup();
  // None: no kind that is allowed after the first may come.
  std::optional<Fault> DrawFault(bool first);
  // False: the run is over.
  bool Play(std::vector<Fault>* group);
  static bool OfServer(const Fault& fault);
  static std::string Text(const Fault& fault);
  bool Begin(const Fault& fault);
  void End(const Fault& fault);
  bool Pause(double seconds);

  const FaultOptions& options_;
  FaultCluster* cluster_;
  Ledger* ledger_;
  MemoryWatch* memory_;
  std::function<void()> look_;
  Draw draw_;
  std::chrono::steady_clock::time_point start_;
  int done_ = 0;
  double longest_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_RANDOM_FAULTS_INJECTOR_H_
