// The interface between the training loop and a model: its tensors and embedding tables, the rows
// that a batch uses, a gradient given those rows, a measure of quality.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_MODELS_MODEL_H_
#define VERBENA_WORKER_MODELS_MODEL_H_

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/input_order.h"
#include "worker/models/layout.h"

namespace verbena::rdma {
class Device;
}  // namespace verbena::rdma

namespace verbena::worker {

// On examples that were not trained on.
struct Quality {
  uint64_t examples = 0;
  std::optional<double> auc = std::nullopt;
  std::optional<double> accuracy = std::nullopt;
  std::optional<double> bits_per_byte = std::nullopt;
  uint64_t not_finite = 0;  // predictions that are no finite numbers: then nothing is measured
};

// One worker's examples of a step. Its producer sets the ids; Model::Prepare() does the rest.
struct Batch {
  std::vector<uint64_t> ids;
  // Factor of the terms that do not depend on examples. Also set by the producer.
  double penalty = 1;
  // By table: the distinct keys of the rows that these examples use.
  std::vector<std::vector<uint64_t>> keys;

  // For models of examples with features: the examples, with rows in place of keys, or indices of
  // dense weights. Features k with begin[r] <= k < begin[r + 1] are those of example r: values[k]
  // times row places[k].
  std::vector<uint32_t> begin, places;
  std::vector<float> values;
  std::vector<float> labels;
  std::vector<float> inputs;  // that have no row; as many for each example

  // For the text model: as many bytes for each example, itself the last.
  std::vector<uint8_t> bytes;
};

// By table: row i is that of batch.keys[table][i].
using Rows = absl::Span<const float* const>;

struct Parameters {
  const float* dense = nullptr;  // an arena laid out by layout()
  Rows rows;
  absl::Span<float* const> on_devices = {};  // the same, on each of the model's devices
};
// With devices the dense gradient is the sum of the devices' gradients, and `dense` is left alone.
struct Gradients {
  float* dense = nullptr;
  absl::Span<float* const> rows;
  absl::Span<float* const> on_devices = {};
};

struct Evaluation {
  const float* parameters = nullptr;  // dense
  // The rows of a prepared batch, valid until the next call. May be empty without tables.
  std::function<absl::StatusOr<Rows>(const Batch&)> rows = {};
  std::FILE* predictions = nullptr;  // if any, gets one prediction a line
  uint64_t limit = UINT64_MAX;       // only the first so many test examples
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const Layout& layout() const = 0;
  virtual absl::Span<const EmbeddingTable> tables() const { return {}; }
  virtual uint64_t examples() const = 0;  // to train on
  virtual bool has_test() const = 0;

  // How far the order of the training examples may reach.
  virtual InputOrder order() const { return {}; }
  // Gets the training examples batch->ids, and finds the rows that they use. Buffers of an earlier
  // use are used again. INVALID_ARGUMENT: a line of the input is wrong.
  virtual absl::Status Prepare(Batch* batch) = 0;
  // These training examples will be prepared soon. Does not wait.
  virtual void WillPrepare(absl::Span<const uint64_t> /*ids*/) {}

  // The next Gradient() is that of this step, counted from 0: for models that differ from step to
  // step.
  virtual void ResumeAt(uint64_t /*step*/) {}

  // The GPUs that have the dense arenas of Gradient(); none: the host has.
  virtual absl::Span<const std::shared_ptr<rdma::Device>> devices() const { return {}; }

  // Overwrites the gradients with scale times the sum, over the examples of a prepared batch, of
  // the loss's gradient, plus batch.penalty times the gradient of terms that do not depend on
  // examples (such as L2 on dense weights); on GPUs once that. Returns the sum of the losses in
  // nats. UNAVAILABLE: its GPU is lost.
  virtual absl::StatusOr<double> Gradient(const Batch& batch, double scale,
                                          const Parameters& parameters,
                                          const Gradients& gradients) = 0;

  // On the test data.
  virtual absl::StatusOr<Quality> Evaluate(const Evaluation& evaluation) = 0;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_MODEL_H_
