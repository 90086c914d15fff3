// Lookups of many keys, of one slice or several in turn, with the memory of the next ones on its
// way to the cache while one is dealt with.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_TABLE_ROW_LOOKAHEAD_H_
#define VERBENA_SHARD_TABLE_ROW_LOOKAHEAD_H_

#include <array>
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
  // Key by key, once for each: how far its lookup is. Its row is on its way.
  const RowStore::Probe& Next() {
    for (const size_t until = taken_ + 4 * kStep; at_ <= until; ++at_) {
      Start(at_);
      if (at_ >= kStep && at_ - kStep < added_) Do(at_ - kStep, 1);
      if (at_ >= 2 * kStep && at_ - 2 * kStep < added_) Do(at_ - 2 * kStep, 2);
      if (at_ >= 3 * kStep && at_ - 3 * kStep < added_) Do(at_ - 3 * kStep, 3);
    }
    return ring_[taken_++ % kRing].probe;
  }
  // So many of them, as far as there are.
  void Skip(size_t keys) {
    for (; keys > 0 && taken_ < added_; --keys) Next();
  }

 private:
  // Keys from one step of a lookup to the next: a core has 10 to 16 line fill buffers, and some
  // tens behind them.
  static constexpr size_t kStep = 16;
  static constexpr size_t kRing = 128;
  static_assert(kRing > 4 * kStep);
  struct Part {
    const RowStore* rows;
    const uint64_t* keys;
    size_t end;  // of all keys
  };
  struct UnderWay {
    const RowStore* rows = nullptr;
    RowStore::Probe probe;
  };

  void Start(size_t i) {
    if (i >= added_) return;
    while (i >= parts_[part_].end) begin_ = parts_[part_++].end;
    const Part& part = parts_[part_];
    ring_[i % kRing] = {part.rows, part.rows->Start(part.keys[i - begin_])};
  }
  void Do(size_t i, int step) {
    UnderWay& u = ring_[i % kRing];
    if (step == 1) u.rows->PrefetchLine(u.probe);
    if (step == 2) u.rows->Guess(&u.probe);
    if (step == 3) u.rows->PrefetchRow(u.probe);
  }

  absl::InlinedVector<Part, 1> parts_;
  size_t added_ = 0;  // keys
  size_t part_ = 0;   // of the key that begins next
  size_t begin_ = 0;  // its first key
  size_t at_ = 0;
  size_t taken_ = 0;
  std::array<UnderWay, kRing> ring_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_ROW_LOOKAHEAD_H_
