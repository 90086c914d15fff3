// The time until pushes are acknowledged again after a server was killed, and the cost of replicas
// and of a server's catch-up.
//
//     failover --verbenad build/release/verbenad [--case NAME] [--kills N] [--json FILE]
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <string>

#include "bench/failover/cases.h"
#include "proto/base/usage_error.h"

namespace verbena::bench {
namespace {

absl::Status Run(const FailoverSettings& settings, const std::string& only, Report* report) {
  using Case = absl::Status (*)(const FailoverSettings&, Report*);
  const std::pair<const char*, Case> cases[] = {
      {"kills", MeasureKills}, {"copies", MeasureCopies}, {"learner", MeasureLearner}};
  for (const auto& [name, measure] : cases) {
    if (!only.empty() && only != name) continue;
    if (absl::Status status = measure(settings, report); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::FailoverSettings settings;
  std::string only;
  std::string json;
  CLI::App app("Pushes after a server was killed, and the cost of replicas");
  app.add_option("--verbenad", settings.verbenad, "the daemon's program")->required();
  app.add_option("--case", only, "only this: kills, copies or learner")
      ->check(CLI::IsMember({"kills", "copies", "learner"}));
  app.add_option("--transport", settings.wire.transport, "shm, verbs or ofi")
      ->check(CLI::IsMember({"shm", "verbs", "ofi"}));
  app.add_option("--device", settings.wire.device,
                 "verbs: DEVICE or DEVICE:PORT; default: the nearest usable");
  app.add_option("--kills", settings.kills, "servers that are killed, one after the other")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app.add_option("--lease-ms", settings.lease_ms, "how long a silent server counts as alive")
      ->check(CLI::Range(100, 60'000))
      ->capture_default_str();
  app.add_option("--repeats", settings.repeats, "interleaved runs with one copy and with two")
      ->check(CLI::Range(1, 99))
      ->capture_default_str();
  app.add_option("--learner-mib", settings.learner_mib, "size of the table that is copied")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--seed", settings.seed, "of which servers are killed when")
      ->capture_default_str();
  app.add_option("--json", json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  verbena::bench::Report report;
  const absl::Status status = verbena::bench::Run(settings, only, &report);
  return report.End("failover", status, json);
}
