// One worker: loads the data, joins the job, trains, and tests the result.
//
// **Thread safety**: the main thread of its process.
#ifndef VERBENA_WORKER_WORKER_PROCESS_H_
#define VERBENA_WORKER_WORKER_PROCESS_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model.h"
#include "worker/options.h"

namespace verbena::worker {

// The model of the format, with its data.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const Options& options);

// Tests the model; writes --predictions (whole or not at all).
absl::StatusOr<Quality> EvaluateModel(const Options& options, Model* model,
                                      const float* parameters);

// Set by SIGINT and SIGTERM once InstallStopHandler() was called, with the signal's number in
// *StopSignal().
const std::atomic<bool>* InstallStopHandler();
int StopSignal();

// A worker that a launcher started: reports over options.channel. Returns the exit status.
int RunLaunchedWorker(const Options& options);

// A worker on its own (--rank, --local): progress on stderr, the result on stdout.
int RunSeparateWorker(const Options& options);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_WORKER_PROCESS_H_
