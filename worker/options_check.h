// Which options of verbena-train go with which others.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_OPTIONS_CHECK_H_
#define VERBENA_WORKER_OPTIONS_CHECK_H_

#include <string>

#include "worker/options.h"

namespace verbena::worker {

// What the parser does not check; says what is wrong with which option. Empty when all is well.
std::string CheckOptions(const Options& options);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_OPTIONS_CHECK_H_
