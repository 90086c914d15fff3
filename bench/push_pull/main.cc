// The cost of a push and a pull, beside a limit of the transport: over shm, two threads that share
// memory; over verbs, perftest's ib_write_bw and ib_send_lat on the same device.
//
//     push_pull --verbenad build/release/verbenad [--transport shm|verbs] [--case NAME...]
//               [--json FILE]
//
// Every figure is the median of interleaved runs (ours, limit, ours, limit, ...).
#include <stdio.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/cases.h"
#include "bench/cluster.h"
#include "bench/perftest.h"
#include "bench/push_pull/limits.h"
#include "bench/push_pull/touch.h"
#include "bench/push_pull/worker.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"

namespace verbena::bench {
namespace {

struct Settings {
  std::string verbenad;
  Wire wire;
  std::vector<std::string> cases;
  std::string json;
  int repeats = 5;
  size_t smallest = 4096;
  size_t largest = size_t{64} << 20;
};

struct WorkerArguments {
  std::string cluster;
  std::string job;
  uint32_t workers = 1;
  size_t bytes = 0;
  int rounds = 0;
  Wire wire;
};

constexpr char kBench[] = "push_pull";
constexpr size_t kChunkBytes = 256 << 10;  // tables are cut so: the largest write
constexpr int kPerftestSeconds = 2;

bool OverVerbs(const Settings& settings) { return settings.wire.transport == "verbs"; }

std::string SizeName(size_t bytes) {
  return bytes >= size_t{1} << 20 ? absl::StrCat(bytes >> 20, " MiB")
                                  : absl::StrCat(bytes >> 10, " KiB");
}

double Gigabytes(double bytes, double seconds) { return bytes / seconds / 1e9; }

// Two limits of whole rounds, each a row: the names, then a run of each.
std::vector<Row> ThroughputRows(const Settings& settings, size_t bytes) {
  const char* const shm[] = {" of two copying threads", " of two threads by reference"};
  const char* const verbs[] = {" of ib_write_bw, one way", " of ib_write_bw, both ways"};
  std::vector<Row> rows;
  for (const char* limit : OverVerbs(settings) ? verbs : shm) {
    rows.push_back({kBench, absl::StrCat(SizeName(bytes), limit), "GB/s", Better::kHigher, {}, {}});
  }
  return rows;
}

absl::Status AddThroughputLimits(const Settings& settings, const std::string& device, size_t bytes,
                                 std::vector<Row>* rows) {
  if (!OverVerbs(settings)) {
    // The limit is the best of the simple variants.
    (*rows)[0].limit.Add(std::max(SharedMemoryGigabytes(SharedMemoryLimit::kCopy, bytes),
                                  SharedMemoryGigabytes(SharedMemoryLimit::kCopyStreaming, bytes)));
    (*rows)[1].limit.Add(
        std::max(SharedMemoryGigabytes(SharedMemoryLimit::kReference, bytes),
                 SharedMemoryGigabytes(SharedMemoryLimit::kReferencePrefetch, bytes)));
    return absl::OkStatus();
  }
  // Pushed and pulled bytes together, as ours: all in one direction, and half in each.
  const Direction directions[] = {Direction::kOne, Direction::kBoth};
  for (size_t i = 0; i < rows->size(); ++i) {
    const auto megabytes =
        WriteMegabytes({.device = device, .placed = false, .extra = {}},
                       std::min(bytes, kChunkBytes), kPerftestSeconds, directions[i]);
    if (!megabytes.ok()) return megabytes.status();
    (*rows)[i].limit.Add(*megabytes / 1e3);
  }
  return absl::OkStatus();
}

// 1 worker, 1 server, 1 shard; the server on CPU 1.
struct Placed {
  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<Worker> worker;  // last: it leaves before the cluster ends
};
absl::StatusOr<Placed> StartPlaced(const Settings& settings, const std::string& job) {
  auto cluster = Cluster::Start({.verbenad = settings.verbenad,
                                 .wire = settings.wire,
                                 .servers = 1,
                                 .shards = 1,
                                 .server_cpu = 1});
  if (!cluster.ok()) return cluster.status();
  auto worker =
      Worker::Connect({.cluster = (*cluster)->address(), .job = job, .wire = settings.wire});
  if (!worker.ok()) return worker.status();
  return Placed{*std::move(cluster), *std::move(worker)};
}

// Every size beside both limits.
absl::Status Throughput(const Settings& settings, Report* report) {
  const auto placed = StartPlaced(settings, "throughput");
  if (!placed.ok()) return placed.status();
  Worker* const worker = placed->worker.get();

  for (size_t bytes = settings.smallest; bytes <= settings.largest; bytes *= 4) {
    absl::Status status =
        worker->UseTable(absl::StrCat("bytes-", bytes), v1::CONSISTENCY_SYNC, bytes);
    if (!status.ok()) return status;
    std::vector<Row> rows = ThroughputRows(settings, bytes);
    for (int repeat = 0; repeat < settings.repeats; ++repeat) {
      auto interval = worker->PushPullRounds(RoundsFor(bytes));
      if (!interval.ok()) return interval.status();
      for (Row& row : rows) {
        row.value.Add(
            Gigabytes(2.0 * RoundsFor(bytes) * static_cast<double>(bytes), interval->seconds()));
      }
      status = AddThroughputLimits(settings, worker->Device(), bytes, &rows);
      if (!status.ok()) return status;
    }
    for (Row& row : rows) report->Add(std::move(row));
  }
  return absl::OkStatus();
}

// A round trip without Verbena: nanoseconds spinning, microseconds sleeping.
struct RoundTripLimits {
  double spinning_ns = 0;
  double sleeping_us = 0;
};
absl::StatusOr<RoundTripLimits> MeasureRoundTrip(const Settings& settings,
                                                 const std::string& device, int gap_us) {
  if (!OverVerbs(settings)) return RoundTripLimits{PingPongNanos(300000), WakeMicros(200, gap_us)};
  const PerftestOptions options{.device = device, .placed = true, .extra = {}};
  const auto polling = SendRoundTrip(options, 64, 50000, Waiting::kPolling);
  if (!polling.ok()) return polling.status();
  const auto events = SendRoundTrip(options, 64, 2000, Waiting::kEvents);
  if (!events.ok()) return events.status();
  return RoundTripLimits{polling->typical_us * 1e3, events->typical_us};
}

// A push of 64 bytes, waited for: while both sides spin, and while both sleep in between.
absl::Status Latency(const Settings& settings, Report* report) {
  const auto placed = StartPlaced(settings, "latency");
  if (!placed.ok()) return placed.status();
  Worker* const worker = placed->worker.get();
  absl::Status status = worker->UseTable("small", v1::CONSISTENCY_ASYNC, 64);
  if (!status.ok()) return status;

  constexpr int kGapMicros = 5000;  // both sides have long stopped to spin
  Row spinning{kBench, "64 B push acknowledged, spinning", "ns", Better::kLower, {}, {}};
  Row sleeping{kBench, "64 B push acknowledged, sleeping", "us", Better::kLower, {}, {}};
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    auto nanos = worker->PushNanos(50000, 0);
    if (!nanos.ok()) return nanos.status();
    spinning.value.Add(*nanos);
    nanos = worker->PushNanos(200, kGapMicros);
    if (!nanos.ok()) return nanos.status();
    sleeping.value.Add(*nanos / 1e3);
    const auto limits = MeasureRoundTrip(settings, worker->Device(), kGapMicros);
    if (!limits.ok()) return limits.status();
    spinning.limit.Add(limits->spinning_ns);
    sleeping.limit.Add(limits->sleeping_us);
  }
  report->Add(std::move(spinning));
  report->Add(std::move(sleeping));
  return absl::OkStatus();
}

// Runs `count` worker processes on one table; GB/s of all together.
absl::StatusOr<double> WorkerProcesses(const WorkerArguments& arguments) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      absl::StrCat("'", self, "' worker --cluster ", arguments.cluster, " --job ", arguments.job,
                   " --workers ", arguments.workers, " --bytes ", arguments.bytes, " --rounds ",
                   arguments.rounds, " --transport ", arguments.wire.transport,
                   arguments.wire.device.empty() ? "" : " --device ", arguments.wire.device);
  std::vector<FILE*> pipes;
  for (uint32_t i = 0; i < arguments.workers; ++i) {
    FILE* pipe = popen(command.c_str(), "re");
    if (pipe != nullptr) pipes.push_back(pipe);
  }
  Interval all{INT64_MAX, 0};
  bool failed = pipes.size() != arguments.workers;
  for (FILE* pipe : pipes) {
    long long begin = 0;
    long long end = 0;
    if (fscanf(pipe, "%lld %lld", &begin, &end) != 2) failed = true;
    if (pclose(pipe) != 0) failed = true;
    all.begin_ns = std::min<int64_t>(all.begin_ns, begin);
    all.end_ns = std::max<int64_t>(all.end_ns, end);
  }
  if (failed) return absl::InternalError("a worker process failed: see its message above");
  return Gigabytes(
      2.0 * arguments.workers * arguments.rounds * static_cast<double>(arguments.bytes),
      all.seconds());
}

