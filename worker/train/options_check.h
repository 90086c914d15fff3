// Checks combinations of verbena-train's options.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_TRAIN_OPTIONS_CHECK_H_
#define VERBENA_WORKER_TRAIN_OPTIONS_CHECK_H_

#include <string>

#include "worker/train/options.h"

namespace verbena::worker {

// Checks beyond the parser's. Returns the problem and its option, or an empty string.
std::string CheckOptions(const Options& options);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_OPTIONS_CHECK_H_
