// Blocks of an input in memory: those used last, up to a bound, and those that a thread reads
// ahead.
//
// **Thread safety**: Get() and Want() from any thread.
//
// Invariants:
//  1. Blocks that are kept take `budget` bytes at most, or are one block. Callers may hold
//     others.
//  2. The reading thread has at most kMostWanted blocks before it; blocks beyond that are
//     read when they are got.
#ifndef VERBENA_WORKER_DATA_BLOCK_CACHE_H_
#define VERBENA_WORKER_DATA_BLOCK_CACHE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::worker {

template <typename T>
struct LoadedBlock {
  std::shared_ptr<const T> content;
  uint64_t bytes = 0;
};

template <typename T>
class BlockCache {
 public:
  static constexpr size_t kMostWanted = 256;

  // Reads a block; from any thread, several at a time.
  using Load = std::function<absl::StatusOr<LoadedBlock<T>>(uint64_t block)>;

  BlockCache(Load load, uint64_t budget) : load_(std::move(load)), budget_(budget) {}
  ~BlockCache() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // Waits for the thread if that is reading it, else reads it.
  absl::StatusOr<std::shared_ptr<const T>> Get(uint64_t block) {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto found = entries_.find(block);
      if (found == entries_.end()) return Read(block, &lock);
      if (found->second.loaded.content != nullptr) {
        Touch(&found->second);
        return found->second.loaded.content;
      }
      changed_.wait(lock);
    }
  }

  // Starts to read a block that will be used soon. Does not wait.
  void Want(uint64_t block) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(block);
    if (found != entries_.end()) {
      if (found->second.loaded.content != nullptr) Touch(&found->second);
      return;
    }
    if (wanted_.size() >= kMostWanted || !StartThread()) return;
    wanted_.push_back(block);
    changed_.notify_all();
  }

  uint64_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct Entry {
    LoadedBlock<T> loaded;  // no content: being read
    std::list<uint64_t>::iterator place;
  };

  void Touch(Entry* entry) { used_.splice(used_.begin(), used_, entry->place); }

  // Without a thread, blocks are read when they are got.
  bool StartThread() {
    if (thread_.joinable()) return true;
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error&) {
      return false;
    }
    return true;
  }

  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !wanted_.empty(); });
      if (ending_) return;
      const uint64_t block = wanted_.front();
      wanted_.pop_front();
      // An error comes again when the block is got.
      if (!entries_.contains(block)) (void)Read(block, &lock);
    }
  }

  absl::StatusOr<std::shared_ptr<const T>> Read(uint64_t block,
                                                std::unique_lock<std::mutex>* lock) {
    entries_[block] = Entry();
    lock->unlock();
    absl::StatusOr<LoadedBlock<T>> loaded = load_(block);
    lock->lock();
    changed_.notify_all();
    if (!loaded.ok()) {
      entries_.erase(block);
      return loaded.status();
    }
    used_.push_front(block);
    entries_[block] = {*loaded, used_.begin()};
    bytes_ += loaded->bytes;
    while (bytes_ > budget_ && used_.size() > 1) {
      const auto last = entries_.find(used_.back());
      bytes_ -= last->second.loaded.bytes;
      entries_.erase(last);
      used_.pop_back();
    }
    return loaded->content;
  }

  const Load load_;
  const uint64_t budget_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::flat_hash_map<uint64_t, Entry> entries_;
  std::list<uint64_t> used_;  // blocks that are read, the one used last first
  uint64_t bytes_ = 0;
  std::deque<uint64_t> wanted_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_BLOCK_CACHE_H_
