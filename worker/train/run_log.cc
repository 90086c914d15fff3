#include "worker/train/run_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace verbena::worker {
namespace {

constexpr double kLogSeconds = 0.5;

JsonWriter Line(const char* event) {
  JsonWriter line;
  line.Add("event", event);
  return line;
}

// Removes the last `bytes`, unless another process has written since.
void RemoveEnd(int fd, off_t bytes) {
  const off_t end = lseek(fd, 0, SEEK_CUR);  // of this process's last write
  struct stat file = {};
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size != end) return;
  [[maybe_unused]] const int removed = ftruncate(fd, end - bytes);
}

}  // namespace

RunLog::RunLog(const Options& options, rdma::UniqueFd fd,
               std::function<void(const std::string&)> warn)
    : options_(&options), fd_(std::move(fd)), warn_(std::move(warn)) {}

absl::StatusOr<RunLog> RunLog::Open(const Options& options,
                                    std::function<void(const std::string&)> warn) {
  if (options.log.empty()) return RunLog(options, rdma::UniqueFd(), std::move(warn));
  rdma::UniqueFd fd(
      open(options.log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666));
  if (fd.get() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log ", options.log, ": cannot open it: ", std::strerror(errno)));
  }
  return RunLog(options, std::move(fd), std::move(warn));
}

void RunLog::Write(const JsonWriter& line) {
  if (fd_.get() < 0) return;
  const std::string text = line.ToString() + "\n";
  // One write, so that lines of several processes do not mix.
  const ssize_t written = write(fd_.get(), text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size())) return;
  // A partial line would make the next run's first line unreadable.
  if (written > 0) RemoveEnd(fd_.get(), written);
  warn_(absl::StrCat("--log ", options_->log,
                     ": cannot write: ", written < 0 ? std::strerror(errno) : "no room for a line",
                     "; the log ends here, and training continues"));
  fd_ = rdma::UniqueFd();
}

void RunLog::Begin(uint64_t steps) {
  if (fd_.get() < 0) return;
  JsonWriter line = Line("run");
  line.Add("time", absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()));
  line.Add("job", options_->job);
  line.Add("format", options_->format);
  line.Add("model", ModelOf(*options_));
  line.Add("consistency", options_->consistency);
  line.Add("optimizer", options_->optimizer);
  line.Add("workers", uint64_t{options_->workers});
  line.Add("batch", BatchOf(*options_));
  line.Add("planned_steps", steps);
  Write(line);
}

void RunLog::Progress(const Totals& totals) {
  const double seconds = totals.seconds - logged_.seconds;
  if (fd_.get() < 0 || seconds < kLogSeconds) return;
  const uint64_t samples = totals.samples - std::min(totals.samples, logged_.samples);
  JsonWriter line = Line("progress");
  line.Add("step", totals.steps);
  line.Add("seconds", totals.seconds);
  line.Add("samples", totals.samples);
  line.Add("samples_per_s", static_cast<double>(samples) / seconds);
  line.Add("loss", totals.loss);
  line.Add("bytes_pushed", totals.bytes_pushed);
  line.Add("bytes_pulled", totals.bytes_pulled);
  if (totals.ssp_pulls > logged_.ssp_pulls) {
    const uint64_t behind =
        totals.steps_behind - std::min(totals.steps_behind, logged_.steps_behind);
    line.Add("staleness", static_cast<double>(behind) /
                              static_cast<double>(totals.ssp_pulls - logged_.ssp_pulls));
  }
  Write(line);
  logged_ = totals;
}

void RunLog::Validated(const Validation& validation) {
  JsonWriter line = Line("validation");
  line.Add("step", validation.step);
  line.Add("examples", validation.quality.examples);
  line.Add("auc", validation.quality.auc);
  line.Add("accuracy", validation.quality.accuracy);
  line.Add("bits_per_byte", validation.quality.bits_per_byte);
  line.Add("best", validation.best);
  Write(line);
}

void RunLog::End(const Report& report) {
  JsonWriter line = Line("result");
  AddReport(*options_, report, &line);
  Write(line);
}

const std::vector<JsonObject>& RunLogObjects() {
  static const auto& objects = *new std::vector<JsonObject>{
      {"verbena-train --log: run",
       "The first line of a run. Each line of the log is one of these objects. `verbena.RunLog` of "
       "the Python package writes the same lines: its counts of samples and bytes are those of the "
       "worker that logs, and texts that it was not given are empty.",
       {{"event", "text", "`run`."},
        {"time", "text", "Beginning of training: UTC, RFC 3339."},
        {"job", "text", "--job; empty without it."},
        {"format", "text", "--format; `python` for the Python package."},
        {"model", "text", "The model; `text` for text."},
        {"consistency", "text", "--consistency."},
        {"optimizer", "text", "--optimizer."},
        {"workers", "number", "Workers of the job (--workers)."},
        {"batch", "number, optional", "Examples (text: bytes) of a step, of all workers together."},
        {"planned_steps", "number, optional", "Steps to train."}}},
      {"verbena-train --log: progress",
       "The state of the run, at most every half second.",
       {{"event", "text", "`progress`."},
        {"step", "number", "Steps of the slowest worker, with those before --resume."},
        {"seconds", "number", "Time since training began, in seconds."},
        {"samples", "number", "Training examples (text: bytes) so far, of all workers."},
        {"samples_per_s", "number",
         "Training examples (text: bytes) per second since the previous `progress`."},
        {"loss", "number, optional",
         "Mean loss of an example, in nats, over the last twentieth of the steps. Python: mean of "
         "the losses since the previous `progress`, in the unit of the program; `null`: not "
         "finite."},
        {"bytes_pushed", "number", "Bytes of gradients in pushes so far."},
        {"bytes_pulled", "number", "Bytes of parameters in pulls so far."},
        {"staleness", "number, optional",
         "Steps by which the slowest worker was behind the one that pulled: mean over the pull "
         "requests to ssp tables since the previous `progress`; 32 and more count as 32. Without "
         "such requests it is absent."}}},
      {"verbena-train --log: shards",
       "The load of each shard, by the Python package with `shards=`: `event` is `shards`, and the "
       "other members are those of [verbena shards](#shards) with --watch.",
       {{"event", "text", "`shards`."}}},
      {"verbena-train --log: validation",
       "The measures of --validate-every.",
       {{"event", "text", "`validation`."},
        {"step", "number", "Steps before this validation."},
        {"examples", "number", "Test examples (text: bytes) that were evaluated."},
        {"auc", "number, optional", "Area under the ROC curve, from 0 to 1; not for text."},
        {"accuracy", "number, optional",
         "Share of correct predictions, from 0 to 1; not for text."},
        {"bits_per_byte", "number, optional", "Mean cross entropy, in bits per byte; text only."},
        {"best", "boolean", "Whether it is better than all before it in this run."}}},
      {"verbena-train --log: result",
       "The last line of a run that has ended: `event` is `result`, and the other members are "
       "those "
       "of [verbena-train](#verbena-train).",
       {{"event", "text", "`result`."}}}};
  return objects;
}

}  // namespace verbena::worker
