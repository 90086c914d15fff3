// A cluster with many tables, jobs, clients and checkpoints: how long each kind of call takes.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_SCALE_MANY_H_
#define VERBENA_BENCH_SCALE_MANY_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cluster.h"
#include "bench/workers/quiet.h"
#include "verbena/client.h"

namespace verbena::bench {

struct ManyOptions {
  std::string verbenad, verbena;  // paths of the programs
  std::string transport = "shm";
  int servers = 2;
  int tables = 100;
  int jobs = 40;
  int checkpoints = 40;
  int clients = 20;  // that stay, and do nothing
};

struct ManyFigures {
  // Seconds of all calls of a kind together, by its name.
  std::map<std::string, double> seconds;
  // Processor time of the coordinator and the servers meanwhile, which other load on the machine
  // does not change much. The quick job's part of it grows with the time.
  std::map<std::string, double> cpu_seconds;
  // A job that pushes and pulls a small table: alone, and beside all of the above.
  double alone_p999_us = 0;
  std::map<std::string, double> beside_p999_us;  // by the kind of calls
  // Processor time of the coordinator when everything exists and nothing changes.
  double idle_cpu_percent = 0;
  double idle_wakes = 0;  // a second, of all its threads
};

class Many {
 public:
  static absl::StatusOr<ManyFigures> Run(const ManyOptions& options);

 private:
  explicit Many(const ManyOptions& options) : options_(options) {}
  absl::Status Start();
  absl::Status RunAll();
  absl::Status SampleAlone();
  absl::Status CreateTables();
  absl::Status RunJobs();
  absl::Status ConnectClients();
  absl::Status Status();
  absl::Status Save();
  absl::Status Export();
  absl::Status Restore();
  absl::Status CheckpointOften();
  absl::Status ListCheckpoints();
  absl::Status DropTables();
  absl::Status Idle();
  // Runs `calls` while the quick job pushes and pulls.
  template <typename Calls>
  absl::Status Time(const std::string& name, Calls calls);
  absl::Status Program(std::vector<std::string> arguments) const;
  absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& job, bool observer) const;
  std::string Directory(const std::string& name) const { return folder_ + "/" + name; }

  const ManyOptions options_;
  std::string folder_;  // of checkpoints
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Quiet> quick_;
  std::vector<double> alone_;      // seconds of the quick job's calls, with nothing beside it
  std::unique_ptr<Client> owner_;  // of the tables
  std::vector<std::unique_ptr<Client>> clients_;
  ManyFigures figures_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_SCALE_MANY_H_
