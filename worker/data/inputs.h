// The inputs that the options name, found once for all workers that a launcher starts.
//
// **Thread safety**: one thread; the main thread of its process.
#ifndef VERBENA_WORKER_DATA_INPUTS_H_
#define VERBENA_WORKER_DATA_INPUTS_H_

#include <atomic>

#include "absl/status/statusor.h"
#include "rdma/base/unique_fd.h"
#include "worker/data/input_parts.h"
#include "worker/train/options.h"

namespace verbena::worker {

// The inputs of the launcher, if this process has one; otherwise they are found by a pass through
// the files, with progress of a long pass on stderr. CANCELLED once `stop`, which may be null, is
// set.
absl::StatusOr<Inputs> OpenInputs(const Options& options, const std::atomic<bool>* stop);

// For child processes: a descriptor for their Options::input_index. They inherit it, and the copies
// of inputs, which `inputs` keeps open.
absl::StatusOr<rdma::UniqueFd> ForChildren(const Inputs& inputs);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_INPUTS_H_
