// How many workers a small cluster bears: throughput and memory with 1 to 256 of them; how long a
// quiet one waits while others push; how long quick operations of a client take while another of
// its threads waits for one that is not answered.
//
//     workers --verbenad build/release/verbenad [--case NAME...] [--clients N,...] [--json FILE]
//
// Figures are medians of interleaved runs (ours, limit, ours, limit, ...).
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
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
#include "bench/push_pull/limits.h"
#include "bench/report.h"
#include "bench/workers/crowd.h"
#include "bench/workers/quiet.h"
#include "proto/base/usage_error.h"
#include "rdma/lane/lane_config.h"

namespace verbena::bench {
namespace {

struct Settings {
  std::string verbenad;
  Wire wire;
  std::vector<std::string> cases;
  std::vector<int> clients = {1, 16, 64, 256};
  std::string json;
  int rounds = 16384;  // of all clients together
  int repeats = 5;
};

constexpr char kBench[] = "workers";
constexpr int kFew = 4;            // clients that others are compared with
constexpr int kLeastRounds = 256;  // of a client in a run
constexpr int kServers = 2;        // of a shard each
constexpr int kIdle = 256;         // lanes of the case lanes
constexpr size_t kQuietBytes = 64;
constexpr size_t kLargeBytes = size_t{4} << 20;
constexpr struct {
  Work work;
  const char* name;
} kWorks[] = {{Work::kDense, "64 KiB async"},
              {Work::kSteps, "64 KiB sync"},
              {Work::kRows, "32 rows of 16 async"}};

// A cluster, and clients of it.
struct Crowded {
  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<Crowd> crowd;  // they leave before the cluster ends
  double seconds = 0;            // until all of it stood
};
absl::StatusOr<Crowded> StartCrowded(const Settings& settings, int clients) {
  Crowded crowded;
  const auto start = std::chrono::steady_clock::now();
  auto cluster = Cluster::Start(
      {.verbenad = settings.verbenad, .wire = settings.wire, .servers = kServers, .shards = 1});
  if (!cluster.ok()) return cluster.status();
  crowded.cluster = *std::move(cluster);
  auto crowd =
      Crowd::Connect({.cluster = crowded.cluster->address(), .wire = settings.wire}, clients);
  if (!crowd.ok()) return crowd.status();
  crowded.crowd = *std::move(crowd);
  crowded.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return crowded;
}

// Memory of the clients beyond those of another cluster, beside the formula for their lanes
// (rdma/lane/lane_config.h).
void AddMemory(const Crowded& crowded, int64_t clients_before, const Crowded& few, Report* report) {
  const int clients = crowded.crowd->clients();
  const double more = clients - few.crowd->clients();
  const double lanes = static_cast<double>(crowded.crowd->lanes()) / clients;
  const rdma::LaneConfig lane;
  const auto add = [&](const char* side, double kib, size_t formula) {
    Row row{kBench,     absl::StrCat("memory of ", side, ", ", clients, " clients"),
            "KiB each", Better::kLower,
            {},         {}};
    row.value.Add(kib);
    row.limit.Add(lanes * static_cast<double>(formula) / 1024);
    report->Add(std::move(row));
  };
  const int64_t servers = crowded.cluster->ResidentBytes() - few.cluster->ResidentBytes();
  add("servers", static_cast<double>(servers) / more / 1024, lane.shard_memory_bytes());
  add("clients", static_cast<double>(OwnResidentBytes() - clients_before) / clients / 1024,
      lane.worker_memory_bytes());
}

// Processor time of a run.
struct Cost {
  double kilo_rounds = 0;  // a second
  double clients_us = 0;   // of processor time, a round
  double cluster_us = 0;
};
// Processor time of this process, threads that have ended included.
int64_t OwnCpuNanos() {
  timespec spent = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return int64_t{spent.tv_sec} * 1'000'000'000 + spent.tv_nsec;
}

absl::StatusOr<Cost> Measure(int rounds, const Crowded& crowded) {
  const int64_t clients = OwnCpuNanos();
  const int64_t cluster = crowded.cluster->CpuNanos();
  const auto rate = crowded.crowd->Run(rounds);
  if (!rate.ok()) return rate.status();
  const double nanos = 1e3 * rounds;
  return Cost{*rate / 1e3, static_cast<double>(OwnCpuNanos() - clients) / nanos,
              static_cast<double>(crowded.cluster->CpuNanos() - cluster) / nanos};
}

// Rounds a second of 1 to 256 clients beside those of 4, of another cluster.
absl::Status Throughput(const Settings& settings, Report* report) {
  auto few = StartCrowded(settings, kFew);
  if (!few.ok()) return few.status();
  for (const int clients : settings.clients) {
    // A few rounds of each would show how they start, and not how they go on.
    const int rounds = std::max(settings.rounds, kLeastRounds * clients);
    const int64_t before = OwnResidentBytes();
    auto many = StartCrowded(settings, clients);
    if (!many.ok()) return many.status();
    std::printf("  a cluster and %d clients stand after %.1f s\n", clients, many->seconds);
    for (const auto& [work, name] : kWorks) {
      for (Crowd* crowd : {many->crowd.get(), few->crowd.get()}) {
        if (absl::Status status = crowd->UseTable(work); !status.ok()) return status;
      }
      // Until every client knows the tables, which is not part of the measurement.
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      Row row{kBench, absl::StrCat(name, ", ", clients, " clients of ", kFew),
              "k/s",  Better::kHigher,
              {},     {}};
      // The cost of many clients when no more of them wait than of few.
      Row in_turn{kBench, absl::StrCat(name, ", ", clients, " of ", kFew, " threads in turn"),
                  "k/s",  Better::kHigher,
                  {},     {}};
      const bool takes_turns = clients > kFew && work != Work::kSteps;
      Samples cpu[4];  // of the clients and the cluster, many, then few
      for (int repeat = 0; repeat < settings.repeats; ++repeat) {
        const auto ours = Measure(rounds, *many);
        if (!ours.ok()) return ours.status();
        row.value.Add(ours->kilo_rounds);
        const auto theirs = Measure(rounds, *few);
        if (!theirs.ok()) return theirs.status();
        row.limit.Add(theirs->kilo_rounds);
        if (takes_turns) {
          const auto turns = many->crowd->Run(rounds, kFew);
          if (!turns.ok()) return turns.status();
          in_turn.value.Add(ours->kilo_rounds);
          in_turn.limit.Add(*turns / 1e3);
        }
        const double costs[] = {ours->clients_us, ours->cluster_us, theirs->clients_us,
                                theirs->cluster_us};
        for (size_t i = 0; i < 4; ++i) cpu[i].Add(costs[i]);
      }
      report->Add(std::move(row));
      if (takes_turns) report->Add(std::move(in_turn));
      std::printf("  CPU of a round: clients %.3g us, cluster %.3g us; with %d: %.3g, %.3g\n",
                  cpu[0].Median(), cpu[1].Median(), kFew, cpu[2].Median(), cpu[3].Median());
    }
    if (clients > kFew) AddMemory(*many, before, *few, report);
  }
  return absl::OkStatus();
}

// A quiet worker beside one that pushes at full rate; at most three times as long is good. `gap_us`
// of sleep before each of its rounds; none: it takes turns with the pusher on a core.
absl::Status Fairness(const Settings& settings, Report* report) {
  auto cluster = Cluster::Start(
      {.verbenad = settings.verbenad, .wire = settings.wire, .servers = 1, .shards = 1});
  if (!cluster.ok()) return cluster.status();
  const std::string& address = (*cluster)->address();
  auto quiet = Quiet::Connect(address, settings.wire, "quiet", kQuietBytes);
  if (!quiet.ok()) return quiet.status();
  auto pusher = Pusher::Start(address, settings.wire, kLargeBytes);
  if (!pusher.ok()) return pusher.status();
  constexpr struct {
    int gap_us;
    const char* name;
  } kPaces[] = {{500, "every 0.5 ms"}, {0, "back to back"}};
  for (const auto& pace : kPaces) {
    const auto row = [&](const char* which) {
      return Row{kBench, absl::StrCat("quiet 64 B, ", pace.name, ", ", which, " of 3 x alone"),
                 "us",   Better::kLower,
                 {},     {}};
    };
    Row median = row("p50");
    Row p99 = row("p99");
    Samples rate;
    const int rounds = pace.gap_us > 0 ? 1000 : 20'000;
    for (int repeat = 0; repeat < settings.repeats; ++repeat) {
      (*pusher)->SetOn(true);
      const auto beside = (*quiet)->Measure(rounds, true, pace.gap_us);
      (*pusher)->SetOn(false);
      if (!beside.ok()) return beside.status();
      rate.Add((*pusher)->Gigabytes());
      const auto alone = (*quiet)->Measure(rounds, true, pace.gap_us);
      if (!alone.ok()) return alone.status();
      median.value.Add(beside->median_us);
      median.limit.Add(3 * alone->median_us);
      p99.value.Add(beside->p99_us);
      p99.limit.Add(3 * alone->p99_us);
    }
    report->Add(std::move(median));
    report->Add(std::move(p99));
    std::printf("  beside a worker that pushed %.3g GB/s, 4 MiB at a time, 4 in flight\n",
                rate.Median());
  }
  return absl::OkStatus();
}

// A push of 64 bytes to a shard with one lane and to one with 256 more, idle.
absl::Status Lanes(const Settings& settings, Report* report) {
  const auto start = [&] {
    return Cluster::Start({.verbenad = settings.verbenad,
                           .wire = settings.wire,
                           .servers = 1,
                           .shards = 1,
                           .server_cpu = 1});
  };
  auto single = start();
  if (!single.ok()) return single.status();
  auto shared = start();
  if (!shared.ok()) return shared.status();
  auto idle = Crowd::Connect({.cluster = (*shared)->address(), .wire = settings.wire}, kIdle);
  if (!idle.ok()) return idle.status();
  if (absl::Status status = (*idle)->UseTable(Work::kDense); !status.ok()) return status;
  if (const auto opened = (*idle)->Run(2 * kIdle); !opened.ok()) return opened.status();
  auto one = Quiet::Connect((*single)->address(), settings.wire, "quiet", kQuietBytes);
  if (!one.ok()) return one.status();
  auto among = Quiet::Connect((*shared)->address(), settings.wire, "quiet", kQuietBytes);
  if (!among.ok()) return among.status();
  Row first{kBench, "64 B push, one lane, of 4 round trips", "ns", Better::kLower, {}, {}};
  Row second{kBench, absl::StrCat("64 B push, ", (*idle)->lanes(), " idle lanes, of 5"),
             "ns",   Better::kLower,
             {},     {}};
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    auto times = (*one)->Measure(50'000, false, 0);
    if (!times.ok()) return times.status();
    first.value.Add(times->mean_ns);
    times = (*among)->Measure(50'000, false, 0);
    if (!times.ok()) return times.status();
    second.value.Add(times->mean_ns);
    const double round_trip = PingPongNanos(300'000);
    first.limit.Add(4 * round_trip);
    second.limit.Add(5 * round_trip);
  }
  report->Add(std::move(first));
  report->Add(std::move(second));
  return absl::OkStatus();
}

// Quick operations of one client while another thread of it waits for one that is not answered.
absl::Status Mixed(const Settings& settings, Report* report) {
  auto cluster = Cluster::Start(
      {.verbenad = settings.verbenad, .wire = settings.wire, .servers = 1, .shards = 1});
  if (!cluster.ok()) return cluster.status();
  auto quiet = Quiet::Connect((*cluster)->address(), settings.wire, "mixed", kQuietBytes);
  if (!quiet.ok()) return quiet.status();
  constexpr int kRounds = 2000;
  constexpr int kGapUs = 500;  // longer than a client spins: each answer has to wake it
  const auto row = [](const char* work, const char* figure) {
    return Row{kBench, absl::StrCat(work, " beside a waiting pull, ", figure, ", of 3x alone"),
               "us",   Better::kLower,
               {},     {}};
  };
  for (const bool callbacks : {false, true}) {
    const char* const work = callbacks ? "64 B pull with a callback" : "64 B push + pull";
    Row median = row(work, "p50");
    Row p999 = row(work, "p99.9");
    const auto measure = [&] {
      return callbacks ? (*quiet)->MeasureCallbacks(kRounds, kGapUs)
                       : (*quiet)->Measure(kRounds, true, kGapUs);
    };
    for (int repeat = 0; repeat < settings.repeats; ++repeat) {
      if (absl::Status status = (*quiet)->BeginLongWait(); !status.ok()) return status;
      const auto beside = measure();
      (*quiet)->EndLongWait();
      if (!beside.ok()) return beside.status();
      const auto alone = measure();
      if (!alone.ok()) return alone.status();
      median.value.Add(beside->median_us);
      median.limit.Add(3 * alone->median_us);
      p999.value.Add(beside->p999_us);
      p999.limit.Add(3 * alone->p999_us);
    }
    report->Add(std::move(median));
    report->Add(std::move(p999));
  }
  return absl::OkStatus();
}

constexpr Case<Settings> kCases[] = {{"throughput", Throughput, false},
                                     {"fairness", Fairness, false},
                                     {"mixed", Mixed, false},
                                     {"lanes", Lanes, true}};

int Run(const Settings& settings) {
  std::printf(
      "workers: %s, f32, sgd, sum; %d interleaved runs, medians. Clients are threads of this "
      "process, each\nwith a connection of its own and one round (push, pull) in flight. "
      "throughput: %d servers of a shard,\n%d rounds of all together, %d of each at least. lanes: "
      "one shard on CPU 1, "
      "its clients on CPU 0. Others: nothing pinned.\nMemory: resident, shared pages on both "
      "sides, "
      "of each client beyond the first %d; limit: the size of\nits lanes' slots and staging. %u "
      "CPUs.\n\n",
      settings.wire.transport.c_str(), settings.repeats, kServers, settings.rounds, kLeastRounds,
      kFew, std::thread::hardware_concurrency());
  return RunCases("workers", kCases, settings);
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  CLI::App app("How many workers a small cluster bears, and how long a quiet one waits");
  app.add_option("--verbenad", settings.verbenad, "the daemon's program")->required();
  app.add_option("--transport", settings.wire.transport, "shm, verbs or ofi")
      ->check(CLI::IsMember({"shm", "verbs", "ofi"}))
      ->capture_default_str();
  app.add_option("--device", settings.wire.device,
                 "verbs: DEVICE or DEVICE:PORT; default: the nearest usable");
  app.add_option("--case", settings.cases, "throughput, fairness, mixed, lanes (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember({"throughput", "fairness", "mixed", "lanes"}));
  app.add_option("--clients", settings.clients, "how many of them (several: by commas)")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--rounds", settings.rounds,
                 "rounds of a run, of all clients together; each makes 256 or more")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  app.add_option("--repeats", settings.repeats, "interleaved runs of each")
      ->check(CLI::Range(1, 99))
      ->capture_default_str();
  app.add_option("--json", settings.json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  return verbena::bench::Run(settings);
}
