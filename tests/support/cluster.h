// A small cluster of real verbenad processes on loopback.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_TESTS_SUPPORT_CLUSTER_H_
#define VERBENA_TESTS_SUPPORT_CLUSTER_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace verbena::test {

// Paths of the built programs, from the environment that CMake gives the tests.
std::string VerbenadPath();
std::string TrainPath();
std::string CliPath();

// VERBENA_TEST_TRANSPORT, or "auto": the transport of the cluster's servers and its users, so that
// the same tests run over shm here and over verbs where there is an RDMA device.
std::string TestTransport();

// 127.0.0.1 and a port that nobody listens on, outside the range of outgoing connections: those
// would take it while the process that listens there is restarted.
std::string AddressToKeep();

// A field of a flat JSON object: the text of its value, without quotes.
std::string JsonField(const std::string& json, const std::string& name);
// The same of every field of that name, wherever it is; of an object or array, "".
std::vector<std::string> JsonFields(const std::string& json, const std::string& name);

struct ProcessClusterOptions {
  int servers = 2;
  int shards = 2;
  int lease_ms = 2000;
  int replicas = 1;                                   // copies of a partition
  std::string transport = {};                         // of every server; empty: TestTransport()
  std::vector<std::string> coordinator_options = {};  // besides
  std::vector<std::string> server_options = {};       // the same
  std::string cold_dir = {};                          // of each server one below it; empty: none
  std::string verbenad = {};                          // the program; empty: VerbenadPath()
};

class ProcessCluster {
 public:
  explicit ProcessCluster(const ProcessClusterOptions& options = {});

  // Host:port of the coordinator.
  const std::string& address() const { return address_; }
  Process& coordinator() { return *coordinator_; }
  Process& server(int index) { return *servers_[index].process; }
  const std::string& metrics(int index) const { return servers_[index].metrics; }
  // Empty unless coordinator_options ask for them.
  const std::string& coordinator_metrics() const { return coordinator_metrics_; }
  int servers() const { return static_cast<int>(servers_.size()); }

  // The program of all that is started from now on.
  void UseProgram(const std::string& verbenad) { options_.verbenad = verbenad; }
  // Kills the coordinator and starts it again on its state and address.
  void RestartCoordinator();
  // Starts a server under the name of one that was killed: it is new and empty.
  void RestartServer(int index);
  // Starts one more server, which is empty.
  void AddServer();
  // SIGKILL; returns once the process is gone.
  void KillServer(int index);
  // Waits until every server answers under its incarnation in the view, and every partition has all
  // of its replicas, none of them a learner. Needs a table: partitions are placed with the first.
  bool WaitReplicated(absl::Duration at_most = absl::Seconds(30));
  // Whether it is so now.
  bool CheckReplicated();
  // The last output of `verbena status --json` that one of these two has seen.
  const std::string& status() const { return status_; }
  // The last output of the coordinator and the servers.
  std::string logs() const;
  // The sum of a metric over all servers and shards.
  double Metric(const std::string& name) const;

 private:
  struct Server {
    std::unique_ptr<Process> process;
    std::string metrics;
  };
  void StartCoordinator(const std::string& listen);
  std::string WaitReady(Process& process, const std::string& ready_file);
  bool Replicated() const;

  ProcessClusterOptions options_;
  TemporaryDirectory directory_;
  int starts_ = 0;
  std::string address_;
  std::string coordinator_metrics_;
  std::string status_;
  std::unique_ptr<Process> coordinator_;
  std::vector<Server> servers_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SUPPORT_CLUSTER_H_
