// Starts the workers of a job as separate processes, and reports for them.
//
// Workers are separate processes so that the death of one does not affect others: the launcher
// reports it and the others continue. When every worker has trained or ended, the lowest remaining
// rank tests the model.
//
// **Thread safety**: the main thread of a process that has no other threads yet.
#ifndef VERBENA_WORKER_TRAIN_LAUNCHER_H_
#define VERBENA_WORKER_TRAIN_LAUNCHER_H_

#include "worker/train/options.h"

namespace verbena::worker {

// Runs `argv` again, once per rank. Returns the exit status: 0 when at least one worker trained and
// the model was tested.
int Launch(const Options& options, int argc, const char* const* argv);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_LAUNCHER_H_
