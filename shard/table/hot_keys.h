// The most requested keys of one table on this shard: SpaceSaving (Metwally, Agrawal and El Abbadi
// 2005, "Efficient computation of frequent and top-k elements in data streams") over a sample.
// Older requests count less and less.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A key with more than sampled() / kCounters of the counted samples is listed.
//  2. A listed key has been sampled `count` times at most and `count - error` times at least.
#ifndef VERBENA_SHARD_TABLE_HOT_KEYS_H_
#define VERBENA_SHARD_TABLE_HOT_KEYS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace verbena::shard {

struct HotKey {
  uint64_t key = 0;
  uint64_t count = 0;
  uint64_t error = 0;
  bool operator==(const HotKey&) const = default;
};

class HotKeys {
 public:
  static constexpr size_t kCounters = 64;
  // One of so many keys is sampled, which costs a lookup about 1 % of its time.
  static constexpr uint32_t kOneIn = 32;
  // After so many samples (two million keys) all counts are halved.
  static constexpr uint64_t kHalvedAfter = uint64_t{1} << 16;

  // The keys of a request, in any order.
  void Count(absl::Span<const uint64_t> keys) {
    while (skip_ < keys.size()) {
      Add(keys[skip_]);
      skip_ += NextSkip();
    }
    skip_ -= keys.size();
  }
  // Adds a sampled key.
  void Add(uint64_t key);

  // At most `most`, those with the highest counts first.
  std::vector<HotKey> Top(size_t most) const;
  // The denominator of all counts.
  uint64_t sampled() const { return sampled_; }

 private:
  // Uniform in 1 to 2 * kOneIn - 1: a fixed distance would sample the same features of each
  // example.
  size_t NextSkip() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return 1 + (random_ >> 32) % (2 * kOneIn - 1);
  }
  void Halve();

  uint64_t random_ = 0x9e3779b97f4a7c15u;
  size_t skip_ = 0;  // keys until the next that is looked at
  uint64_t sampled_ = 0;
  size_t used_ = 0;
  std::array<uint64_t, kCounters> keys_ = {};
  std::array<uint64_t, kCounters> counts_ = {};
  std::array<uint64_t, kCounters> errors_ = {};
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_HOT_KEYS_H_
