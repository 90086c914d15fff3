// What the training loop needs of a model: its tensors, a gradient, a measure of quality.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_MODEL_H_
#define VERBENA_WORKER_MODEL_H_

#include <cstdint>
#include <cstdio>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/layout.h"

namespace verbena::worker {

// On examples that were not trained on.
struct Quality {
  uint64_t examples = 0;
  std::optional<double> auc;
  std::optional<double> accuracy;
  std::optional<double> bits_per_byte;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const Layout& layout() const = 0;
  virtual uint64_t examples() const = 0;  // to train on
  virtual bool has_test() const = 0;

  // Overwrites `gradient` with scale times the sum, over the examples `ids`, of the loss's
  // gradient, plus once the gradient of what does not depend on examples (such as L2). Returns the
  // sum of the losses in nats. Both arenas are laid out by layout().
  virtual double Gradient(absl::Span<const uint32_t> ids, double scale, const float* parameters,
                          float* gradient) = 0;

  // On the test data. With a file, writes one prediction a line to it.
  virtual absl::StatusOr<Quality> Evaluate(const float* parameters, std::FILE* predictions) = 0;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODEL_H_
