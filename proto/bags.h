// What a lookup of bags (RecordType::kLookupBags) says of each of its keys. Its payload is
//     key (uint64) x keys of group 0, of group 1, ... | zeros to a multiple of 64 | BagUse x keys
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_BAGS_H_
#define VERBENA_PROTO_BAGS_H_

#include <cstdint>
#include <type_traits>

#include "proto/record.h"

namespace verbena {

// The row of key i counts in the sum of bag uses[i].bag, times uses[i].weight. A key may be there
// several times, and counts as often. Any float is a weight: what it makes of the sums is the
// asker's, and nobody else sees them.
struct BagUse {
  uint32_t bag;
  float weight;
};
static_assert(sizeof(BagUse) == 8 && std::is_trivially_copyable_v<BagUse>);

// The most bags of a lookup: those of the shortest row. Of longer ones fewer fit kMaxRowsBytes.
inline constexpr uint64_t kMaxBags = kMaxRowsBytes / sizeof(float);
// The most keys that a lookup of bags may have.
inline constexpr uint64_t kMaxBagUses = kMaxRowsBytes / (sizeof(uint64_t) + sizeof(BagUse));

// Bytes of the payload of a lookup of bags with `keys` keys.
constexpr uint64_t BagPayloadBytes(uint64_t keys) { return KeyBytes(keys) + keys * sizeof(BagUse); }

}  // namespace verbena

#endif  // VERBENA_PROTO_BAGS_H_
