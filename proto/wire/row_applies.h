// A row's count of applies, in servers and checkpoints: the number of gradients in its optimizer
// state. 0: the row does not exist. The maximum stands for all greater numbers.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_WIRE_ROW_APPLIES_H_
#define VERBENA_PROTO_WIRE_ROW_APPLIES_H_

#include <cstdint>

namespace verbena {

// A row whose parameters were imported, or restored without optimizer state. No gradient is in its
// state yet, so bias corrections start with the next one.
inline constexpr uint32_t kAppliesOfNewState = UINT32_MAX - 1;

// The number of the next apply, starting at 1.
constexpr uint64_t NextApply(uint32_t applies) {
  return applies == kAppliesOfNewState ? 1 : uint64_t{applies} + 1;
}

// The count after the next apply. Counting never reaches kAppliesOfNewState.
constexpr uint32_t CountAfterApply(uint32_t applies) {
  if (applies == kAppliesOfNewState) return 1;
  return applies >= kAppliesOfNewState - 1 ? UINT32_MAX : applies + 1;
}

}  // namespace verbena

#endif  // VERBENA_PROTO_WIRE_ROW_APPLIES_H_
