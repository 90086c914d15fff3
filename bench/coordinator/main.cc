// Cost of a change for the coordinator's thread, by the number of members that watch the view.
// Every answer is serialized and every change is durable.
//
//     coordinator [--workers 100,1000,10000] [--servers N] [--joins-together N] [--directory DIR]
//     [--json FILE]
//
// With --simulate: the time that a cluster of that size takes to converge after failures, on
// virtual time with measured costs.
//
//     coordinator --simulate [--workers 1000] [--servers 100] [--zones 10] [--seed N]
//     [--latency-us N] [--takeover-ms N] [--costs ...] [--json FILE]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/coordinator/crowd.h"
#include "bench/coordinator/simulate.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"

namespace verbena::bench {
namespace {

constexpr char kBench[] = "coordinator";
constexpr double kChangeMs = 30, kJoinsSeconds = 5;  // at 1,000 workers and 100 servers

struct Settings {
  std::vector<int> workers = {100, 1000, 10000};
  CrowdOptions crowd;
  bool durable = true;
  bool simulate = false;
  SimulationOptions simulation;
  std::vector<double> costs;  // of the simulation; empty: they are measured
};

double Percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(part * last + 0.5)];
}

// The limits are those of 1,000 workers and 100 servers, in proportion.
void AddRow(Report* report, int workers, const char* name, const char* unit, double value,
            double limit) {
  Row row{kBench, absl::StrCat(name, " ", workers, " workers"), unit, Better::kLower, {}, {}};
  row.value.Add(value);
  row.limit.Add(limit);
  report->Add(std::move(row));
}

absl::Status Measure(const Settings& settings, Report* report) {
  std::printf(
      "coordinator: %d servers, %d tables, %d partitions, 2 copies, %d joins together, "
      "state in %s\n",
      settings.crowd.servers, settings.crowd.tables, settings.crowd.partitions,
      settings.crowd.joins_together,
      settings.durable ? settings.crowd.directory.c_str() : "memory");
  double change_before = 0, joins_before = 0;
  for (const int workers : settings.workers) {
    CrowdOptions options = settings.crowd;
    options.workers = workers;
    std::error_code ignored;
    const std::string directory = absl::StrCat(settings.crowd.directory, "/", workers);
    std::filesystem::remove_all(directory, ignored);
    options.directory = settings.durable ? directory : "";
    const absl::StatusOr<CrowdFigures> figures = Crowd::Run(options);
    std::filesystem::remove_all(directory, ignored);
    if (!figures.ok()) return figures.status();
    const double times = std::max(1.0, workers / 1000.0);
    const double p50 = Percentile(figures->changes_ms, 0.5);
    const double p99 = Percentile(figures->changes_ms, 0.99);
    AddRow(report, workers, "change p50", "ms", p50, kChangeMs * times);
    AddRow(report, workers, "change p99", "ms", p99, kChangeMs * times);
    AddRow(report, workers, "joins", "s", figures->joins_s, kJoinsSeconds * times);
    std::printf(
        "  %d workers: %.1f KiB of answers a change, view %.1f KiB, heartbeat %.1f us, "
        "%.0f MiB resident; of the joins %.2f s in the store, %.2f ms each",
        workers, figures->change_bytes / 1024, static_cast<double>(figures->view_bytes) / 1024,
        figures->heartbeat_us, static_cast<double>(figures->resident_bytes) / (1 << 20),
        figures->joins_saving_s, figures->joins_saving_s * 1000 / workers);
    if (change_before > 0) {
      std::printf("; change %.1f times, joins %.1f times those of the size before",
                  p50 / change_before, figures->joins_s / joins_before);
    }
    std::printf("\n");
    change_before = p50;
    joins_before = figures->joins_s;
  }
  return absl::OkStatus();
}

// Options of the simulation, which has the crowd's sizes.
void AddSimulation(CLI::App* app, Settings* settings) {
  SimulationOptions& simulation = settings->simulation;
  app->add_flag("--simulate", settings->simulate,
                "time to converge after failures, on virtual time; --workers is one number");
  app->add_option("--seed", simulation.seed, "of the simulation")->capture_default_str();
  app->add_option("--zones", simulation.zones, "racks of the servers")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  app->add_option("--lease-ms", simulation.lease_ms, "duration of a lease, in ms")
      ->check(CLI::Range(100, 600'000))
      ->capture_default_str();
  app->add_option("--latency-us", simulation.latency_us, "of a message, one way, in us")
      ->check(CLI::Range(2, 1'000'000))
      ->capture_default_str();
  app->add_option("--takeover-ms", simulation.takeover_ms,
                  "from the death of a coordinator until the next one starts, in ms")
      ->check(CLI::Range(0, 600'000))
      ->capture_default_str();
  app->add_option("--costs", settings->costs, "costs that an earlier run has printed, in us")
      ->delimiter(',')
      ->expected(static_cast<int>(Costs::kCount))
      ->check(CLI::NonNegativeNumber);
}

absl::Status MeasureOrSimulate(Settings* settings, Report* report) {
  if (!settings->simulate) return Measure(*settings, report);
  CrowdOptions crowd = settings->crowd;
  crowd.workers = settings->workers.size() == 1 ? settings->workers.front() : 1000;
  if (!settings->durable) crowd.directory.clear();
  return Simulate(crowd, settings->costs, settings->simulation, report);
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  std::string json;
  settings.crowd.directory = std::filesystem::temp_directory_path() / "verbena-bench-coordinator";
  CLI::App app("Cost of cluster changes for the coordinator");
  app.add_option("--workers", settings.workers, "numbers of workers, each a case")
      ->delimiter(',')
      ->check(CLI::Range(1, 100'000));
  app.add_option("--servers", settings.crowd.servers, "servers")
      ->check(CLI::Range(2, 10'000))
      ->capture_default_str();
  app.add_option("--tables", settings.crowd.tables, "tables")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  app.add_option("--partitions", settings.crowd.partitions, "partitions")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--joins-together", settings.crowd.joins_together,
                 "calls of workers that wait for the coordinator together")
      ->check(CLI::Range(1, 128))
      ->capture_default_str();
  app.add_option("--directory", settings.crowd.directory, "where the coordinator's state is")
      ->capture_default_str();
  app.add_flag("!--in-memory", settings.durable, "without a disk: nothing is made durable");
  app.add_option("--json", json, "write the rows to this file");
  verbena::bench::AddSimulation(&app, &settings);
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  verbena::bench::Report report;
  const absl::Status status = verbena::bench::MeasureOrSimulate(&settings, &report);
  return report.End(verbena::bench::kBench, status, json);
}
