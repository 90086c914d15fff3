// Payload of a lookup of bags (RecordType::kLookupBags): a bag and a weight for each key.
//     key (uint64) x keys of group 0, of group 1, ... | zeros to a multiple of 64 | BagUse x keys
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_WIRE_BAGS_H_
#define VERBENA_PROTO_WIRE_BAGS_H_

#include <cstdint>
#include <type_traits>

#include "proto/wire/record.h"

namespace verbena {

// The row of key i, times uses[i].weight, is added to the sum of bag uses[i].bag. Each occurrence
// of a repeated key counts. Any float is allowed as a weight, because only the requester receives
// the sums.
struct BagUse {
  uint32_t bag;
  float weight;
};
static_assert(sizeof(BagUse) == 8 && std::is_trivially_copyable_v<BagUse>);

// The maximum number of bags of a lookup, with the shortest rows. With longer rows fewer fit
// kMaxRowsBytes.
inline constexpr uint64_t kMaxBags = kMaxRowsBytes / sizeof(float);
// The maximum number of keys of a lookup of bags.
inline constexpr uint64_t kMaxBagUses = kMaxRowsBytes / (sizeof(uint64_t) + sizeof(BagUse));

// Bytes of the payload of a lookup of bags with `keys` keys.
constexpr uint64_t BagPayloadBytes(uint64_t keys) { return KeyBytes(keys) + keys * sizeof(BagUse); }

}  // namespace verbena

#endif  // VERBENA_PROTO_WIRE_BAGS_H_
