#include "worker/train/launcher.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/whole_file.h"
#include "worker/data/inputs.h"
#include "worker/train/child.h"
#include "worker/train/progress.h"
#include "worker/train/report.h"
#include "worker/train/run_log.h"
#include "worker/train/validation.h"

namespace verbena::worker {
namespace {

using SteadyClock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kTickMs = 100;
// The time for a worker to leave the cluster after SIGTERM (leaving takes at most a second).
constexpr Seconds kEndSeconds{5};

// Until there are workers to end. As process 1 of a container, a signal without a handler does
// nothing.
void EndOnSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) { _exit(128 + signal); };
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before = {};
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) {
      sigaction(signal, &action, nullptr);
    }
  }
}

// A job name of this run's own.
std::string NewJobName() {
  uint32_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random) {
    random = static_cast<uint32_t>(SteadyClock::now().time_since_epoch().count());
  }
  return absl::StrFormat("train-%d-%08x", getpid(), random);
}

// Blocks the signals the launcher handles, and reads them in its loop.
class Signals {
 public:
  Signals() {
    sigset_t mask;
    sigemptyset(&mask);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&mask, signal);
    sigprocmask(SIG_BLOCK, &mask, nullptr);
    fd_ = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
  }
  ~Signals() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }
  // SIGINT or SIGTERM when one came, else 0.
  int Take() {
    int stop = 0;
    signalfd_siginfo info;
    while (read(fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (info.ssi_signo != SIGCHLD) stop = static_cast<int>(info.ssi_signo);
    }
    return stop;
  }

 private:
  int fd_ = -1;
};

struct WorkerState {
  enum class Phase { kTraining, kTrained, kEvaluating, kDone, kLost };

  explicit WorkerState(Child started) : child(std::move(started)) {}

  Child child;
  Phase phase = Phase::kTraining;
  Totals totals;
  std::string transport;
  SteadyClock::time_point heard = SteadyClock::now();
};
using Phase = WorkerState::Phase;

class Launcher {
 public:
  // Its workers read the inputs by `input_index`.
  Launcher(const Options& options, int input_index, Progress* progress, RunLog* log)
      : options_(options), input_index_(input_index), progress_(*progress), log_(*log) {}

  int Run(int argc, const char* const* argv) {
    if (!StartAll(argc, argv)) {
      EndAll(SIGTERM);
      return kExitFailure;
    }
    while (!finished_) {
      WaitForEvents();
      if (const int signal = signals_.Take(); signal != 0) return Drain(signal);
      for (size_t rank = 0; rank < workers_.size(); ++rank) Serve(rank);
      Decide();
    }
    EndAll(0);
    return Conclude();
  }

 private:
  bool StartAll(int argc, const char* const* argv);
  void WaitForEvents();
  void Serve(size_t rank);
  void Take(size_t rank, const ChannelMessage& message);
  void Lose(size_t rank, const std::string& how);
  void Decide();
  void DropStragglers();
  int Drain(int signal);
  Totals Sum() const;
  void EndAll(int signal);
  int Conclude();
  size_t Count(Phase phase) const {
    return static_cast<size_t>(
        std::count_if(workers_.begin(), workers_.end(),
                      [phase](const WorkerState& worker) { return worker.phase == phase; }));
  }

  const Options& options_;
  const int input_index_;
  Signals signals_;
  Progress& progress_;
  RunLog& log_;
  std::vector<WorkerState> workers_;
  std::set<std::string> said_;  // failures that were reported already
  std::optional<ChannelMessage> evaluated_;
  bool begun_ = false;  // the number of steps is known
  bool evaluation_failed_ = false;
  bool stopped_early_ = false;
  bool finished_ = false;
};

// A worker's own stdout is stderr: where predictions go to stdout, it gets another name of the
// launcher's.
void NameStdout(const std::string& predictions, std::vector<std::string>* arguments) {
  if (predictions != "/dev/stdout" && predictions != "/dev/fd/1") return;
  const int fd = dup(STDOUT_FILENO);  // passed on to the workers, and open to the end
  if (fd < 0) return;
  for (std::string& argument : *arguments) {
    if (absl::EndsWith(argument, predictions)) {
      argument.replace(argument.size() - predictions.size(), predictions.size(),
                       absl::StrCat("/dev/fd/", fd));
    }
  }
}

bool Launcher::StartAll(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  NameStdout(options_.predictions, &arguments);
  if (options_.job.empty()) {
    arguments.insert(arguments.end(), {"--job", NewJobName()});
    if (!options_.keep_tables) arguments.push_back("--drop-tables");
  }
  arguments.insert(arguments.end(), {"--input-index", std::to_string(input_index_)});
  workers_.reserve(options_.workers);
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    std::vector<std::string> own = arguments;
    own.insert(own.end(), {"--rank", std::to_string(rank)});
    absl::StatusOr<Child> child = Child::Start(std::move(own));
    if (!child.ok()) {
      progress_.Note(absl::StrCat("verbena-train: ", child.status().message()));
      return false;
    }
    workers_.emplace_back(*std::move(child));
  }
  return true;
}

