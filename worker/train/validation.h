// Measures of a model on its test data, while it trains and after.
//
// **Thread safety**: one thread.
#ifndef VERBENA_WORKER_TRAIN_VALIDATION_H_
#define VERBENA_WORKER_TRAIN_VALIDATION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/models/model.h"
#include "worker/stores/row_store.h"

namespace verbena::worker {

// Model::Evaluate() with rows from the store.
absl::StatusOr<Quality> EvaluateWith(Model* model, RowStore* rows, Evaluation evaluation);

// " AUC 0.9012 accuracy 0.8488", or " 2.1034 bits per byte".
std::string QualityText(const Quality& quality);

// FAILED_PRECONDITION with the text `what` and options that may help.
absl::Status Diverged(const std::string& what);
// FAILED_PRECONDITION if the predictions are not numbers.
absl::Status CheckConverged(const Quality& quality);

// One measure in the middle of training.
struct Validation {
  uint64_t step = 0;  // after so many steps
  Quality quality;
  bool best = false;  // better than every one before
};
std::string ValidationText(const Validation& validation);

// Detects when a model has stopped improving: by AUC, else accuracy (higher is better), else bits
// per byte (lower is). The first measure of a run is its best so far.
class Patience {
 public:
  // How many measures in a row may be no better than the best before it is exhausted; 0: any.
  explicit Patience(uint64_t measures) : measures_(measures) {}

  // Whether this one is the best so far.
  bool Add(const Quality& quality);
  bool exhausted() const { return measures_ > 0 && worse_ >= measures_; }

 private:
  uint64_t measures_;
  uint64_t worse_ = 0;  // since the best
  std::optional<double> best_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_VALIDATION_H_
