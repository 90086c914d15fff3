#include "worker/train/worker_process.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "proto/base/unread_output.h"
#include "worker/data/data_identity.h"
#include "worker/models/load_model.h"
#include "worker/stores/client_store.h"
#include "worker/stores/local_store.h"
#include "worker/train/channel.h"
#include "worker/train/progress.h"
#include "worker/train/random.h"
#include "worker/train/report.h"
#include "worker/train/run_log.h"
#include "worker/train/trainer.h"
#include "worker/train/validation.h"

namespace verbena::worker {
namespace {

// Written by a signal handler: lock-free, as [support.signal] demands.
std::atomic<bool> g_drain = false;     // end after the step
std::atomic<bool> g_training = false;  // in a step, or between two
std::atomic<bool> g_stop = false;      // end every wait
std::atomic<bool> g_stepped = false;   // this worker has made a step
std::atomic<bool> g_launched = false;  // a launcher ends this process
std::atomic<int> g_signal = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

// Between two progress messages; a step may take microseconds.
constexpr double kProgressSeconds = 0.1;
constexpr int kStopCheckMs = 100;
// A signal before the first step waits that long for it: others may never join, and a place may
// never be free.
constexpr unsigned kFirstStepSeconds = 2;
constexpr std::string_view kEndedBefore =
    "verbena-train: ended by the signal before its first step\n";
constexpr std::string_view kDrainsAtTerminate =
    "verbena-train: SIGTERM: ends after this step; a second signal ends it at once\n";
constexpr std::string_view kDrainsAtInterrupt =
    "verbena-train: SIGINT: ends after this step; a second signal ends it at once\n";

ClusterOptions ClusterOptionsOf(const Options& options) {
  ClusterOptions cluster;
  cluster.cluster = options.cluster;
  cluster.job = options.job;
  cluster.transport = options.transport;
  cluster.rdma = options.rdma;
  cluster.rdma.gpu_direct = options.gpu_direct == "off"        ? GpuDirectUse::kOff
                            : options.gpu_direct == "required" ? GpuDirectUse::kRequired
                                                               : GpuDirectUse::kAuto;
  cluster.fabric = options.fabric;
  cluster.tls = options.tls;
  cluster.token_file = options.token_file;
  cluster.rank = options.rank;
  cluster.resume = options.resume && !options.resume_auto;
  cluster.workers = options.workers;
  cluster.max_workers = options.max_workers;
  cluster.timeout = absl::Seconds(options.timeout);
  cluster.stop = &g_stop;
  return cluster;
}

// Less than 2^63. With an order by windows, the window is part of the identity with which a run
// resumes.
uint64_t HashOf(const DataIdentity& data, const InputOrder& order, uint64_t examples) {
  return order.window >= examples ? data.hash : Mix(data.hash ^ Mix(order.window)) >> 1;
}

TrainOptions TrainOptionsOf(const Options& options, const Model& model) {
  TrainOptions train;
  train.workers = options.workers;
  train.max_workers = options.max_workers;
  train.rank = static_cast<uint64_t>(std::max(options.rank, 0));
  train.steps = StepsOf(options, model.examples());
  train.batch = BatchOf(options);
  train.seed = options.seed;
  // Nothing is read ahead of a step that has to see the one before.
  train.prefetch = options.consistency != "sync";
  train.validate_every = options.validate_every;
  train.validate_examples = options.validate_examples;
  train.early_stop = options.early_stop;
  // Tables that go with the run are not gone on with.
  train.count_steps = !options.job.empty() && !options.drop_tables;
  train.separate_steps = options.consistency != "sync";
  train.resume = options.resume;
  train.resume_anyhow = options.resume_auto;
  // Workers that a launcher has started get its signal together, and must end after the same step:
  // a step without one of them lacks its part of the batch.
  train.drain_together = options.channel >= 0 && train.count_steps && !train.separate_steps;
  if (train.count_steps && train.rank == 0) {
    const DataIdentity data = IdentityOf(options.data);
    train.data_bytes = data.bytes;
    train.data_hash = HashOf(data, model.order(), model.examples());
  }
  return train;
}

void Say(uint64_t rank, const std::string& what) {
  // One write, so that lines of several workers do not mix.
  const std::string line = absl::StrFormat("worker %d (pid %d) %s\n", rank, getpid(), what);
  WriteUnlessFull(STDERR_FILENO, line, absl::Milliseconds(100));
}

// "", or which part of the step's batch an elastic job's worker had.
std::string PartText(const Totals& totals) {
  if (totals.part == 0) return "";
  return absl::StrCat(" part ", totals.part, " of ", totals.parts);
}

// `hooks` with the lines of --log-steps.
TrainHooks WithStepLines(const Options& options, uint64_t rank, TrainHooks hooks) {
  hooks.stop = &g_drain;
  hooks.after_step = [&options, rank, next = std::move(hooks.after_step)](const Totals& totals) {
    if (options.log_steps) Say(rank, absl::StrCat("step ", totals.steps, PartText(totals)));
    next(totals);
  };
  return hooks;
}

struct Trained {
  std::unique_ptr<Model> model;
  std::unique_ptr<ParameterStore> store;
  TrainResult result;
};

// Pulls the tables' last parameters, with this worker's own last step in them, and hashes them if
// the options ask for it. Counts the bytes of this pull, so that a run's totals equal the servers'
// counts.
absl::StatusOr<std::optional<uint64_t>> Settle(const Options& options, Trained* trained) {
  ParameterStore* store = trained->store.get();
  if (absl::Status status = PullAll(store); !status.ok()) return status;
  std::optional<uint64_t> hash;
  if (options.checksum) {
    const absl::StatusOr<uint64_t> hashed = HashModel(trained->model.get(), store);
    if (!hashed.ok()) return hashed.status();
    hash = *hashed;
  }
  trained->result.totals.bytes_pulled = store->statistics().bytes_pulled;
  return hash;
}

// On the test data, if there is any.
absl::StatusOr<std::optional<Quality>> Test(const Options& options, Trained* trained) {
  Model* model = trained->model.get();
  if (!model->has_test()) return std::optional<Quality>();
  // Rows have their present values, so the dense parameters beside them must have, too.
  const float* parameters =
      model->tables().empty() ? trained->result.average.data() : trained->store->parameters();
  const absl::StatusOr<Quality> quality =
      EvaluateModel(options, model, trained->store->rows(), parameters);
  if (!quality.ok()) return quality.status();
  if (absl::Status status = CheckConverged(*quality); !status.ok()) return status;
  return *quality;
}

absl::StatusOr<std::unique_ptr<ParameterStore>> OpenStore(const Options& options,
                                                          const Model& model,
                                                          const TrainOptions& train) {
  const Layout layout = StoreLayout(model, train);
  const TrainingSpec spec = TrainingSpecOf(options, train.steps);
  if (options.local) {
    absl::StatusOr<std::unique_ptr<LocalStore>> store =
        LocalStore::Create(layout, spec, model.tables());
    if (!store.ok()) return store.status();
    return *std::move(store);
  }
  ClusterOptions cluster = ClusterOptionsOf(options);
  cluster.devices.assign(model.devices().begin(), model.devices().end());
  absl::StatusOr<std::unique_ptr<ClientStore>> store =
      ClientStore::Connect(cluster, layout, model.tables(), spec);
  if (!store.ok()) return store.status();
  return *std::move(store);
}

absl::StatusOr<Trained> TrainOnce(const Options& options,
                                  const std::function<void(uint64_t steps)>& started,
                                  TrainHooks hooks) {
  Trained trained;
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel(options, &g_stop);
  if (!model.ok()) return model.status();
  trained.model = *std::move(model);
  TrainOptions train = TrainOptionsOf(options, *trained.model);
  absl::StatusOr<std::unique_ptr<ParameterStore>> store = OpenStore(options, *trained.model, train);
  if (!store.ok()) return store.status();
  trained.store = *std::move(store);
  if (auto* cluster = dynamic_cast<ClientStore*>(trained.store.get());
      cluster != nullptr && options.max_workers > 0) {
    train.rank = static_cast<uint64_t>(cluster->rank());
    hooks.may_leave = [cluster] { return cluster->MayLeave(); };
  }
  started(train.steps);
  hooks.training = &g_training;
  hooks.after_step = [after_step = std::move(hooks.after_step)](const Totals& totals) {
    g_stepped.store(true);
    if (after_step) after_step(totals);
  };
  absl::StatusOr<TrainResult> result = Train(trained.model.get(), trained.store.get(), train,
                                             WithStepLines(options, train.rank, std::move(hooks)));
  g_training.store(false);
  if (!result.ok()) return result.status();
  // A signal in the last step.
  if (g_drain.load()) return absl::CancelledError("stopped by a signal");
  trained.result = *std::move(result);
  return trained;
}

void OnAlarm(int) {
  if (g_stepped.load()) return;
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, kEndedBefore.data(), kEndedBefore.size());
  _exit(128 + g_signal.load());
}

void OnStopSignal(int signal) {
  // A terminal's Ctrl-C is followed by the launcher's own signal.
  if (g_drain.load() && !g_launched.load()) _exit(128 + signal);
  g_signal.store(signal);
  g_drain.store(true);
  if (!g_stepped.load() && !g_launched.load()) alarm(kFirstStepSeconds);
  if (!g_training.load()) {
    g_stop.store(true);
  } else if (!g_launched.load()) {
    // The texts are there already: this may run at any point of the program.
    const std::string_view text = signal == SIGINT ? kDrainsAtInterrupt : kDrainsAtTerminate;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  }
}

// After a signal: what this worker has done. It has left the job.
std::string DrainedText(const Options& options, const Totals& totals, uint64_t steps) {
  const std::string signal = absl::StrCat("SIG", sigabbrev_np(StopSignal()));
  if (totals.steps == 0) return absl::StrCat(signal, ": ended before the first step");
  std::string text = absl::StrCat(signal, ": ended after step ", totals.steps, " of ", steps);
  if (options.job.empty() || options.drop_tables) return text;
  return absl::StrCat(text, "; the tables of job '", options.job,
                      "' are kept, and --resume goes on from them");
}

std::string Describe(const absl::Status& status) { return std::string(status.message()); }

// Whether the launcher wants the evaluation.
bool WaitForOrder(int channel) {
  for (;;) {
    pollfd waiting = {channel, POLLIN, 0};
    const int n = poll(&waiting, 1, kStopCheckMs);
    if (g_stop.load()) return false;
    if (n <= 0) continue;
    const absl::StatusOr<ChannelMessage> order = ReceiveMessage(channel);
    return order.ok() && order->kind == ChannelMessage::Kind::kEvaluate;
  }
}

ChannelMessage EvaluateForLauncher(const Options& options, Trained trained) {
  ChannelMessage message;
  const absl::StatusOr<std::optional<uint64_t>> hash = Settle(options, &trained);
  message.totals = trained.result.totals;
  absl::Status status = hash.status();
  if (status.ok()) {
    message.parameters_hash = hash->value_or(0);
    const absl::StatusOr<std::optional<Quality>> quality = Test(options, &trained);
    status = quality.status();
    if (quality.ok() && *quality) message.quality = **quality;
  }
  if (options.drop_tables) {
    if (auto* cluster = dynamic_cast<ClientStore*>(trained.store.get())) {
      status.Update(cluster->DropTables());
    }
  }
  message.kind = status.ok() ? ChannelMessage::Kind::kQuality : ChannelMessage::Kind::kFailed;
  message.SetText(Describe(status));
  return message;
}

}  // namespace

