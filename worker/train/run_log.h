// The log of a run for programs that plot it: JSON Lines, appended to a file while training goes
// on.
//
// One object a line: `run` when training begins, `progress` at most every half second of training,
// `validation` after each validation, and `result` at the end. A run without a `result` has failed
// or is not finished.
//
// A file that becomes unwritable, such as on a full disk, does not end training: the log ends with
// a warning.
//
// **Thread safety**: one thread.
#ifndef VERBENA_WORKER_TRAIN_RUN_LOG_H_
#define VERBENA_WORKER_TRAIN_RUN_LOG_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/json.h"
#include "proto/base/json_fields.h"
#include "rdma/base/unique_fd.h"
#include "worker/train/options.h"
#include "worker/train/report.h"
#include "worker/train/trainer.h"
#include "worker/train/validation.h"

namespace verbena::worker {

class RunLog {
 public:
  // Logs to options.log, or nothing if it is empty. INVALID_ARGUMENT: the file cannot be opened;
  // the message has the path and the reason. `warn` gets a line for the user when writing fails.
  static absl::StatusOr<RunLog> Open(const Options& options,
                                     std::function<void(const std::string&)> warn);

  // `steps`: the planned steps of the run.
  void Begin(uint64_t steps);
  // The sum over the workers. Writes a line when it is time to; cheap otherwise.
  void Progress(const Totals& totals);
  void Validated(const Validation& validation);
  void End(const Report& report);

 private:
  RunLog(const Options& options, rdma::UniqueFd fd, std::function<void(const std::string&)> warn);
  // Appends the line.
  void Write(const JsonWriter& line);

  const Options* options_;
  rdma::UniqueFd fd_;
  std::function<void(const std::string&)> warn_;
  Totals logged_;  // in the last `progress` line
};

// The objects of the log, for docs/reference/json.md.
const std::vector<JsonObject>& RunLogObjects();

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_RUN_LOG_H_
