// What an optimizer is, and how one is made from a table's specification.
//
// To add one: a .cc file beside this one that defines its OptimizerDefinition, and one line in
// registry.cc.
//
// **Thread safety**: optimizers are immutable; their state lives with the chunks.
//
// Invariants:
//  1. Apply() is elementwise: cutting a chunk into blocks, or a wider instruction set, gives the
//     same bits.
#ifndef VERBENA_SHARD_OPTIMIZER_OPTIMIZER_H_
#define VERBENA_SHARD_OPTIMIZER_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/verbena/v1/cluster.pb.h"
#include "shard/kernel/isa.h"

namespace verbena::shard {

inline constexpr size_t kMaxStateArrays = 2;

// The scalars of one apply, worked out once and used for every block of the chunk.
struct ApplyScalars {
  float rate = 0;
  float value[4] = {};  // the optimizer's own
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Arrays of the parameters' size, zero at first.
  virtual size_t state_arrays() const = 0;
  // For the t-th apply to a chunk, t >= 1.
  virtual ApplyScalars Prepare(uint64_t t) const = 0;
  // True: a zero gradient leaves parameters and state as they are.
  virtual bool ignores_zero() const { return false; }
  // One block: `out` gets what `in` becomes by `gradient`; out may be in.
  virtual void Apply(Isa isa, const ApplyScalars& scalars, const float* in, float* out,
                     float* const* state, const float* gradient, size_t n) const = 0;
};

// A named parameter: its default and the range it must lie in.
struct ParameterDefinition {
  std::string_view name;
  double fallback;
  double low;
  double high;
  bool low_open;
  bool high_open;
};

struct OptimizerDefinition {
  std::string_view name;
  absl::InlinedVector<ParameterDefinition, 4> parameters;
  // `values` in the order of `parameters`, validated.
  std::unique_ptr<Optimizer> (*make)(double rate, absl::Span<const double> values);
};

// INVALID_ARGUMENT names an unknown optimizer or parameter, or a value out of range, and says what
// is known or allowed. An empty name means "sgd". A rate of 0 is allowed (pushes change nothing).
absl::Status CheckOptimizer(const v1::Optimizer& spec);
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& spec);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_OPTIMIZER_OPTIMIZER_H_