// 2 workers and 2 servers beside 1 and 1, nothing pinned: on two cores, spinning must not starve.
absl::Status Crowded(const Settings& settings, Report* report) {
  constexpr size_t kBytes = size_t{1} << 20;
  auto one = Cluster::Start(
      {.verbenad = settings.verbenad, .wire = settings.wire, .servers = 1, .shards = 1});
  if (!one.ok()) return one.status();
  auto two = Cluster::Start(
      {.verbenad = settings.verbenad, .wire = settings.wire, .servers = 2, .shards = 1});
  if (!two.ok()) return two.status();
  Row row{kBench, "1 MiB: 2+2 processes of 1+1", "GB/s", Better::kHigher, {}, {}};
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    WorkerArguments arguments{
        (*two)->address(), absl::StrCat("crowded-", repeat), 2, kBytes, 2 * RoundsFor(kBytes),
        settings.wire};
    auto rate = WorkerProcesses(arguments);
    if (!rate.ok()) return rate.status();
    row.value.Add(*rate);
    arguments.cluster = (*one)->address();
    arguments.workers = 1;
    rate = WorkerProcesses(arguments);
    if (!rate.ok()) return rate.status();
    row.limit.Add(*rate);
  }
  report->Add(std::move(row));
  return absl::OkStatus();
}

