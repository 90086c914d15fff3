// The optimizer interface, and the factory that makes one from a table's specification.
//
// To add one: a .cc file beside this one that defines its OptimizerDefinition, and one line in
// registry.cc. The file has its formula alone: the rate's schedule, clipping and weight decay are
// shared.
//
// **Thread safety**: optimizers are immutable; their state lives with the chunks.
//
// Invariants:
//  1. Apply() is elementwise, unless row_wise(): dividing a chunk into blocks gives the same bits.
//     A wider instruction set always gives the same bits.
#ifndef VERBENA_SHARD_OPTIMIZER_OPTIMIZER_H_
#define VERBENA_SHARD_OPTIMIZER_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "shard/codec/isa.h"
#include "shard/kernel/gradient.h"
#include "shard/optimizer/schedule.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

inline constexpr size_t kMaxStateArrays = 2;

// The scalars of one apply, computed once and used for every block of the chunk.
struct ApplyScalars {
  float rate = 0;
  float value[4] = {};  // the optimizer's own
  // True: applies before this one may have had another rate.
  bool rate_changes = false;
  // Common to all; applied before Update().
  float gradient_scale = 1;  // of clipping by norm: the caller that knows the norm sets it
  float trust = 1;           // of the update, for those with a trust ratio: set as gradient_scale
  float decay = 0;           // of the weights, decoupled: rate * decoupled_weight_decay
};

// Parameters of a specification that all optimizers share. Zero: none.
struct CommonTerms {
  Schedule schedule;
  bool changed = false;  // by SetOptimizer: applies before may have had another rate
  float clip_value = 0;
  double clip_chunk_norm = 0;
  double clip_global_norm = 0;
  float weight_decay = 0;
  double decoupled_weight_decay = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Arrays of the parameters' size, zero at first.
  virtual size_t state_arrays() const = 0;
  // True: its one array has a single element for a whole row; for embedding tables only. Such an
  // optimizer is not elementwise: a row must be one block, hence kMaxRowElements.
  virtual bool row_wise() const { return false; }

  // False: the scalars are the same for every t (but for the rate), so that rows need not count.
  virtual bool counts_applies() const { return true; }

  // For the t-th apply to a chunk, t >= 1: a pure function of t.
  ApplyScalars Prepare(uint64_t t) const { return Prepare(t, t); }
  // For a row: the schedule is at the step-th apply to the row's partition, which is the t-th apply
  // to the row.
  ApplyScalars Prepare(uint64_t step, uint64_t t) const;
  // True: a zero gradient leaves parameters and state as they are.
  bool ignores_zero() const;
  // The greatest L2 norm a chunk's gradient may have; 0: any. See GradientScale().
  double clip_chunk_norm() const { return terms_.clip_chunk_norm; }
  // The greatest L2 norm that a job's gradient may have in a step; 0: any.
  double clip_global_norm() const { return terms_.clip_global_norm; }
  // True: Apply() needs scalars.trust, which follows from the norms of MeasureTrust().
  virtual bool has_trust_ratio() const { return false; }
  // Applies `gradient` to one block: reads `in`, writes `out`; out may be in.
  void Apply(Isa isa, const ApplyScalars& scalars, const float* in, float* out, float* const* state,
             const float* gradient, size_t n) const;
  // `parameters` were written in place of what Apply() has left. The state stays, but for an
  // optimizer whose parameters are a function of it: that one goes on from the new ones.
  virtual void Assigned(Isa, const ApplyScalars&, const float* /*parameters*/,
                        float* const* /*state*/, size_t) const {}
  // Adds one block of the weights to *weights, and of the update that Apply() would make with the
  // same arguments, but for rate and trust ratio, to *update. Changes no state.
  void MeasureTrust(Isa isa, const ApplyScalars& scalars, const float* in,
                    const float* const* state, const float* gradient, size_t n,
                    SquaredNorm* weights, SquaredNorm* update) const;

 protected:
  // `rate` comes from the schedule. t counts the applies to the object that has the state, from 1.
  virtual ApplyScalars Scalars(double rate, uint64_t t) const = 0;
  virtual bool StaysAtZero() const { return false; }
  virtual void Update(Isa isa, const ApplyScalars& scalars, const float* in, float* out,
                      float* const* state, const float* gradient, size_t n) const = 0;
  // With a trust ratio: the update of a block, to be multiplied by rate and ratio.
  virtual void Direction(Isa, const ApplyScalars&, const float* /*in*/,
                         const float* const* /*state*/, const float* /*gradient*/, float* /*out*/,
                         size_t) const {}

 private:
  // The gradient of at most kBlock elements, clipped and with L2 decay: in `room`, or where it is.
  const float* Adjust(Isa isa, const ApplyScalars& scalars, const float* in, const float* gradient,
                      float* room, size_t n) const;
  friend absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& spec);
  CommonTerms terms_;
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

// Weight decay that the shared code does, as parameters of all optimizers that allow it.
enum class Decay : uint8_t {
  kNone,            // it has its own, or nothing to decay
  kL2,              // weight_decay: that times the weights is added to the gradient
  kL2AndDecoupled,  // also decoupled_weight_decay: w -= rate * decay * w, apart from the gradient
                    // (Loshchilov and Hutter 2019, algorithm 1)
  kDecoupled,       // weight_decay is decoupled, and 0.01 by default
};

struct OptimizerDefinition {
  std::string_view name;
  Decay decay;
  absl::InlinedVector<ParameterDefinition, 4> parameters;
  // `values` in the order of `parameters`, validated.
  std::unique_ptr<Optimizer> (*make)(absl::Span<const double> values);
};

// The factor that limits the norm of a gradient with this squared L2 norm to `limit`. A NaN: 1.
float GradientScale(double squared_norm, double limit);
// The norm of the weights by that of the update; 1 where that is no positive number.
float TrustRatio(double squared_weights, double squared_update);

// INVALID_ARGUMENT names an unknown optimizer or parameter, or a value out of range, and has the
// known names or the allowed range. An empty name means "sgd". A rate of 0 is allowed (pushes
// change nothing).
absl::Status CheckOptimizer(const v1::Optimizer& spec);
// CheckOptimizer() for a table: a row-wise optimizer is refused for a dense table.
absl::Status CheckTableOptimizer(const v1::TableSpec& spec);
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& spec);

// The values of a table's optimizer that may be changed while the table lives: its rate, its
// parameters, and the kind of clipping that it has. Each may be changed regardless of the others.
std::vector<v1::OptimizerValue> ChangeableValues(const v1::Optimizer& spec);
// Sets values that CheckOptimizerValues() allows.
void ChangeOptimizer(absl::Span<const NamedValue> values, v1::Optimizer* spec);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_OPTIMIZER_OPTIMIZER_H_
