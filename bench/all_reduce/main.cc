// Summing between two workers by way of servers, beside OpenMPI's all-reduce over shared memory.
//
//     all_reduce --verbenad build/release/verbenad [--mpirun mpirun] [--json FILE]
//
// Every figure is the median of interleaved runs (ours, limit, ours, limit, ...). A round is waited
// for before the next begins, on both sides.
#include <stdio.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/cluster.h"
#include "bench/push_pull/touch.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"
#include "verbena/client.h"

namespace verbena::bench {
namespace {

struct Settings {
  std::string verbenad;
  std::string mpirun = "mpirun";
  std::string json;
  int repeats = 5;
  size_t smallest = 64 << 10;
  size_t largest = 16 << 20;
};

struct WorkerArguments {
  std::string cluster;
  std::string job;
  size_t bytes = 0;
  int rounds = 0;
};

constexpr char kBench[] = "all_reduce";
constexpr uint32_t kWorkers = 2;
constexpr int kWarmUp = 4;

int RoundsOf(size_t bytes) {
  return static_cast<int>(std::clamp<size_t>((size_t{512} << 20) / bytes, 32, 4000));
}

std::string SizeName(size_t bytes) {
  return bytes >= size_t{1} << 20 ? absl::StrCat(bytes >> 20, " MiB")
                                  : absl::StrCat(bytes >> 10, " KiB");
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The first number in a command's output.
absl::StatusOr<double> FirstNumber(FILE* pipe, const std::string& command) {
  double number = 0;
  const bool read = fscanf(pipe, "%lf", &number) == 1;
  char rest[256];
  while (fread(rest, 1, sizeof rest, pipe) > 0) {
  }
  if (pclose(pipe) != 0 || !read) {
    return absl::InternalError("this failed, see its message above: " + command);
  }
  return number;
}

std::string Sibling(const std::string& name) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  return self.parent_path() / name;
}

// Seconds of a round, of shared memory alone.
absl::StatusOr<double> MpiSeconds(const Settings& settings, size_t bytes) {
  // In containers root runs this; it does not search for a network.
  const std::string command =
      absl::StrCat("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 '", settings.mpirun,
                   "' --oversubscribe --mca btl self,vader --mca pml ob1 --mca plm isolated"
                   " --mca oob_tcp_if_include lo -n ",
                   kWorkers, " '", Sibling("all_reduce_mpi"), "' ", bytes, " ", RoundsOf(bytes));
  FILE* pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return absl::ErrnoToStatus(errno, "popen");
  return FirstNumber(pipe, command);
}

// Seconds of a round: the mean over both worker processes.
absl::StatusOr<double> OurSeconds(const Cluster& cluster, const std::string& job, size_t bytes) {
  const std::string command =
      absl::StrCat("'", Sibling("all_reduce"), "' worker --cluster ", cluster.address(), " --job ",
                   job, " --bytes ", bytes, " --rounds ", RoundsOf(bytes));
  std::vector<FILE*> pipes;
  for (uint32_t i = 0; i < kWorkers; ++i) pipes.push_back(popen(command.c_str(), "re"));
  double sum = 0;
  absl::Status status;
  for (FILE* pipe : pipes) {
    if (pipe == nullptr) {
      status.Update(absl::InternalError("popen failed"));
      continue;
    }
    const auto seconds = FirstNumber(pipe, command);
    status.Update(seconds.status());
    if (seconds.ok()) sum += *seconds;
  }
  if (!status.ok()) return status;
  return sum / kWorkers;
}

// One of the worker processes: seconds of a round.
absl::StatusOr<double> Sum(const WorkerArguments& arguments) {
  auto client = Client::Connect({.cluster = arguments.cluster,
                                 .job = arguments.job,
                                 .expected_workers = kWorkers,
                                 .transport = "shm"});
  if (!client.ok()) return client.status();
  v1::TableSpec spec;
  spec.set_name(arguments.job);
  spec.set_job(arguments.job);
  spec.add_shape(arguments.bytes / sizeof(float));
  spec.set_consistency(v1::CONSISTENCY_SYNC);
  spec.set_reduction(v1::REDUCTION_SUM);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  auto table = (*client)->CreateTable(spec);
  if (!table.ok()) return table.status();
  auto gradient = (*client)->AllocateRegion(arguments.bytes);
  if (!gradient.ok()) return gradient.status();
  auto result = (*client)->AllocateRegion(arguments.bytes);
  if (!result.ok()) return result.status();
  const size_t count = arguments.bytes / sizeof(float);
  volatile float sink = 0;
  double start = 0;
  for (int i = 0; i < arguments.rounds + kWarmUp; ++i) {
    if (i == kWarmUp) start = NowSeconds();
    FillGradient(gradient->floats(), count, static_cast<float>(i % 7) * 0x1p-10f);
    const absl::Status status = (*client)->PushPull(*table, *gradient, *result).Wait();
    if (!status.ok()) return status;
    sink = sink + ReadResult(result->floats(), count);
  }
  return (NowSeconds() - start) / arguments.rounds;
}

absl::Status Run(const Settings& settings, Report* report) {
  std::printf(
      "all_reduce: f32, sum, %u worker processes on this machine, %d interleaved runs, medians; a "
      "round is\nwaited for. Ours: push-pull over shm with one server of 2 shards, which also take "
      "a step of plain\ngradient descent; not pinned. Limit: MPI_Allreduce, btl self,vader, as "
      "mpirun places it. Workers rewrite\ntheir gradient and read the result. GB/s: bytes of a "
      "gradient by the time of a round. %u CPUs.\n\n",
      kWorkers, settings.repeats, std::thread::hardware_concurrency());
  auto cluster =
      Cluster::Start({.verbenad = settings.verbenad, .wire = {}, .servers = 1, .shards = 2});
  if (!cluster.ok()) return cluster.status();
  for (size_t bytes = settings.smallest; bytes <= settings.largest; bytes *= 4) {
    Row row{kBench, SizeName(bytes) + " of MPI_Allreduce", "GB/s", Better::kHigher, {}, {}};
    for (int repeat = 0; repeat < settings.repeats; ++repeat) {
      const auto ours = OurSeconds(**cluster, absl::StrCat("sum-", bytes, "-", repeat), bytes);
      if (!ours.ok()) return ours.status();
      row.value.Add(static_cast<double>(bytes) / *ours / 1e9);
      const auto theirs = MpiSeconds(settings, bytes);
      if (!theirs.ok()) return theirs.status();
      row.limit.Add(static_cast<double>(bytes) / *theirs / 1e9);
    }
    report->Add(std::move(row));
  }
  return absl::OkStatus();
}

int RunWorker(const WorkerArguments& arguments) {
  const auto seconds = Sum(arguments);
  if (!seconds.ok()) {
    std::fprintf(stderr, "all_reduce worker: %s\n", seconds.status().ToString().c_str());
    return 1;
  }
  std::printf("%.9f\n", *seconds);
  return 0;
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  verbena::bench::WorkerArguments arguments;
  CLI::App app("Summing by way of servers, beside OpenMPI's all-reduce over shared memory");
  app.add_option("--verbenad", settings.verbenad, "the daemon's program");
  app.add_option("--mpirun", settings.mpirun, "OpenMPI's launcher")->capture_default_str();
  app.add_option("--repeats", settings.repeats, "interleaved runs of each")
      ->check(CLI::Range(1, 99))
      ->capture_default_str();
  app.add_option("--smallest", settings.smallest, "bytes; sizes go up by 4")
      ->check(CLI::Range(size_t{4}, size_t{1} << 30))
      ->capture_default_str();
  app.add_option("--largest", settings.largest, "bytes")
      ->check(CLI::Range(size_t{4}, size_t{1} << 30))
      ->capture_default_str();
  app.add_option("--json", settings.json, "write the rows to this file");
  CLI::App* worker = app.add_subcommand("worker", "one worker process (started by this program)");
  worker->add_option("--cluster", arguments.cluster)->required();
  worker->add_option("--job", arguments.job)->required();
  worker->add_option("--bytes", arguments.bytes)->required();
  worker->add_option("--rounds", arguments.rounds)->required();
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  if (worker->parsed()) return verbena::bench::RunWorker(arguments);
  if (settings.verbenad.empty()) {
    std::fprintf(stderr, "all_reduce: --verbenad PATH is wanted\n");
    return 2;
  }
  verbena::bench::Report report;
  const absl::Status status = verbena::bench::Run(settings, &report);
  return report.End("all_reduce", status, settings.json);
}
