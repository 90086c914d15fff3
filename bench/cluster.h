// A cluster of verbenad processes on loopback, for as long as a benchmark runs.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_CLUSTER_H_
#define VERBENA_BENCH_CLUSTER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::bench {

// How data travels; the same for servers and workers.
struct Wire {
  std::string transport = "shm";  // "shm", "verbs"
  std::string device;  // verbs: "rxe0", "rxe0:1", "rxe0,rxe1" (rails); empty: the nearest usable
};

struct ClusterOptions {
  std::string verbenad;  // path of the program
  Wire wire;
  int servers = 1;
  int shards = 1;       // of each server
  int server_cpu = -1;  // all servers run there; -1: where the kernel likes
  int replicas = 1;     // copies of a partition
  int lease_ms = 0;     // 0: the daemon's default
  int partitions = 0;   // 0: the daemon's default
  std::vector<std::string> coordinator_options = {};  // besides
  std::vector<std::string> server_options = {};       // the same
  bool cold = false;  // servers have a directory for cold rows, in the folder of the cluster
};

class Cluster {
 public:
  // Returns once every server has joined. Errors carry the end of the log.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const ClusterOptions& options);
  // Sends SIGTERM, and SIGKILL to processes that are left after 5 s; removes the folder of logs and
  // state.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  const std::string& address() const { return address_; }  // host:port of the coordinator
  // SIGKILL; returns once the process is gone. Servers are named "server-0" and so on.
  void KillServer(int index);
  // Starts a server in place of one that was killed; returns once it has joined.
  absl::Status RestartServer(int index);
  // host:port of a server's metrics; empty: it is not running.
  std::string MetricsAddress(int index) const;
  pid_t coordinator_pid() const { return pids_[0]; }
  // CPU time all processes of the cluster have used.
  int64_t CpuNanos() const;
  // Memory that the processes have in use, pages of files and of shared memory included
  // (/proc/PID/statm).
  int64_t ResidentBytes() const;

 private:
  Cluster() = default;
  absl::StatusOr<pid_t> Spawn(const std::string& name, std::vector<std::string> arguments, int cpu);
  absl::Status SpawnCoordinator();
  absl::StatusOr<pid_t> SpawnServer(int index);
  absl::StatusOr<std::string> AwaitAddress(const std::string& name, pid_t pid) const;

  ClusterOptions options_;
  std::string folder_;
  std::string address_;
  std::vector<pid_t> pids_;  // of the coordinator, then of the servers
};

// CPU time of every thread of a process, to the nanosecond (/proc/PID/task/TID/schedstat).
int64_t ProcessCpuNanos(pid_t pid);

// Binds the calling thread, and those it starts, to one CPU.
void PinToCpu(int cpu);

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_CLUSTER_H_