void Launcher::WaitForEvents() {
  std::vector<pollfd> waiting = {{signals_.fd(), POLLIN, 0}};
  for (const WorkerState& worker : workers_) {
    if (worker.child.channel() >= 0) waiting.push_back({worker.child.channel(), POLLIN, 0});
  }
  poll(waiting.data(), waiting.size(), kTickMs);
}

void Launcher::Serve(size_t rank) {
  WorkerState& worker = workers_[rank];
  // Before its messages: then all messages that it sent ahead of its end are there.
  const std::optional<std::string> ended = worker.child.Reap();
  while (std::optional<ChannelMessage> message = worker.child.Poll()) Take(rank, *message);
  if (ended && worker.phase != Phase::kDone && worker.phase != Phase::kLost) Lose(rank, *ended);
}

void Launcher::Take(size_t rank, const ChannelMessage& message) {
  WorkerState& worker = workers_[rank];
  worker.heard = SteadyClock::now();
  if (message.totals.steps > 0) worker.totals = message.totals;
  if (message.planned_steps > 0 && !begun_) {
    begun_ = true;
    progress_.set_steps(message.planned_steps);
    log_.Begin(message.planned_steps);
  }
  switch (message.kind) {
    case ChannelMessage::Kind::kProgress:
      break;
    case ChannelMessage::Kind::kNote:
      progress_.Note(message.text);
      break;
    case ChannelMessage::Kind::kValidated:
      progress_.Note(ValidationText(message.validation));
      log_.Validated(message.validation);
      break;
    case ChannelMessage::Kind::kTrained:
      worker.phase = Phase::kTrained;
      worker.transport = message.transport;
      stopped_early_ = stopped_early_ || message.stopped_early;
      break;
    case ChannelMessage::Kind::kQuality:
      worker.phase = Phase::kDone;
      evaluated_ = message;
      break;
    case ChannelMessage::Kind::kFailed:
      // An evaluation that failed would fail the next worker too (such as an unwritable file).
      evaluation_failed_ = worker.phase == Phase::kEvaluating;
      worker.phase = evaluation_failed_ ? Phase::kDone : Phase::kLost;
      // Workers that fail for the same reason report it once.
      if (said_.insert(message.text).second) {
        progress_.Note(absl::StrFormat("verbena-train: worker %d (pid %d): %s", rank,
                                       worker.child.pid(), message.text));
      }
      break;
    case ChannelMessage::Kind::kEvaluate:
    case ChannelMessage::Kind::kExit:
      break;
  }
}

void Launcher::Lose(size_t rank, const std::string& how) {
  workers_[rank].phase = Phase::kLost;
  progress_.Note(absl::StrFormat("verbena-train: worker %d (pid %d) %s", rank,
                                 workers_[rank].child.pid(), how));
}

void Launcher::Decide() {
  if (Count(Phase::kTraining) > 0) {
    const Totals sum = Sum();
    progress_.Update(sum);
    log_.Progress(sum);
    DropStragglers();
    return;
  }
  if (Count(Phase::kEvaluating) > 0) return;
  if (!evaluated_ && !evaluation_failed_) {
    for (WorkerState& worker : workers_) {
      if (worker.phase != Phase::kTrained) continue;
      worker.phase = Phase::kEvaluating;
      worker.child.Send(ChannelMessage::Kind::kEvaluate);
      return;
    }
  }
  finished_ = true;
}

// A stopped worker must not keep a finished job from ending. Deadlines end the calls of those that
// still run, so silence for longer than two of them is not work.
void Launcher::DropStragglers() {
  if (Count(Phase::kTrained) == 0) return;
  const auto now = SteadyClock::now();
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    WorkerState& worker = workers_[rank];
    if (worker.phase != Phase::kTraining ||
        Seconds(now - worker.heard).count() < 2 * options_.timeout) {
      continue;
    }
    worker.child.Signal(SIGKILL);
    Lose(rank, absl::StrFormat("made no progress for %.0f s after others had finished; ended",
                               2 * options_.timeout));
  }
}

Totals Launcher::Sum() const {
  Totals sum;
  uint64_t training = UINT64_MAX;
  uint64_t before = UINT64_MAX;
  double weighted = 0;
  for (const WorkerState& worker : workers_) {
    sum.steps = std::max(sum.steps, worker.totals.steps);
    if (worker.totals.steps > 0) before = std::min(before, worker.totals.steps_before);
    if (worker.phase == Phase::kTraining) training = std::min(training, worker.totals.steps);
    sum.seconds = std::max(sum.seconds, worker.totals.seconds);
    sum.samples += worker.totals.samples;
    sum.bytes_pushed += worker.totals.bytes_pushed;
    sum.bytes_pulled += worker.totals.bytes_pulled;
    sum.ssp_pulls += worker.totals.ssp_pulls;
    sum.steps_behind += worker.totals.steps_behind;
    weighted += worker.totals.loss * static_cast<double>(worker.totals.samples);
  }
  // The progress of the run is that of the worker farthest behind.
  if (training != UINT64_MAX) sum.steps = training;
  if (before != UINT64_MAX) sum.steps_before = before;
  if (sum.samples > 0) sum.loss = weighted / static_cast<double>(sum.samples);
  return sum;
}

