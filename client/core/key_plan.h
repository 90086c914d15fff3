// The keys of a call on an embedding table, prepared for records: each distinct key once, grouped
// by partition, ascending within a partition, with its positions in the call.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. The positions of a key ascend, so that rows are summed in the order of the call.
//  2. Ranges are by partition, ascending, and cover every key.
#ifndef VERBENA_CLIENT_CORE_KEY_PLAN_H_
#define VERBENA_CLIENT_CORE_KEY_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace verbena::client {

// Maximum number of keys of one call: a position has 32 bits, and the call's memory is bounded.
inline constexpr size_t kMaxKeys = size_t{1} << 22;

// Memory that Build() needs only while it runs; kept for the next call.
struct KeyScratch {
  struct Item {
    uint64_t key;
    uint32_t position;
  };
  std::vector<uint32_t> partitions;  // by position
  std::vector<uint32_t> cursors;     // by partition
  std::vector<Item> items;           // by partition, then key, then position
};

// Sorts items by partition, then key, then position, and sets cursors to the end of each
// partition's items. At most kMaxKeys keys.
void SortByPartition(absl::Span<const uint64_t> keys, uint32_t table, uint32_t partitions,
                     KeyScratch* scratch);

class KeyPlan {
 public:
  // Keys [first, first + count) of keys() are in `partition`.
  struct Range {
    uint32_t partition;
    uint32_t first;
    uint32_t count;
  };

  // At most kMaxKeys keys. Allocates only if the call is larger than all earlier ones.
  void Build(absl::Span<const uint64_t> keys, uint32_t table, uint32_t partitions,
             KeyScratch* scratch);

  absl::Span<const uint64_t> keys() const { return keys_; }
  absl::Span<const Range> ranges() const { return ranges_; }
  // The positions of keys()[index] in the call.
  absl::Span<const uint32_t> positions(size_t index) const {
    return {positions_.data() + starts_[index], starts_[index + 1] - starts_[index]};
  }

 private:
  void AddRange(uint32_t partition, absl::Span<const KeyScratch::Item> items);

  std::vector<uint64_t> keys_;
  std::vector<Range> ranges_;
  std::vector<uint32_t> starts_;  // start of each key's positions, and the end
  std::vector<uint32_t> positions_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_KEY_PLAN_H_
