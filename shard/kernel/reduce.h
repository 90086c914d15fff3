// The arithmetic of a reduction over one block: sum in a fixed order, divide, look for NaN and Inf.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. SumBlock() rounds as ((s0 + s1) + s2) + ..., whatever the instruction set.
#ifndef VERBENA_SHARD_KERNEL_REDUCE_H_
#define VERBENA_SHARD_KERNEL_REDUCE_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "shard/codec/isa.h"

namespace verbena::shard {

// Input of a sum: f32, or the encoding of a record, decoded block by block.
struct Source {
  Source() = default;
  Source(const float* values) : data(values) {}  // NOLINT: most sources are a float array
  Source(const std::byte* values, ElementType type_of_values)
      : data(values), type(type_of_values) {}
  const float* floats() const { return static_cast<const float*>(data); }
  const uint16_t* half_data() const { return static_cast<const uint16_t*>(data); }
  const std::byte* bytes() const { return static_cast<const std::byte*>(data); }
  bool f32() const { return type == ElementType::kF32; }
  bool bf16() const { return type == ElementType::kBf16; }

  const void* data = nullptr;
  ElementType type = ElementType::kF32;
  bool assigns = false;  // the numbers are parameters that replace the old ones, and no gradient
  // If it assigns: not parameters but an array of the optimizer's state, 1 + its index; and the
  // count of applies after it.
  uint8_t array = 0;
  uint64_t applies = 0;
};

// The part of a step's contributions, in order, that counts: after an assignment the last one
// alone; else all, which are gradients.
absl::Span<const Source> Effective(absl::Span<const Source> sources);
inline bool Assigns(absl::Span<const Source> effective) {
  return !effective.empty() && effective.back().assigns;
}

// out[i] = ((sources[0][first + i] + sources[1][first + i]) + ...) for i < n. At least one source;
// out may be sources[0] + first, if that is f32. `first` is a multiple of kCodecBlock.
void SumBlock(Isa isa, absl::Span<const Source> sources, size_t first, float* out, size_t n);

// out[i] = in[i] / divisor; out may be in.
void DivideBlock(Isa isa, const float* in, float divisor, float* out, size_t n);

bool HasNonFinite(Isa isa, const Source& values, size_t n);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_KERNEL_REDUCE_H_
