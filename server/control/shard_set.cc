#include "server/control/shard_set.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace verbena::server {
namespace {

// Shared by the asker and the closures: a shard may answer after the asker has given up.
struct Gathering {
  std::mutex mutex;
  std::condition_variable all_in;
  Snapshots snapshots;  // guarded by mutex
  size_t missing = 0;   // guarded by mutex
};

// `done` runs without the lock: all answers are there, so no other thread writes.
void Ask(const ShardSet& set, bool partitions, const std::shared_ptr<Gathering>& gathering,
         const std::function<void(const Snapshots&)>& done) {
  gathering->snapshots.resize(set.shards.size());
  gathering->missing = set.shards.size();
  for (size_t i = 0; i < set.shards.size(); ++i) {
    ShardExecutor* executor = &set.shards[i].machine->executor();
    executor->inbox().Post([gathering, executor, partitions, i, done] {
      ShardSnapshot snapshot = executor->Snapshot();
      if (partitions) snapshot.partitions = executor->PartitionContents();
      {
        const std::lock_guard<std::mutex> lock(gathering->mutex);
        gathering->snapshots[i] = std::move(snapshot);
        if (--gathering->missing > 0) return;
      }
      gathering->all_in.notify_all();
      if (done) done(gathering->snapshots);
    });
  }
}

}  // namespace

void RequestSnapshots(const ShardSet& set, bool partitions,
                      std::function<void(const Snapshots&)> done) {
  if (set.shards.empty()) return done({});
  Ask(set, partitions, std::make_shared<Gathering>(), done);
}

Snapshots WaitForSnapshots(const ShardSet& set, absl::Duration timeout) {
  auto gathering = std::make_shared<Gathering>();
  Ask(set, /*partitions=*/false, gathering, {});
  std::unique_lock<std::mutex> lock(gathering->mutex);
  gathering->all_in.wait_for(lock, std::chrono::microseconds(absl::ToInt64Microseconds(timeout)),
                             [&] { return gathering->missing == 0; });
  return gathering->snapshots;
}

}  // namespace verbena::server
