// The servers and the coordinator of a run of random_faults: real processes, started, killed and
// stopped one by one, and whether the cluster has its full redundancy.
//
// **Thread safety**: one owner thread.
//
// **Invariants**
// 1. KillServer() kills only when every partition has all of its copies on servers that are alive,
//    so no data can be lost by it.
// 2. Nothing that is started is waited for, except in StartAll(): a server may start while the
//    coordinator is stopped.
#ifndef VERBENA_TESTS_FAULTS_RANDOM_FAULTS_CLUSTER_H_
#define VERBENA_TESTS_FAULTS_RANDOM_FAULTS_CLUSTER_H_

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/faults/random_faults_plan.h"
#include "tests/support/process.h"

namespace verbena::test {

class FaultCluster {
 public:
  static constexpr int kCoordinator = -1;  // as a member; servers count from 0

  // `directory` is for files, those of the cold tier too.
  FaultCluster(const FaultOptions& options, const Plan& plan, const std::string& directory);
  // The coordinator, then the servers; waits for them. Empty, or the problem.
  std::string StartAll();

  const std::string& address() const { return address_; }
  static std::string NameOf(int member);
  std::vector<int> members() const;  // the coordinator first
  Process& process(int member);

  // False, and nothing was done, where a copy might be the last one.
  bool KillServer(int server);
  void KillCoordinator();
  // Starts a killed member. A server is new and empty; the coordinator has its state.
  void Start(int member);
  void Stop(int member);
  void Continue(int member);
  // Whether a process that was started serves.
  bool Ready(int member);
  // Empty when every partition has all of its copies on servers that live, and none is a learner;
  // else the reason why not.
  std::string Missing();
  // Servers, those with the most primaries first; in any order where the coordinator is away.
  std::vector<int> ByPrimaries();
  // Ends servers, then the coordinator, as an operator does. Empty, or the problem.
  std::string End();
  // Which process has ended by itself; empty: none.
  std::string Ended();
  // The ends of their logs.
  std::string Logs();
  // Whole logs, those of processes that were killed too, into `directory`.
  void KeepLogs(const std::string& directory);

 private:
  struct Member {
    std::unique_ptr<Process> process;
    std::string ready_file;
    bool killed = false;
  };
  Member& Of(int member) { return members_[member + 1]; }
  void Launch(int member, std::vector<std::string> argv);

  FaultOptions options_;
  Plan plan_;
  std::string directory_;
  std::string address_;
  int starts_ = 0;
  std::vector<Member> members_;  // the coordinator first
  std::set<uint64_t> gone_;      // incarnations of servers that were killed
  std::vector<std::pair<std::string, std::string>> old_logs_;  // name, text
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_RANDOM_FAULTS_CLUSTER_H_
