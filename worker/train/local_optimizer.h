// The optimizers of the local store, the same for a dense tensor and for a row.
//
// **Thread safety**: immutable once made.
#ifndef VERBENA_WORKER_TRAIN_LOCAL_OPTIMIZER_H_
#define VERBENA_WORKER_TRAIN_LOCAL_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/models/layout.h"

namespace verbena::worker {

class LocalOptimizer {
 public:
  // INVALID_ARGUMENT for an unknown optimizer or a rate that is not positive.
  static absl::StatusOr<LocalOptimizer> Create(std::string_view name, double rate);
  // Adds the negated gradient: the optimizer of a counter.
  static LocalOptimizer Counter() { return {Kind::kSgd, 1}; }

  // Floats of state for each parameter; zeros at first.
  size_t states() const { return kind_ == Kind::kSgd ? 0 : kind_ == Kind::kMomentum ? 1 : 2; }
  // Apply number `count` (from 1) to n parameters. States not used may be null.
  void Apply(uint64_t count, const float* gradient, size_t n, float* parameters, float* first,
             float* second) const;

 private:
  enum class Kind { kSgd, kMomentum, kAdam };
  LocalOptimizer(Kind kind, double rate) : kind_(kind), rate_(static_cast<float>(rate)) {}

  Kind kind_;
  float rate_;
};

// Initial parameters, drawn one after the other from the seed.
void LocalInitialize(Tensor::Initial initial, double scale, uint64_t seed, float* out, size_t n);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_LOCAL_OPTIMIZER_H_