// Elements a second of numbers of 16 bits beside those of 32.
absl::Status NumberTypes(const Settings& settings, Report* report) {
  struct Variant {
    const char* name;
    Types types;
  };
  constexpr Variant kVariants[] = {
      {"bf16 pulled, bf16 pushed", {v1::DTYPE_BF16, v1::DTYPE_BF16}},
      {"bf16 pulled, f32 pushed", {v1::DTYPE_BF16, v1::DTYPE_F32}},
      {"f16 pulled, bf16 pushed", {v1::DTYPE_F16, v1::DTYPE_BF16}},
      {"f32 pulled, bf16 pushed", {v1::DTYPE_F32, v1::DTYPE_BF16}},
  };
  const auto placed = StartPlaced(settings, "types");
  if (!placed.ok()) return placed.status();
  Worker* const worker = placed->worker.get();
  const auto measure = [&](const std::string& table, size_t bytes,
                           const Types& types) -> absl::StatusOr<double> {
    const absl::Status status = worker->UseTable(table, v1::CONSISTENCY_SYNC, bytes, types);
    if (!status.ok()) return status;
    auto interval = worker->PushPullRounds(RoundsFor(bytes));
    if (!interval.ok()) return interval.status();
    return static_cast<double>(RoundsFor(bytes)) * static_cast<double>(bytes / sizeof(float)) /
           interval->seconds() / 1e6;
  };
  for (const size_t elements : {size_t{64} << 10, size_t{1} << 20, size_t{8} << 20}) {
    const size_t bytes = elements * sizeof(float);
    for (const Variant& v : kVariants) {
      Row row{kBench, absl::StrCat(elements >> 10, " Ki of ", v.name, ", to f32"),
              "M/s",  Better::kHigher,
              {},     {}};
      for (int repeat = 0; repeat < settings.repeats; ++repeat) {
        auto rate = measure(absl::StrCat("t-", &v - kVariants, "-", elements), bytes, v.types);
        if (!rate.ok()) return rate.status();
        row.value.Add(*rate);
        rate = measure(absl::StrCat("f32-", elements), bytes, {});
        if (!rate.ok()) return rate.status();
        row.limit.Add(*rate);
      }
      report->Add(std::move(row));
    }
  }
  return absl::OkStatus();
}