// Closes the channels, which asks workers that wait to leave, and sees every process off.
void Launcher::EndAll(int signal) {
  for (WorkerState& worker : workers_) {
    if (signal != 0) worker.child.Signal(signal);
    worker.child.Send(ChannelMessage::Kind::kExit);
  }
  const auto deadline = SteadyClock::now() + kEndSeconds;
  bool killed = false;
  for (;;) {
    bool any = false;
    for (WorkerState& worker : workers_) {
      worker.child.Reap();
      any = any || worker.child.running();
    }
    if (!any) return;
    if (!killed && SteadyClock::now() >= deadline) {
      for (WorkerState& worker : workers_) worker.child.Signal(SIGKILL);
      killed = true;
    }
    pollfd waiting = {signals_.fd(), POLLIN, 0};
    poll(&waiting, 1, kTickMs);
    signals_.Take();
  }
}

// The workers end after a step, all after the same one in sync. A second signal ends them at once;
// so does a step that takes longer than its calls may.
int Launcher::Drain(int signal) {
  const std::string name = absl::StrCat("SIG", sigabbrev_np(signal));
  progress_.Note(name + ": the workers end after this step; a second signal ends them at once");
  for (WorkerState& worker : workers_) worker.child.Signal(SIGTERM);
  const auto deadline = SteadyClock::now() + kEndSeconds + 2 * Seconds(options_.timeout);
  const auto running = [](const WorkerState& worker) { return worker.child.running(); };
  while (std::any_of(workers_.begin(), workers_.end(), running)) {
    WaitForEvents();
    for (WorkerState& worker : workers_) {
      worker.child.Reap();
      while (std::optional<ChannelMessage> message = worker.child.Poll()) {
        if (message->totals.steps > 0) worker.totals = message->totals;
        if (message->kind == ChannelMessage::Kind::kFailed) progress_.Note(message->text);
      }
      // Not in a step any more.
      if (worker.phase == Phase::kTrained) worker.child.Send(ChannelMessage::Kind::kExit);
    }
    if (signals_.Take() == 0 && SteadyClock::now() < deadline) continue;
    progress_.Note(name + ": ended the workers");
    for (WorkerState& worker : workers_) worker.child.Signal(SIGKILL);
    EndAll(0);
    return 128 + signal;
  }
  const uint64_t steps = Sum().steps;
  if (steps == 0) return 128 + signal;
  std::string note = absl::StrCat(name, ": ended after step ", steps);
  if (!options_.job.empty()) {
    absl::StrAppend(&note, "; the tables of job '", options_.job,
                    "' are kept, and --resume goes on from them");
  }
  progress_.Note(note);
  return 128 + signal;
}

int Launcher::Conclude() {
  Report report;
  report.totals = Sum();
  report.workers_lost = Count(Phase::kLost);
  report.stopped_early = stopped_early_;
  if (report.workers_lost == workers_.size()) {
    progress_.Note("verbena-train: no worker finished");
    return kExitFailure;
  }
  progress_.Finish(report.totals);
  if (!evaluated_) return kExitFailure;
  for (const WorkerState& worker : workers_) {
    if (!worker.transport.empty()) report.transport = worker.transport;
  }
  if (evaluated_->quality.examples > 0) report.quality = evaluated_->quality;
  if (options_.checksum) report.parameters_hash = evaluated_->parameters_hash;
  log_.End(report);
  return WriteResult(FormatReport(options_, report)) ? kExitOk : kExitFailure;
}

}  // namespace

int Launch(const Options& options, int argc, const char* const* argv) {
  EndOnSignals();
  // Before a pass that may take long.
  absl::Status status =
      options.predictions.empty() ? absl::OkStatus() : WholeFile::CanWrite(options.predictions);
  Progress progress(stderr, isatty(STDERR_FILENO) == 1, 0);
  absl::StatusOr<RunLog> log =
      RunLog::Open(options, [&](const std::string& line) { progress.Note(line); });
  status.Update(log.status());
  absl::StatusOr<Inputs> inputs = absl::UnknownError("not opened");
  if (status.ok()) {
    inputs = OpenInputs(options, nullptr);
    status = inputs.status();
  }
  rdma::UniqueFd index;
  if (status.ok()) {
    absl::StatusOr<rdma::UniqueFd> made = ForChildren(*inputs);
    status = made.status();
    if (made.ok()) index = *std::move(made);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "verbena-train: %s\n", std::string(status.message()).c_str());
    return kExitFailure;
  }
  return Launcher(options, index.get(), &progress, &*log).Run(argc, argv);
}

}  // namespace verbena::worker
