// Numbers the distinct keys of a batch in order of first use.
//
// **Thread safety**: one thread.
#ifndef VERBENA_WORKER_DATA_KEY_INDEX_H_
#define VERBENA_WORKER_DATA_KEY_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "worker/train/random.h"

namespace verbena::worker {

// A hash table with linear probing that is emptied by counting up a stamp: its memory is used again
// from batch to batch without being cleared.
class KeyIndex {
 public:
  KeyIndex() : entries_(kSmallest) {}

  // Forgets all keys.
  void Clear() {
    size_ = 0;
    if (++stamp_ != 0) return;
    for (Entry& entry : entries_) entry.stamp = 0;
    stamp_ = 1;
  }

  // The key's number. A key not seen since Clear() gets the next one and is appended to *keys.
  uint32_t Place(uint64_t key, std::vector<uint64_t>* keys) {
    if (2 * (size_ + 1) > entries_.size()) Grow();
    Entry& entry = Find(key);
    if (entry.stamp != stamp_) {
      entry = {key, stamp_, static_cast<uint32_t>(size_++)};
      keys->push_back(key);
    }
    return entry.place;
  }

 private:
  static constexpr size_t kSmallest = 1024;  // a power of two

  struct Entry {
    uint64_t key = 0;
    uint32_t stamp = 0;
    uint32_t place = 0;
  };

  // Where the key is or belongs; half of the entries are free, so the search ends.
  Entry& Find(uint64_t key) {
    const size_t mask = entries_.size() - 1;
    for (size_t i = Mix(key) & mask;; i = (i + 1) & mask) {
      Entry& entry = entries_[i];
      if (entry.stamp != stamp_ || entry.key == key) return entry;
    }
  }
  void Grow() {
    std::vector<Entry> old = std::exchange(entries_, std::vector<Entry>(2 * entries_.size()));
    for (const Entry& entry : old) {
      if (entry.stamp == stamp_) Find(entry.key) = entry;
    }
  }

  std::vector<Entry> entries_;
  size_t size_ = 0;
  uint32_t stamp_ = 1;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_KEY_INDEX_H_
