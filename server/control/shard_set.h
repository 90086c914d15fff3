// The shards of this process for other threads: a task to run each, and snapshots of all of them.
//
// **Thread safety**: stated at each function.
#ifndef VERBENA_SERVER_CONTROL_SHARD_SET_H_
#define VERBENA_SERVER_CONTROL_SHARD_SET_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/executor/driver.h"
#include "server/executor/shard_executor.h"

namespace verbena::server {

// Lets a driver run a ShardExecutor. Owner thread only.
class ShardTask final : public Machine {
 public:
  explicit ShardTask(std::unique_ptr<ShardExecutor> executor) : executor_(std::move(executor)) {}
  ShardExecutor& executor() { return *executor_; }
  bool RunOnce() override { return executor_->RunOnce(); }
  bool Arm() override { return executor_->Arm(); }
  void Disarm() override { executor_->Disarm(); }
  void AppendDescriptors(std::vector<int>* fds) const override {
    executor_->AppendDescriptors(fds);
  }
  int64_t NextTimerNanos() const override { return executor_->NextTimerNanos(); }

 private:
  const std::unique_ptr<ShardExecutor> executor_;
};

struct ShardHandle {
  std::unique_ptr<ShardTask> machine;
  std::unique_ptr<Driver> driver;
};

// Built before the threads that read it start; `incarnation` changes when the server joins.
struct ShardSet {
  std::vector<ShardHandle> shards;
  std::atomic<uint64_t> incarnation{0};
};

// One entry for each shard; empty for a shard that has not answered.
using Snapshots = std::vector<std::optional<ShardSnapshot>>;

// Asks every shard. `done` runs once, on the thread of the last shard to answer; at once when there
// is no shard; never when a shard stops first. `partitions`: ShardSnapshot::partitions is wanted.
// Any thread.
void RequestSnapshots(const ShardSet& set, bool partitions,
                      std::function<void(const Snapshots&)> done);

// Waits until all have answered, at most `timeout`. Any thread but a shard's.
Snapshots WaitForSnapshots(const ShardSet& set, absl::Duration timeout);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_SHARD_SET_H_
