// Defaults of options, by format, model and optimizer. For the others: options.h.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_TRAIN_OPTIONS_DEFAULTS_H_
#define VERBENA_WORKER_TRAIN_OPTIONS_DEFAULTS_H_

#include <optional>
#include <string>

#include "worker/train/options.h"

namespace verbena::worker {

// None: the optimizer has no default rate here, and none was given.
std::optional<double> RateOf(const Options& options);
// Optimizers with a default rate, between commas. Which ones there are, the servers know.
std::string KnownOptimizers();

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_OPTIONS_DEFAULTS_H_
