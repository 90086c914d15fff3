#include "bench/scale/many.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace verbena::bench {
namespace {

constexpr int kQuickRounds = 200;  // at once, as often as fits
constexpr int kQuickGapMicros = 200;
constexpr int kAloneRounds = 5000;
constexpr int kIdleSeconds = 5;
constexpr int kElements = 64;  // of a table
constexpr absl::Duration kCallTimeout = absl::Minutes(10);

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

v1::TableSpec SpecOf(const std::string& name, const std::string& job) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job(job);
  spec.add_shape(kElements);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(0.1);
  return spec;
}

// Voluntary context switches of all threads: how often one of them had gone to sleep.
int64_t Wakes(pid_t pid) {
  int64_t total = 0;
  std::error_code error;
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      int64_t count = 0;
      if (line.rfind("voluntary_ctxt_switches:", 0) != 0) continue;
      if (absl::SimpleAtoi(line.substr(line.find(':') + 1), &count)) total += count;
    }
  }
  return total;
}

}  // namespace

absl::StatusOr<ManyFigures> Many::Run(const ManyOptions& options) {
  Many many(options);
  absl::Status status = many.Start();
  if (status.ok()) status = many.RunAll();
  std::error_code ignored;
  if (!many.folder_.empty()) std::filesystem::remove_all(many.folder_, ignored);
  if (!status.ok()) return status;
  return many.figures_;
}

absl::Status Many::Start() {
  std::string folder = std::filesystem::temp_directory_path() / "verbena-bench-scale-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::UnavailableError("cannot make " + folder);
  folder_ = folder;
  ClusterOptions options;
  options.verbenad = options_.verbenad;
  options.wire.transport = options_.transport;
  options.servers = options_.servers;
  auto cluster = Cluster::Start(options);
  if (!cluster.ok()) return cluster.status();
  cluster_ = *std::move(cluster);
  auto quick = Quiet::Connect(cluster_->address(), options.wire, "quick", 4096);
  if (!quick.ok()) return quick.status();
  quick_ = *std::move(quick);
  if (absl::Status alone = SampleAlone(); !alone.ok()) return alone;
  auto owner = Connect("tables", /*observer=*/false);
  if (!owner.ok()) return owner.status();
  owner_ = *std::move(owner);
  return absl::OkStatus();
}

// Before and after everything else: other load on the machine may change meanwhile.
absl::Status Many::SampleAlone() {
  absl::Status status = quick_->Sample(kAloneRounds, /*pull=*/true, kQuickGapMicros, &alone_);
  if (status.ok()) figures_.alone_p999_us = Quiet::TimesOf(alone_).p999_us;
  return status;
}

absl::StatusOr<std::unique_ptr<Client>> Many::Connect(const std::string& job, bool observer) const {
  ClientOptions options;
  options.cluster = cluster_->address();
  options.job = job;
  options.transport = options_.transport;
  options.observer = observer;
  return Client::Connect(options);
}

template <typename Calls>
absl::Status Many::Time(const std::string& name, Calls calls) {
  std::atomic<bool> end = false;
  absl::Status quick;
  std::vector<double> seconds;
  std::thread beside([&] {
    while (!end && quick.ok()) {
      quick = quick_->Sample(kQuickRounds, /*pull=*/true, kQuickGapMicros, &seconds);
    }
  });
  const int64_t cpu = cluster_->CpuNanos();
  const double began = NowSeconds();
  const absl::Status status = calls();
  figures_.seconds[name] = NowSeconds() - began;
  figures_.cpu_seconds[name] = static_cast<double>(cluster_->CpuNanos() - cpu) / 1e9;
  end = true;
  beside.join();
  if (!seconds.empty()) figures_.beside_p999_us[name] = Quiet::TimesOf(std::move(seconds)).p999_us;
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
  return quick;
}

absl::Status Many::RunAll() {
  absl::Status status = CreateTables();
  if (status.ok()) status = RunJobs();
  if (status.ok()) status = ConnectClients();
  if (status.ok()) status = Status();
  if (status.ok()) status = Idle();
  if (status.ok()) status = Save();
  if (status.ok()) status = Export();
  if (status.ok()) status = Restore();
  if (status.ok()) status = CheckpointOften();
  if (status.ok()) status = ListCheckpoints();
  if (status.ok()) status = DropTables();
  if (status.ok()) status = SampleAlone();
  return status;
}

