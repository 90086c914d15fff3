// Whether a cluster's cost grows faster than its contents: tables, jobs, clients and checkpoints,
// each size twice the one before. Real processes.
//
//     scale [--verbenad PATH] [--verbena PATH] [--tables 100,200,400] [--servers N]
//           [--transport NAME] [--json FILE]
//
// The largest size that the design is for: --tables 1250,2500,5000 --servers 30.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/report.h"
#include "bench/scale/many.h"
#include "proto/base/usage_error.h"

namespace verbena::bench {
namespace {

constexpr char kBench[] = "scale";
// The limit of a quick job's time beside all other load, as a multiple of its p99.9 alone.
constexpr double kMostBeside = 3;

struct Settings {
  std::vector<int> tables = {100, 200, 400};
  ManyOptions many;
};

void AddRow(Report* report, const std::string& name, const char* unit, double value, double limit) {
  Row row{kBench, name, unit, Better::kLower, {}, {}};
  row.value.Add(value);
  row.limit.Add(limit);
  report->Add(std::move(row));
}

// The limit of a time is that of the size before, as many times as there is more now.
absl::Status Measure(const Settings& settings, Report* report) {
  ManyFigures before;
  int tables_before = 0;
  for (const int tables : settings.tables) {
    ManyOptions options = settings.many;
    options.tables = tables;
    options.jobs = std::max(1, tables * 2 / 5);
    options.checkpoints = options.jobs;
    options.clients = std::max(1, tables / 5);
    std::printf("scale: %d servers, %d tables, %d jobs, %d checkpoints, %d idle clients\n",
                options.servers, options.tables, options.jobs, options.checkpoints,
                options.clients);
    const absl::StatusOr<ManyFigures> figures = Many::Run(options);
    if (!figures.ok()) return figures.status();
    const double more = tables_before == 0 ? 1 : static_cast<double>(tables) / tables_before;
    for (const auto& [name, seconds] : figures->seconds) {
      const double limit = tables_before == 0 ? seconds : before.seconds[name] * more;
      AddRow(report, absl::StrCat(name, ", ", tables, " tables"), "s", seconds, limit);
      if (tables_before != 0) {
        std::printf("    %.2f times the size, %.2f times as long\n", more,
                    seconds / before.seconds[name]);
      }
    }
    for (const auto& [name, seconds] : figures->cpu_seconds) {
      const double limit = tables_before == 0 ? seconds : before.cpu_seconds[name] * more;
      AddRow(report, absl::StrCat("CPU of ", name, ", ", tables, " tables"), "s", seconds, limit);
    }
    for (const auto& [name, p999] : figures->beside_p999_us) {
      AddRow(report, absl::StrCat("quick job's p99.9 beside ", name, ", ", tables, " tables"), "us",
             p999, kMostBeside * figures->alone_p999_us);
    }
    AddRow(report, absl::StrCat("idle CPU of the coordinator, ", tables, " tables"), "%",
           figures->idle_cpu_percent,
           tables_before == 0 ? figures->idle_cpu_percent : before.idle_cpu_percent * more);
    AddRow(report, absl::StrCat("idle wake-ups of the coordinator, ", tables, " tables"), "/s",
           figures->idle_wakes,
           tables_before == 0 ? figures->idle_wakes : before.idle_wakes * more);
    before = *figures;
    tables_before = tables;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  std::string json;
  const std::filesystem::path here = std::filesystem::path(argv[0]).parent_path();
  settings.many.verbenad = here / "../verbenad";
  settings.many.verbena = here / "../verbena";
  CLI::App app("Growth of the cost of a cluster's calls with its contents");
  app.add_option("--verbenad", settings.many.verbenad, "the server program")->capture_default_str();
  app.add_option("--verbena", settings.many.verbena, "the operator's program")
      ->capture_default_str();
  app.add_option("--tables", settings.tables,
                 "numbers of tables, each a case; there are 2/5 as many jobs and checkpoints, and "
                 "1/5 as many idle clients")
      ->delimiter(',')
      ->check(CLI::Range(5, 100'000));
  app.add_option("--servers", settings.many.servers, "servers")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--transport", settings.many.transport, "how data travels")->capture_default_str();
  app.add_option("--json", json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  verbena::bench::Report report;
  const absl::Status status = verbena::bench::Measure(settings, &report);
  return report.End(verbena::bench::kBench, status, json);
}