const std::atomic<bool>* InstallStopHandler() {
  struct sigaction action = {};
  action.sa_handler = &OnStopSignal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = &OnAlarm;
  sigaction(SIGALRM, &action, nullptr);
  return &g_drain;
}

int StopSignal() { return g_signal.load(); }

int RunLaunchedWorker(const Options& options,
                      const std::function<void(uint64_t steps)>& after_step) {
  g_launched.store(true);
  InstallStopHandler();
  ChannelMessage progress;
  double sent_at = 0;
  Totals last;
  TrainHooks hooks;
  hooks.after_step = [&](const Totals& totals) {
    last = totals;
    if (after_step) after_step(totals.steps);
    if (totals.seconds - sent_at < kProgressSeconds) return;
    sent_at = totals.seconds;
    progress.totals = totals;
    // A launcher that is gone has sent its signal, or its exit does.
    (void)SendMessage(options.channel, progress);
  };
  hooks.validated = [&](const Validation& validation) {
    ChannelMessage message = progress;
    message.kind = ChannelMessage::Kind::kValidated;
    message.validation = validation;
    (void)SendMessage(options.channel, message);
  };
  hooks.warn = [&](const std::string& line) {
    ChannelMessage note = progress;
    note.kind = ChannelMessage::Kind::kNote;
    note.SetText(line);
    (void)SendMessage(options.channel, note);
  };
  const auto started = [&](uint64_t steps) {
    progress.planned_steps = steps;
    (void)SendMessage(options.channel, progress);
  };
  absl::StatusOr<Trained> trained = TrainOnce(options, started, std::move(hooks));
  if (StopSignal() != 0 && (trained.ok() || absl::IsCancelled(trained.status()))) {
    progress.totals = last;
    (void)SendMessage(options.channel, progress);
    return 128 + StopSignal();
  }
  ChannelMessage message;
  message.planned_steps = progress.planned_steps;
  if (!trained.ok()) {
    message.kind = ChannelMessage::Kind::kFailed;
    message.totals = progress.totals;
    message.SetText(Describe(trained.status()));
    (void)SendMessage(options.channel, message);
    return kExitFailure;
  }
  message.kind = ChannelMessage::Kind::kTrained;
  message.totals = trained->result.totals;
  message.stopped_early = trained->result.stopped_early;
  message.SetTransport(trained->store->statistics().transport);
  if (!SendMessage(options.channel, message).ok()) return kExitFailure;
  if (!WaitForOrder(options.channel)) return StopSignal() != 0 ? 128 + StopSignal() : kExitOk;
  message = EvaluateForLauncher(options, *std::move(trained));
  if (!SendMessage(options.channel, message).ok()) return kExitFailure;
  return message.kind == ChannelMessage::Kind::kQuality ? kExitOk : kExitFailure;
}

