// A cluster with a dense and an embedding table, saved, restored and trained.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_CHECKPOINT_JOB_H_
#define VERBENA_BENCH_CHECKPOINT_JOB_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cluster.h"
#include "server/checkpoint/checkpoint_task.h"
#include "server/checkpoint/restore_task.h"
#include "verbena/client.h"

namespace verbena::bench {

inline constexpr char kDense[] = "dense";
inline constexpr char kRows[] = "rows";

struct JobOptions {
  std::string verbenad;
  Wire wire;
  int servers = 2;
  int shards = 1;  // of each
  uint64_t dense_mib = 1024;
  uint64_t rows = 10'000'000;
  uint32_t dim = 16;
};

class Job {
 public:
  // Both tables are full: plain gradient descent, async.
  static absl::StatusOr<std::unique_ptr<Job>> Make(const JobOptions& options);

  // One step of training: 16 MiB of the dense table, in turn, are pushed and pulled, 8,192 random
  // rows are pushed, and as many looked up.
  absl::Status Step();
  Cluster& cluster() { return *cluster_; }

 private:
  explicit Job(const JobOptions& options) : options_(options) {}
  absl::Status MakeTables();
  absl::Status MakeRows();

  const JobOptions options_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;  // leaves before the cluster ends
  Table dense_, rows_;
  Region gradients_, parameters_, row_gradients_, values_;
  std::vector<uint64_t> pushed_, looked_up_;
  uint64_t next_range_ = 0;
  std::mt19937_64 random_{1};
};

// Steps without a pause, until this ends.
class Training {
 public:
  explicit Training(Job* job);
  ~Training() { End().IgnoreError(); }
  uint64_t steps() const { return steps_; }
  absl::Status End();

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> steps_ = 0;
  absl::Status failed_;  // the thread's, until it has ended
  std::thread thread_;
};

struct Done {
  double seconds = 0;
  uint64_t bytes = 0;  // of all files
  std::string path;    // of the checkpoint
};
// To their end, in this thread; `meanwhile` is called every some milliseconds.
absl::StatusOr<Done> Save(server::CheckpointTaskOptions options,
                          const std::function<void()>& meanwhile = {});
absl::StatusOr<double> Restore(const server::RestoreTaskOptions& options);  // seconds

// Files of a checkpoint that have something of these tables.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path,
                                                 const std::vector<std::string>& tables);

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_CHECKPOINT_JOB_H_
