#include "worker/worker_process.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/channel.h"
#include "worker/client_store.h"
#include "worker/local_store.h"
#include "worker/logistic_regression.h"
#include "worker/progress.h"
#include "worker/report.h"
#include "worker/text_model.h"
#include "worker/trainer.h"

namespace verbena::worker {
namespace {

// Written by a signal handler: lock-free, as [support.signal] demands.
std::atomic<bool> g_stop = false;
std::atomic<int> g_signal = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

// Between two progress messages; a step may take microseconds.
constexpr double kProgressSeconds = 0.1;
constexpr int kStopCheckMs = 100;

ClusterOptions ClusterOptionsOf(const Options& options) {
  ClusterOptions cluster;
  cluster.cluster = options.cluster;
  cluster.job = options.job;
  cluster.transport = options.transport;
  cluster.rdma = options.rdma;
  cluster.rank = options.rank;
  cluster.workers = options.workers;
  cluster.timeout = absl::Seconds(options.timeout);
  cluster.stop = &g_stop;
  return cluster;
}

TrainOptions TrainOptionsOf(const Options& options, const Model& model) {
  TrainOptions train;
  train.workers = options.workers;
  train.rank = static_cast<uint64_t>(std::max(options.rank, 0));
  train.steps = StepsOf(options, model.examples());
  train.batch = BatchOf(options);
  train.seed = options.seed;
  return train;
}

void Say(const Options& options, const std::string& what) {
  // One write, so that lines of several workers do not mix.
  const std::string line =
      absl::StrFormat("worker %d (pid %d) %s\n", std::max(options.rank, 0), getpid(), what);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void PauseSelf(const Options& options, const std::string& where) {
  Say(options, "paused " + where);
  raise(SIGSTOP);
}

// Adds what tests ask for: a log of steps, and pauses that SIGCONT ends.
TrainHooks HooksOf(const Options& options, std::function<void(const Totals&)> after_step) {
  const bool pauses = static_cast<uint32_t>(std::max(options.rank, 0)) == options.pause_rank;
  TrainHooks hooks;
  hooks.stop = &g_stop;
  hooks.after_step = [&options, pauses, next = std::move(after_step)](const Totals& totals) {
    next(totals);
    if (options.log_steps) Say(options, absl::StrCat("step ", totals.steps));
    if (pauses && static_cast<int64_t>(totals.steps) == options.pause_after_step) {
      PauseSelf(options, absl::StrCat("after step ", totals.steps));
    }
  };
  if (pauses && options.pause_in_step >= 0) {
    hooks.mid_step = [&options](uint64_t step) {
      if (static_cast<int64_t>(step) == options.pause_in_step) {
        PauseSelf(options, absl::StrCat("in step ", step));
      }
    };
  }
  return hooks;
}

// Of the tables' last parameters, with this worker's own last step in them. Counts the bytes this
// takes, so that a run's totals are what the servers counted.
absl::StatusOr<uint64_t> HashFinal(ParameterStore* store, Totals* totals) {
  if (absl::Status status = PullAll(store); !status.ok()) return status;
  totals->bytes_pulled = store->statistics().bytes_pulled;
  return HashParameters(store->layout(), store->parameters());
}

absl::Status WritePredictions(const std::string& path,
                              const std::function<absl::Status(FILE*)>& fill) {
  // Beside it and then renamed: nobody sees half a file, and workers may all write it.
  const std::string partial = absl::StrCat(path, ".", getpid(), ".partial");
  std::FILE* file = std::fopen(partial.c_str(), "we");
  const auto failed = [&path](const char* what) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
  };
  if (file == nullptr) return failed("write");
  auto remover = absl::MakeCleanup([&partial] { unlink(partial.c_str()); });
  absl::Status status = fill(file);
  const bool wrote = std::ferror(file) == 0;
  const bool closed = std::fclose(file) == 0;
  if (!status.ok()) return status;
  if (!wrote || !closed) return failed("write");
  if (rename(partial.c_str(), path.c_str()) != 0) return failed("rename to");
  std::move(remover).Cancel();
  return absl::OkStatus();
}

struct Trained {
  std::unique_ptr<Model> model;
  std::unique_ptr<ParameterStore> store;
  TrainResult result;
};

absl::StatusOr<std::unique_ptr<ParameterStore>> OpenStore(const Options& options,
                                                          const Layout& layout,
                                                          const TrainingSpec& spec) {
  if (options.local) {
    absl::StatusOr<std::unique_ptr<LocalStore>> store = LocalStore::Create(layout, spec);
    if (!store.ok()) return store.status();
    return *std::move(store);
  }
  absl::StatusOr<std::unique_ptr<ClientStore>> store =
      ClientStore::Connect(ClusterOptionsOf(options), layout, spec);
  if (!store.ok()) return store.status();
  return *std::move(store);
}

absl::StatusOr<Trained> TrainOnce(const Options& options,
                                  const std::function<void(uint64_t steps)>& started,
                                  const std::function<void(const Totals&)>& after_step) {
  Trained trained;
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel(options);
  if (!model.ok()) return model.status();
  trained.model = *std::move(model);
  const TrainOptions train = TrainOptionsOf(options, *trained.model);
  absl::StatusOr<std::unique_ptr<ParameterStore>> store =
      OpenStore(options, trained.model->layout(), TrainingSpecOf(options, train.steps));
  if (!store.ok()) return store.status();
  trained.store = *std::move(store);
  started(train.steps);
  absl::StatusOr<TrainResult> result =
      Train(trained.model.get(), trained.store.get(), train, HooksOf(options, after_step));
  if (!result.ok()) return result.status();
  trained.result = *std::move(result);
  return trained;
}

void OnStopSignal(int signal) {
  g_signal.store(signal);
  g_stop.store(true);
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
  message.totals = trained.result.totals;
  const absl::StatusOr<uint64_t> hash = HashFinal(trained.store.get(), &message.totals);
  absl::Status status = hash.status();
  if (status.ok()) {
    message.parameters_hash = *hash;
    if (trained.model->has_test()) {
      absl::StatusOr<Quality> quality =
          EvaluateModel(options, trained.model.get(), trained.result.average.data());
      status = quality.status();
      if (quality.ok()) message.quality = *quality;
    }
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
  return &g_stop;
}

int StopSignal() { return g_signal.load(); }

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const Options& options) {
  if (options.format == "text") {
    absl::StatusOr<TextData> data = ReadText(options.data, options.test, options.holdout);
    if (!data.ok()) return data.status();
    return std::make_unique<TextModel>(*std::move(data), options.text);
  }
  absl::StatusOr<SparseExamples> train = ReadLibsvm(options.data);
  if (!train.ok()) return train.status();
  std::optional<SparseExamples> test;
  if (!options.test.empty()) {
    absl::StatusOr<SparseExamples> read = ReadLibsvm(options.test);
    if (!read.ok()) return read.status();
    test = *std::move(read);
  }
  return std::make_unique<LogisticRegression>(*std::move(train), std::move(test), L2Of(options));
}

absl::StatusOr<Quality> EvaluateModel(const Options& options, Model* model,
                                      const float* parameters) {
  if (options.predictions.empty()) return model->Evaluate(parameters, nullptr);
  Quality quality;
  absl::Status status = WritePredictions(options.predictions, [&](FILE* file) {
    absl::StatusOr<Quality> evaluated = model->Evaluate(parameters, file);
    if (evaluated.ok()) quality = *evaluated;
    return evaluated.status();
  });
  if (!status.ok()) return status;
  return quality;
}

int RunLaunchedWorker(const Options& options) {
  InstallStopHandler();
  ChannelMessage progress;
  double sent_at = 0;
  absl::StatusOr<Trained> trained = TrainOnce(
      options,
      [&](uint64_t steps) {
        progress.planned_steps = steps;
        (void)SendMessage(options.channel, progress);
      },
      [&](const Totals& totals) {
        if (totals.seconds - sent_at < kProgressSeconds) return;
        sent_at = totals.seconds;
        progress.totals = totals;
        // A launcher that is gone has sent its signal, or its exit does.
        (void)SendMessage(options.channel, progress);
      });
  if (StopSignal() != 0) return 128 + StopSignal();
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
  message.SetTransport(trained->store->statistics().transport);
  if (!SendMessage(options.channel, message).ok()) return kExitFailure;
  if (!WaitForOrder(options.channel)) return StopSignal() != 0 ? 128 + StopSignal() : kExitOk;
  message = EvaluateForLauncher(options, *std::move(trained));
  if (!SendMessage(options.channel, message).ok()) return kExitFailure;
  return message.kind == ChannelMessage::Kind::kQuality ? kExitOk : kExitFailure;
}

int RunSeparateWorker(const Options& options) {
  InstallStopHandler();
  std::unique_ptr<Progress> progress;
  absl::StatusOr<Trained> trained = TrainOnce(
      options,
      [&](uint64_t steps) {
        progress = std::make_unique<Progress>(stderr, isatty(STDERR_FILENO) == 1, steps);
      },
      [&](const Totals& totals) { progress->Update(totals); });
  Report report;
  absl::Status status = trained.status();
  if (status.ok()) {
    progress->Finish(trained->result.totals);
    report.totals = trained->result.totals;
    report.transport = trained->store->statistics().transport;
    const absl::StatusOr<uint64_t> hash = HashFinal(trained->store.get(), &report.totals);
    status = hash.status();
    if (status.ok() && options.checksum) report.parameters_hash = *hash;
    if (status.ok() && trained->model->has_test()) {
      absl::StatusOr<Quality> quality =
          EvaluateModel(options, trained->model.get(), trained->result.average.data());
      status = quality.status();
      if (quality.ok()) report.quality = *quality;
    }
  }
  progress.reset();  // ends a live line
  if (StopSignal() != 0) return 128 + StopSignal();
  if (!status.ok()) {
    std::fprintf(stderr, "verbena-train: %s\n", Describe(status).c_str());
    return kExitFailure;
  }
  const std::string text = FormatReport(options, report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0 ? kExitOk : kExitFailure;
}

}  // namespace verbena::worker
