// Jobs whose periodic checkpoints fail, for the cluster's status.
//
// **Thread safety**: thread-safe.
//
// Invariants:
//  1. A job is listed from its first failure on until a save of it succeeds, or it has no tables.
#ifndef VERBENA_SERVER_CHECKPOINT_FAILING_CHECKPOINTS_H_
#define VERBENA_SERVER_CHECKPOINT_FAILING_CHECKPOINTS_H_

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "rdma/base/clock.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

class FailingCheckpoints {
 public:
  // `clock` outlives it.
  explicit FailingCheckpoints(const Clock* clock) : clock_(*clock) {}

  void Failed(const std::string& job, const std::string& directory, const absl::Status& status);
  void Saved(const std::string& job);
  // The jobs that have tables.
  void KeepOnly(const std::set<std::string>& jobs);

  // With a view: without jobs that have no tables in it.
  void AddTo(v1::GetViewResponse* response) const;

 private:
  struct Failing {
    std::string directory;
    uint64_t failures = 0;
    int64_t since_ns = 0;
    std::string error;
  };

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::map<std::string, Failing> jobs_;  // guarded by mutex_
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_FAILING_CHECKPOINTS_H_