// Elements a second of tables with pull codecs beside one without, with a new version in each round
// and pulls of one version alone; and bytes that come.
absl::Status PullCodecs(const Settings& settings, Report* report) {
  constexpr std::pair<const char*, v1::Codec> kCodecs[] = {{"bf16", v1::CODEC_BF16},
                                                           {"f16", v1::CODEC_F16},
                                                           {"int8", v1::CODEC_INT8},
                                                           {"fp8_e4m3", v1::CODEC_FP8_E4M3},
                                                           {"fp8_e5m2", v1::CODEC_FP8_E5M2}};
  const auto placed = StartPlaced(settings, "codecs");
  if (!placed.ok()) return placed.status();
  Worker* const worker = placed->worker.get();
  double pulled = 0;  // bytes, by a run of pulls alone
  const auto measure = [&](const std::string& table, size_t bytes, v1::Codec codec,
                           bool push) -> absl::StatusOr<double> {
    const absl::Status status =
        worker->UseTable(table, v1::CONSISTENCY_SYNC, bytes, {.pull_codec = codec});
    if (!status.ok()) return status;
    const uint64_t before = worker->client().statistics().bytes_pulled;
    const int rounds = RoundsFor(bytes);
    auto interval = push ? worker->PushPullRounds(rounds) : worker->PullRounds(rounds);
    if (!interval.ok()) return interval.status();
    pulled = static_cast<double>(worker->client().statistics().bytes_pulled - before);
    return rounds * static_cast<double>(bytes / sizeof(float)) / interval->seconds() / 1e6;
  };
  for (const size_t bytes : {size_t{256} << 10, size_t{4} << 20, size_t{32} << 20}) {
    for (const auto& [name, codec] : kCodecs) {
      const std::string what = absl::StrCat(bytes >> 12, " Ki of f32 with pull codec ", name);
      Row sent{kBench, absl::StrCat(what, ", bytes, to none"), "B", Better::kLower, {}, {}};
      for (const bool push : {true, false}) {
        Row row{kBench, absl::StrCat(what, push ? ", push-pull" : ", pull alone", ", to none"),
                "M/s",  Better::kHigher,
                {},     {}};
        for (int repeat = 0; repeat < settings.repeats; ++repeat) {
          auto rate = measure(absl::StrCat(name, "-", bytes), bytes, codec, push);
          if (!rate.ok()) return rate.status();
          row.value.Add(*rate);
          if (!push) sent.value.Add(pulled);
          rate = measure(absl::StrCat("none-", bytes), bytes, v1::CODEC_NONE, push);
          if (!rate.ok()) return rate.status();
          row.limit.Add(*rate);
          if (!push) sent.limit.Add(pulled);
        }
        report->Add(std::move(row));
      }
      report->Add(std::move(sent));
    }
  }
  return absl::OkStatus();
}

// CPU of a coordinator and 2 servers x 2 shards that have a connected worker and nothing to do.
absl::Status Idle(const Settings& settings, Report* report) {
  using std::chrono::steady_clock;
  auto cluster = Cluster::Start(
      {.verbenad = settings.verbenad, .wire = settings.wire, .servers = 2, .shards = 2});
  if (!cluster.ok()) return cluster.status();
  auto worker =
      Worker::Connect({.cluster = (*cluster)->address(), .job = "idle", .wire = settings.wire});
  if (!worker.ok()) return worker.status();
  absl::Status status = (*worker)->UseTable("idle", v1::CONSISTENCY_SYNC, size_t{4} << 20);
  if (!status.ok()) return status;
  auto interval = (*worker)->PushPullRounds(8);  // lanes to all shards are open
  if (!interval.ok()) return interval.status();
  std::this_thread::sleep_for(std::chrono::seconds(1));

  Row row{kBench, "idle cluster, CPU of a core", "%", Better::kLower, {}, {}};
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    const int64_t cpu = (*cluster)->CpuNanos();
    const auto start = steady_clock::now();
    std::this_thread::sleep_for(std::chrono::seconds(2));
    const auto passed = std::chrono::duration<double, std::nano>(steady_clock::now() - start);
    row.value.Add(100.0 * static_cast<double>((*cluster)->CpuNanos() - cpu) / passed.count());
    row.limit.Add(1.0);  // the goal
  }
  report->Add(std::move(row));
  return absl::OkStatus();
}

