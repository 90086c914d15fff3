// Pushes at full rate while each partition of 1 GiB and 10^7 rows moves to another server: failed
// calls, lost pushes, the worst second and the time.
//
//     migrate --verbenad build/release/verbenad [--replicas N] [--server-option OPTION] [--json
//     FILE]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/metrics.h"
#include "bench/migrate/load.h"
#include "bench/migrate/moves.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"

namespace verbena::bench {
namespace {

constexpr char kBench[] = "migrate";
constexpr int kServers = 3;
constexpr int kWindow = 1000 / kBucketMs;  // buckets of a second
constexpr double kLeastLeft = 0.5;         // of the pushes, in the worst second

struct Settings {
  ClusterOptions cluster;
  LoadOptions load;
  int repeats = 3;
  int before_s = 10;
  int most_s = 600;
  bool quiet = false;  // also without pushes
};

double Mib(double bytes) { return bytes / (1 << 20); }

double Median(std::vector<double> values) {
  Samples samples;
  for (const double value : values) samples.Add(value);
  return samples.Median();
}

// Rates of one table before and during the moves.
struct Rates {
  double before = 0, during = 0, worst = 0;  // bytes a second; medians of seconds
};

Rates RatesOf(const std::vector<double>& before, const std::vector<double>& during) {
  return {Median(before), Median(during), *std::min_element(during.begin(), during.end())};
}

class Run {
 public:
  explicit Run(const Settings& settings) : settings_(settings) {}

  absl::Status Measure() {
    auto cluster = Cluster::Start(settings_.cluster);
    if (!cluster.ok()) return cluster.status();
    cluster_ = *std::move(cluster);
    LoadOptions options = settings_.load;
    options.wire = settings_.cluster.wire;
    auto load = Load::Start(options, cluster_->address());
    if (!load.ok()) return load.status();
    load_ = *std::move(load);
    if (absl::Status s = AwaitCopies(*cluster_, settings_.most_s); !s.ok()) return s;
    if (settings_.quiet) {
      const auto start = steady_clock::now();
      if (absl::Status s = Move(); !s.ok()) return s;
      std::printf("without pushes all partitions moved in %.1f s\n",
                  MillisecondsSince(start) / 1e3);
    }
    load_->Run();
    Sleep(2000);  // warms up
    const int from = load_->Now();
    Sleep(1000 * settings_.before_s);
    PrintBytes("before");
    const int begun = load_->Now();
    const auto start = steady_clock::now();
    if (absl::Status s = Move(); !s.ok()) return s;
    seconds = MillisecondsSince(start) / 1e3;
    const int ended = std::max(load_->Now(), begun + kWindow);
    Sleep(1000);
    PrintBytes("after");
    // As long as the moves took: other work on the machine has its worst second, too.
    const int calm = load_->Now();
    Sleep(static_cast<int>(1000 * seconds));
    const int calm_ended = std::max(load_->Now(), calm + kWindow);
    if (absl::Status s = load_->End(); !s.ok()) return s;
    if (absl::Status s = load_->Check(); !s.ok()) return s;
    dense = RatesOf(load_->Dense(from, begun, kWindow), load_->Dense(begun, ended, kWindow));
    rows = RatesOf(load_->Rows(from, begun, kWindow), load_->Rows(begun, ended, kWindow));
    dense_calm =
        RatesOf(load_->Dense(from, begun, kWindow), load_->Dense(calm, calm_ended, kWindow));
    rows_calm = RatesOf(load_->Rows(from, begun, kWindow), load_->Rows(calm, calm_ended, kWindow));
    Print();
    PrintLatencies("before", load_->Latencies(from, begun));
    PrintLatencies("during the moves", load_->Latencies(begun, ended));
    return absl::OkStatus();
  }

  double seconds = 0;
  Rates dense, rows;
  Rates dense_calm, rows_calm;  // `during`: after the moves, without any

