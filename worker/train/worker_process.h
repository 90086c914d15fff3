// One worker: loads the data, joins the job, trains, and tests the result.
//
// **Thread safety**: the main thread of its process.
#ifndef VERBENA_WORKER_TRAIN_WORKER_PROCESS_H_
#define VERBENA_WORKER_TRAIN_WORKER_PROCESS_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include "worker/train/options.h"

namespace verbena::worker {

// Set by the first SIGINT or SIGTERM once InstallStopHandler() was called, with the signal's number
// in StopSignal(). A worker that trains then ends after a step; another one gives up what it waits
// for. A second signal ends the process, but not one that a launcher has started.
const std::atomic<bool>* InstallStopHandler();
int StopSignal();

// A worker that a launcher started: reports over options.channel. Returns the exit status. Calls
// `after_step` after each step, with the steps so far; the client's own threads go on meanwhile.
int RunLaunchedWorker(const Options& options,
                      const std::function<void(uint64_t steps)>& after_step = {});

// A worker on its own (--rank, --max-workers, --local): progress on stderr, the result on stdout.
int RunSeparateWorker(const Options& options,
                      const std::function<void(uint64_t steps)>& after_step = {});

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_WORKER_PROCESS_H_
