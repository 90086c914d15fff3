// The cost of a change on the coordinator's thread, with members that all watch the view. No
// network.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_COORDINATOR_CROWD_H_
#define VERBENA_BENCH_COORDINATOR_CROWD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/base/clock.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/store.h"

namespace verbena::bench {

// Measures the time that another store takes to save.
class TimedStore final : public server::Store {
 public:
  explicit TimedStore(std::unique_ptr<server::Store> store) : store_(std::move(store)) {}
  absl::StatusOr<server::CoordinatorState> Load() override { return store_->Load(); }
  absl::Status SaveAll(const server::CoordinatorState& state,
                       absl::Span<const server::StateChange> changes) override;
  double seconds() const { return static_cast<double>(nanos_) / 1e9; }

 private:
  const std::unique_ptr<server::Store> store_;
  const MonotonicClock clock_;
  int64_t nanos_ = 0;
};

struct CrowdOptions {
  int servers = 100;
  int workers = 1000;
  int tables = 20;
  int partitions = 256;
  // A job's workers start at once, so the coordinator finds several calls whenever it looks.
  int joins_together = 16;
  std::string directory;  // of the coordinator's state; empty: in memory, nothing is made durable
};

struct CrowdFigures {
  double joins_s = 0;              // all workers, joins_together at a time, while all watch
  double joins_saving_s = 0;       // of that, making the changes durable
  std::vector<double> changes_ms;  // each change of configurations, with all answers serialized
  std::vector<double> changes_saving_ms;  // of that, making it durable
  double whole_answer_us = 0;             // an answer with a whole view, serialized
  double start_ms = 0;                    // another coordinator on the same state
  double change_bytes = 0;                // of the answers to one change, to all members
  double heartbeat_us = 0;                // each, of the servers
  uint64_t view_bytes = 0;
  uint64_t resident_bytes = 0;
};

class Crowd {
 public:
  static absl::StatusOr<CrowdFigures> Run(const CrowdOptions& options);

 private:
  struct Member {
    uint64_t incarnation = 0;
    v1::Seen seen;  // of the last answer
    bool watching = false;
  };
  explicit Crowd(const CrowdOptions& options) : options_(options) {}
  absl::Status Start();
  absl::Status MakeCoordinator();
  absl::Status JoinServers();
  absl::Status MakeTables();
  absl::Status JoinSome(int count);
  absl::Status JoinWorkers();
  absl::Status ChangeConfigurations();
  absl::Status BeatHearts();
  absl::Status StartAgain();
  void Watch(Member* member);
  // All members watch, and have the newest view.
  void WatchAll();
  std::string NewId();

  CrowdOptions options_;
  MonotonicClock clock_;
  std::unique_ptr<TimedStore> store_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::vector<std::unique_ptr<Member>> members_;  // servers first
  std::string buffer_;                            // the last answer, serialized
  uint64_t answered_bytes_ = 0;
  uint64_t ids_ = 0;
  CrowdFigures figures_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_COORDINATOR_CROWD_H_