 private:
  static void Sleep(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

  absl::Status Move() {
    const auto start = steady_clock::now();
    auto moves = Moves::Begin(cluster_.get());
    if (!moves.ok()) return moves.status();
    int printed = load_->Now();
    for (size_t done = 0; done < moves->partitions();) {
      if (MillisecondsSince(start) > settings_.most_s * 1e3) {
        return absl::DeadlineExceededError(absl::StrCat(done, " of ", moves->partitions(),
                                                        " partitions have moved after ",
                                                        settings_.most_s, " s"));
      }
      Sleep(50);
      const auto now_done = moves->Done();
      if (!now_done.ok()) return now_done.status();
      done = *now_done;
      for (; load_->Now() >= printed + kWindow; printed += kWindow) {
        std::printf("  %3.0f s: %3zu partitions moved, dense %4.0f MiB/s, rows %4.0f MiB/s\n",
                    MillisecondsSince(start) / 1e3, done,
                    Mib(load_->Dense(printed, printed + kWindow, kWindow)[0]),
                    Mib(load_->Rows(printed, printed + kWindow, kWindow)[0]));
        std::fflush(stdout);
      }
    }
    return absl::OkStatus();
  }

  void PrintBytes(const char* when) const {
    std::vector<std::string> bytes;
    for (int i = 0; i < kServers; ++i) {
      const std::string page = MetricsPage(cluster_->MetricsAddress(i));
      bytes.push_back(absl::StrCat(
          "server-", i, " ",
          static_cast<int64_t>(Mib(MetricSum(page, "verbena_shard_resident_bytes"))), " MiB"));
    }
    std::printf("bytes of tables %s: %s; all processes %.0f MiB\n", when,
                absl::StrJoin(bytes, ", ").c_str(),
                Mib(static_cast<double>(cluster_->ResidentBytes())));
  }

  static void PrintLatencies(const char* when, std::vector<double> latencies) {
    if (latencies.empty()) return;
    std::sort(latencies.begin(), latencies.end());
    const auto at = [&](double part) {
      return latencies[static_cast<size_t>(part * static_cast<double>(latencies.size() - 1))];
    };
    std::printf("a push of 1 MiB %s: p50 %.1f ms, p90 %.1f ms, p99 %.1f ms, longest %.1f ms\n",
                when, at(0.5), at(0.9), at(0.99), at(1));
  }

  void Print() const {
    std::printf("moved in %.1f s; no call failed, all sums are exact\n", seconds);
    Print("dense", dense, dense_calm);
    Print("rows", rows, rows_calm);
    std::fflush(stdout);
  }

  static void Print(const char* name, const Rates& moving, const Rates& calm) {
    std::printf(
        "%s: %.0f MiB/s before, %.0f during (%.2f), %.0f in the worst second (%.2f); then without "
        "moves %.0f (%.2f), worst second %.0f (%.2f)\n",
        name, Mib(moving.before), Mib(moving.during), moving.during / moving.before,
        Mib(moving.worst), moving.worst / moving.before, Mib(calm.during),
        calm.during / calm.before, Mib(calm.worst), calm.worst / calm.before);
  }

  const Settings& settings_;
  std::unique_ptr<Cluster> cluster_;  // outlives its client
  std::unique_ptr<Load> load_;
};

absl::Status MeasureAll(const Settings& settings, Report* report) {
  Samples seconds;
  Row dense{kBench, "dense: worst 1 s; 0.5 x before", "MiB/s", Better::kHigher, {}, {}};
  Row rows{kBench, "rows: worst 1 s; 0.5 x before", "MiB/s", Better::kHigher, {}, {}};
  for (int i = 0; i < settings.repeats; ++i) {
    Run run(settings);
    if (absl::Status s = run.Measure(); !s.ok()) return s;
    seconds.Add(run.seconds);
    dense.value.Add(Mib(run.dense.worst));
    dense.limit.Add(kLeastLeft * Mib(run.dense.before));
    rows.value.Add(Mib(run.rows.worst));
    rows.limit.Add(kLeastLeft * Mib(run.rows.before));
  }
  report->Add(std::move(dense));
  report->Add(std::move(rows));
  std::printf("all partitions moved in %.1f s (%.1f to %.1f)\n", seconds.Median(), seconds.Low(),
              seconds.High());
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  settings.cluster.servers = verbena::bench::kServers;
  uint64_t dense_mib = settings.load.dense_bytes >> 20;
  uint64_t move_rate_mib = 16;
  std::string json;
  CLI::App app("Planned moves of all partitions under full load");
  app.add_option("--verbenad", settings.cluster.verbenad, "the daemon's program")->required();
  app.add_option("--transport", settings.cluster.wire.transport, "shm, verbs or ofi")
      ->check(CLI::IsMember({"shm", "verbs", "ofi"}))
      ->capture_default_str();
  app.add_option("--device", settings.cluster.wire.device,
                 "verbs: DEVICE or DEVICE:PORT; default: the nearest usable");
  app.add_option("--replicas", settings.cluster.replicas, "of each partition")
      ->check(CLI::Range(1, 3))
      ->capture_default_str();
  app.add_option("--dense-mib", dense_mib, "size of the dense table")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--rows", settings.load.rows, "of the embedding table")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--dim", settings.load.dim, "numbers of a row")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--move-rate-mib", move_rate_mib,
                 "--move-rate of the coordinator, in MiB per second of each server; 0: no limit")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--repeats", settings.repeats, "clusters, each of which moves all once")
      ->check(CLI::Range(1, 99))
      ->capture_default_str();
  app.add_option("--server-option", settings.cluster.server_options,
                 "further option of the servers; may be repeated: --server-option=--x=1")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--coordinator-option", settings.cluster.coordinator_options,
                 "further option of the coordinator; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--quiet-first", settings.quiet, "moves all partitions once before, without pushes");
  app.add_option("--json", json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  settings.load.dense_bytes = dense_mib << 20;
  settings.cluster.coordinator_options.push_back(absl::StrCat("--move-rate=", move_rate_mib << 20));
  verbena::bench::Report report;
  const absl::Status status = verbena::bench::MeasureAll(settings, &report);
  return report.End(verbena::bench::kBench, status, json);
}
