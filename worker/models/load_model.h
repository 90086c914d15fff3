// The model that the options ask for, with its data; and its test, as they want it written.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_MODELS_LOAD_MODEL_H_
#define VERBENA_WORKER_MODELS_LOAD_MODEL_H_

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/models/model.h"
#include "worker/stores/row_store.h"
#include "worker/train/options.h"

namespace verbena::worker {

// Finds the data; reads all of it that fits into --input-memory.
// CANCELLED once `stop`, which may be null, is set.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const Options& options,
                                                 const std::atomic<bool>* stop = nullptr);

// Tests the model; writes --predictions (whole or not at all).
absl::StatusOr<Quality> EvaluateModel(const Options& options, Model* model, RowStore* rows,
                                      const float* parameters);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_LOAD_MODEL_H_