constexpr Case<Settings> kCases[] = {
    {"throughput", Throughput, true}, {"latency", Latency, true},   {"crowded", Crowded, false},
    {"types", NumberTypes, true},     {"codecs", PullCodecs, true}, {"idle", Idle, false},
};

int Run(const Settings& settings) {
  std::printf(
      "push_pull: %s, f32 but for types and codecs, sgd, sum; %d interleaved runs, medians; worker "
      "rewrites "
      "its\ngradient and reads the result each round, %d rounds in flight. throughput, latency, "
      "types,\ncodecs: worker on CPU 0, server on CPU 1, as the limits' two threads; crowded, "
      "idle: not "
      "pinned. %u CPUs.\n\n",
      settings.wire.transport.c_str(), settings.repeats, kDepth,
      std::thread::hardware_concurrency());
  return RunCases("push_pull", kCases, settings);
}

// One process of WorkerProcesses(): prints when its rounds began and ended.
int RunWorker(const WorkerArguments& arguments) {
  auto worker = Worker::Connect({.cluster = arguments.cluster,
                                 .job = arguments.job,
                                 .expected_workers = arguments.workers,
                                 .wire = arguments.wire});
  absl::Status status = worker.status();
  absl::StatusOr<Interval> interval;
  if (status.ok()) {
    status = (*worker)->UseTable(arguments.job, v1::CONSISTENCY_SYNC, arguments.bytes);
  }
  if (status.ok()) {
    interval = (*worker)->PushPullRounds(arguments.rounds);
    status = interval.status();
  }
  if (!status.ok()) {
    std::fprintf(stderr, "push_pull worker: %s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("%lld %lld\n", static_cast<long long>(interval->begin_ns),
              static_cast<long long>(interval->end_ns));
  return 0;
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  using verbena::bench::Settings;
  using verbena::bench::WorkerArguments;
  Settings settings;
  WorkerArguments arguments;
  CLI::App app("Cost of a push and a pull, beside the speed of the transport");
  app.add_option("--verbenad", settings.verbenad, "the daemon's program");
  app.add_option("--transport", settings.wire.transport, "shm or verbs")
      ->check(CLI::IsMember({"shm", "verbs"}));
  app.add_option(
      "--device", settings.wire.device,
      "verbs: DEVICE or DEVICE:PORT, with commas between several (a rail each); default: "
      "the nearest usable");
  app.add_option("--case", settings.cases,
                 "throughput, latency, crowded, types, codecs, idle (default: all)");
  app.add_option("--json", settings.json, "write the rows to this file");
  app.add_option("--repeats", settings.repeats, "interleaved runs of each")
      ->check(CLI::Range(1, 99));
  app.add_option("--smallest", settings.smallest, "smallest message of the case throughput, bytes")
      ->check(CLI::Range(64, 1 << 30));
  app.add_option("--largest", settings.largest, "largest message of the case throughput, bytes");
  CLI::App* worker = app.add_subcommand("worker", "one worker process (used by the case crowded)");
  worker->add_option("--cluster", arguments.cluster)->required();
  worker->add_option("--job", arguments.job)->required();
  worker->add_option("--workers", arguments.workers)->required();
  worker->add_option("--bytes", arguments.bytes)->required();
  worker->add_option("--rounds", arguments.rounds)->required();
  worker->add_option("--transport", arguments.wire.transport)->required();
  worker->add_option("--device", arguments.wire.device);
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  if (worker->parsed()) return verbena::bench::RunWorker(arguments);
  if (settings.verbenad.empty()) {
    std::fprintf(stderr, "push_pull: --verbenad PATH is wanted\n");
    return 2;
  }
  return verbena::bench::Run(settings);
}
