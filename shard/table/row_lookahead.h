// Lookups of many keys, in one slice or several in turn: the memory of the next keys is prefetched
// while one key is processed.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_TABLE_ROW_LOOKAHEAD_H_
#define VERBENA_SHARD_TABLE_ROW_LOOKAHEAD_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "shard/table/row_store.h"

namespace verbena::shard {

class RowLookahead {
 public:
  // Keys of one store, behind those added before.
  void Add(const RowStore* rows, absl::Span<const uint64_t> keys) {
    added_ += keys.size();
    if (!keys.empty()) parts_.push_back({rows, keys.data(), added_});
  }
  // Key by key, each once: the state of its lookup. Its row is being prefetched.
  const RowStore::Probe& Next() {
    if (taken_ % kStep == 0) {
      for (const size_t until = taken_ / kStep + kSteps; begun_ <= until; ++begun_) Begin(begun_);
    }
    return ring_[taken_++ % kRing].probe;
  }
  // The rows that so many keys have, probably.
  void Take(size_t keys, uint32_t* rows) {
    for (size_t i = 0; i < keys; ++i) rows[i] = taken_ < added_ ? Next().row : RowStore::kNone;
  }

 private:
  // Keys per lookup step: a core has 10 to 16 line fill buffers, and some tens behind them. A step
  // of many keys is one loop whose misses overlap, whereas all steps of one key would wait for each
  // other.
  static constexpr size_t kStep = 32;
  static constexpr size_t kSteps = 6;  // before the last
  static constexpr size_t kRing = 256;
  // Parts from when a store is sent for, and then its directory, to its first key.
  static constexpr size_t kStoreAhead = 4, kDirectoryAhead = 2;
  static_assert(kRing >= (kSteps + 1) * kStep && kRing % kStep == 0);
  struct Part {
    const RowStore* rows;
    const uint64_t* keys;
    size_t end;  // of all keys
  };
  struct UnderWay {
    const RowStore* rows;
    RowStore::Probe probe;
  };
  // Keys of a block that continue to their second line, which takes two more steps.
  static constexpr size_t kDetours = 3;  // that begin, turn and end at a time
  struct Detour {
    size_t count = 0;
    UnderWay* keys[kStep];
  };

  // The first step of the kStep keys of `block`, and one more of each of the blocks before it.
  void Begin(size_t block) {
    ForBlock(block, 0, [this](size_t i, UnderWay& u) {
      while (i >= parts_[part_].end) {
        begin_ = parts_[part_++].end;
        if (const size_t p = part_ + kStoreAhead; p < parts_.size()) {
          parts_[p].rows->PrefetchStore();
        }
        if (const size_t p = part_ + kDirectoryAhead; p < parts_.size()) {
          parts_[p].rows->PrefetchDirectory();
        }
      }
      const Part& part = parts_[part_];
      u.rows = part.rows;
      part.rows->Start(part.keys[i - begin_], &u.probe);
    });
    ForBlock(block, 1, [](size_t, UnderWay& u) { u.rows->PrefetchLine(&u.probe); });
    Detour& detour = detours_[block % kDetours];
    detour.count = 0;
    ForBlock(block, 2, [&detour](size_t, UnderWay& u) {
      detour.keys[detour.count] = &u;
      detour.count += u.rows->Guess(&u.probe) ? 1 : 0;
    });
    ForDetour(block, 1, [](UnderWay& u) { u.rows->PrefetchLine(&u.probe); });
    ForDetour(block, 2, [](UnderWay& u) { u.rows->GuessAgain(&u.probe); });
    ForBlock(block, kSteps - 1, [](size_t, UnderWay& u) { u.rows->PrefetchRow(&u.probe); });
  }
  // For the keys that went on a detour in the Begin() so many before this one.
  template <typename Step>
  void ForDetour(size_t block, size_t before, Step step) {
    const Detour& detour = detours_[(block + kDetours - before) % kDetours];
    for (size_t i = 0; i < detour.count; ++i) step(*detour.keys[i]);
  }
  template <typename Step>
  void ForBlock(size_t block, size_t before, Step step) {
    if (block < before) return;
    const size_t first = (block - before) * kStep;
    const size_t end = first + kStep < added_ ? first + kStep : added_;
    for (size_t i = first; i < end; ++i) step(i, ring_[i % kRing]);
  }

  absl::InlinedVector<Part, 1> parts_;
  size_t added_ = 0;          // keys
  size_t part_ = 0;           // of the key that begins next
  size_t begin_ = 0;          // its first key
  size_t begun_ = 0;          // blocks
  size_t taken_ = 0;          // keys
  Detour detours_[kDetours];  // by the Begin() in which they began
  UnderWay ring_[kRing];
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_ROW_LOOKAHEAD_H_