absl::Status Many::CreateTables() {
  return Time("create", [&]() -> absl::Status {
    for (int i = 0; i < options_.tables; ++i) {
      const auto table = owner_->CreateTable(SpecOf(absl::StrCat("table-", i), "tables"),
                                             {.timeout = kCallTimeout});
      if (!table.ok()) return table.status();
    }
    return absl::OkStatus();
  });
}

// Each joins and leaves, one after the other.
absl::Status Many::RunJobs() {
  return Time("job", [&]() -> absl::Status {
    for (int i = 0; i < options_.jobs; ++i) {
      const auto client = Connect(absl::StrCat("job-", i), /*observer=*/false);
      if (!client.ok()) return client.status();
    }
    return absl::OkStatus();
  });
}

absl::Status Many::ConnectClients() {
  return Time("connect", [&]() -> absl::Status {
    for (int i = 0; i < options_.clients; ++i) {
      auto client = Connect("tables", /*observer=*/true);
      if (!client.ok()) return client.status();
      clients_.push_back(*std::move(client));
    }
    return absl::OkStatus();
  });
}

absl::Status Many::Program(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), options_.verbena);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::UnavailableError(absl::StrCat("cannot start ", options_.verbena));
  int code = 0;
  waitpid(pid, &code, 0);
  if (WIFEXITED(code) && WEXITSTATUS(code) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("'", absl::StrJoin(arguments, " "), "' ended with ",
                                          WIFEXITED(code) ? WEXITSTATUS(code) : -1));
}

absl::Status Many::Status() {
  return Time("status", [&] {
    return Program({"--cluster", cluster_->address(), "--timeout", "600", "status"});
  });
}

absl::Status Many::Save() {
  return Time("save", [&] {
    return Program({"checkpoint", "save", Directory("all"), "--job", "tables", "--cluster",
                    cluster_->address(), "--timeout", "600"});
  });
}

absl::Status Many::Export() {
  return Time("export", [&] {
    return Program(
        {"checkpoint", "export", Directory("all"), "--to", Directory("model.safetensors")});
  });
}

absl::Status Many::Restore() {
  return Time("restore", [&] {
    return Program({"checkpoint", "restore", Directory("all"), "--replace", "--yes", "--cluster",
                    cluster_->address(), "--timeout", "600"});
  });
}

// A job with one table, so that only the number of checkpoints grows.
absl::Status Many::CheckpointOften() {
  return Time("checkpoint", [&]() -> absl::Status {
    for (int i = 0; i < options_.checkpoints; ++i) {
      absl::Status saved = Program({"checkpoint", "save", Directory("quick"), "--job", "quick",
                                    "--cluster", cluster_->address()});
      if (!saved.ok()) return saved;
    }
    return absl::OkStatus();
  });
}

absl::Status Many::ListCheckpoints() {
  return Time("list", [&] { return Program({"checkpoint", "list", Directory("quick")}); });
}

absl::Status Many::DropTables() {
  return Time("drop", [&]() -> absl::Status {
    for (int i = 0; i < options_.tables; ++i) {
      const absl::Status dropped =
          owner_->DropTable(absl::StrCat("table-", i), {.timeout = kCallTimeout});
      if (!dropped.ok()) return dropped;
    }
    return absl::OkStatus();
  });
}

absl::Status Many::Idle() {
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const pid_t coordinator = cluster_->coordinator_pid();
  const int64_t cpu = ProcessCpuNanos(coordinator), wakes = Wakes(coordinator);
  std::this_thread::sleep_for(std::chrono::seconds(kIdleSeconds));
  figures_.idle_cpu_percent =
      static_cast<double>(ProcessCpuNanos(coordinator) - cpu) / 1e7 / kIdleSeconds;
  figures_.idle_wakes = static_cast<double>(Wakes(coordinator) - wakes) / kIdleSeconds;
  return absl::OkStatus();
}

}  // namespace verbena::bench