int RunSeparateWorker(const Options& options,
                      const std::function<void(uint64_t steps)>& after_step) {
  InstallStopHandler();
  std::optional<Progress> progress(std::in_place, stderr, isatty(STDERR_FILENO) == 1, 0);
  const auto note = [&](const std::string& line) { progress->Note(line); };
  absl::StatusOr<RunLog> log = RunLog::Open(options, note);
  if (!log.ok()) {
    std::fprintf(stderr, "verbena-train: %s\n", Describe(log.status()).c_str());
    return kExitFailure;
  }
  TrainHooks hooks;
  Totals last;
  uint64_t planned = 0;
  hooks.after_step = [&](const Totals& totals) {
    last = totals;
    if (after_step) after_step(totals.steps);
    progress->Update(totals);
    log->Progress(totals);
  };
  hooks.validated = [&](const Validation& validation) {
    note(ValidationText(validation));
    log->Validated(validation);
  };
  hooks.warn = note;
  const auto started = [&](uint64_t steps) {
    planned = steps;
    progress->set_steps(steps);
    log->Begin(steps);
  };
  absl::StatusOr<Trained> trained = TrainOnce(options, started, std::move(hooks));
  Report report;
  absl::Status status = trained.status();
  if (status.ok()) {
    progress->Finish(trained->result.totals);
    report.transport = trained->store->statistics().transport;
    report.stopped_early = trained->result.stopped_early;
    const absl::StatusOr<std::optional<uint64_t>> hash = Settle(options, &*trained);
    report.totals = trained->result.totals;
    status = hash.status();
    if (hash.ok()) report.parameters_hash = *hash;
  }
  if (status.ok()) {
    const absl::StatusOr<std::optional<Quality>> quality = Test(options, &*trained);
    status = quality.status();
    if (quality.ok()) report.quality = *quality;
  }
  progress.reset();  // ends a live line
  if (StopSignal() != 0) {
    if (!status.ok() && !absl::IsCancelled(status)) {
      std::fprintf(stderr, "verbena-train: %s\n", Describe(status).c_str());
    }
    std::fprintf(stderr, "verbena-train: %s\n", DrainedText(options, last, planned).c_str());
    return 128 + StopSignal();
  }
  if (!status.ok()) {
    std::fprintf(stderr, "verbena-train: %s\n", Describe(status).c_str());
    return kExitFailure;
  }
  log->End(report);
  return WriteResult(FormatReport(options, report)) ? kExitOk : kExitFailure;
}

}  // namespace verbena::worker
