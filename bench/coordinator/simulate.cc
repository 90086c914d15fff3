#include "bench/coordinator/simulate.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::bench {
namespace {

absl::Status TakeCosts(const CrowdOptions& crowd, const std::vector<double>& given,
                       SimulationOptions* options) {
  options->measure_member = given.empty();
  if (!given.empty()) {
    const auto costs = options->costs.All();
    for (size_t i = 0; i < given.size(); ++i) *costs[i] = given[i];
    return absl::OkStatus();
  }
  std::error_code ignored;
  CrowdOptions sized = crowd;
  if (!crowd.directory.empty()) sized.directory = absl::StrCat(crowd.directory, "/simulate");
  if (!sized.directory.empty()) std::filesystem::remove_all(sized.directory, ignored);
  const absl::StatusOr<Costs> measured = MeasureCosts(sized);
  if (!sized.directory.empty()) std::filesystem::remove_all(sized.directory, ignored);
  if (!measured.ok()) return measured.status();
  options->costs = *measured;
  return absl::OkStatus();
}

void PrintAssumptions(const SimulationOptions& options, Costs costs) {
  std::printf(
      "coordinator: simulated on virtual time: %d workers, %d servers in %d racks, %d tables, %d "
      "partitions, 2 replicas, seed %llu\n",
      options.workers, options.servers, options.zones, options.tables, options.partitions,
      static_cast<unsigned long long>(options.seed));
  std::printf(
      "  assumed: lease %u ms; a message takes %u to %u us one way, none is lost; 4 KiB of each "
      "table in a partition, and no time for the bytes themselves;\n"
      "    a dead process resets its connections, a dead rack is silent; another coordinator "
      "starts "
      "%u ms after the death of the first\n",
      options.lease_ms, options.latency_us / 2, options.latency_us * 3 / 2, options.takeover_ms);
  std::printf(
      "  costs, us, measured in real time (or given): of the coordinator a call %.1f, a save %.1f, "
      "a reply with changes %.1f, with a view %.1f, a start %.1f; of a member a reply %.1f\n",
      costs.call, costs.save, costs.answer, costs.whole_answer, costs.start, costs.member);
  std::string again;
  for (const double* cost : costs.All()) {
    absl::StrAppend(&again, again.empty() ? "" : ",", *cost);
  }
  std::printf("  the same again: --seed %llu --costs %s\n",
              static_cast<unsigned long long>(options.seed), again.c_str());
}

void Print(const Failure& failure, const SimulationOptions& options, double limit_ms,
           Report* report) {
  std::printf("  %s: converged after %.1f ms", failure.name.c_str(), failure.converged_ms);
  const char* separator = " = ";
  for (const Part& part : failure.parts) {
    std::printf("%s%s %.1f", separator, part.name.c_str(), part.ms);
    separator = " + ";
  }
  for (const Part& part : failure.also) {
    std::printf("; %s after %.1f", part.name.c_str(), part.ms);
  }
  if (failure.moved > 0) std::printf("; %d partitions have another primary", failure.moved);
  std::printf("\n");
  Row row{"coordinator",
          absl::StrCat("simulated: ", failure.name, ", ", options.workers, " workers, ",
                       options.servers, " servers"),
          "ms",
          Better::kLower,
          {},
          {}};
  row.value.Add(failure.converged_ms);
  row.limit.Add(limit_ms);
  report->Add(std::move(row));
}

}  // namespace

absl::Status Simulate(const CrowdOptions& crowd, const std::vector<double>& costs,
                      SimulationOptions options, Report* report) {
  options.workers = crowd.workers;
  options.servers = crowd.servers;
  options.tables = crowd.tables;
  options.partitions = crowd.partitions;
  options.zones = std::min(options.zones, options.servers);
  if (absl::Status status = TakeCosts(crowd, costs, &options); !status.ok()) return status;
  Simulation simulation(options);
  if (absl::Status status = simulation.Form(); !status.ok()) return status;
  PrintAssumptions(options, simulation.costs());
  const double lease = options.lease_ms;
  for (const auto& [run, limit] :
       {std::pair(&Simulation::ServerDeath, lease), std::pair(&Simulation::RackDeath, lease),
        std::pair(&Simulation::CoordinatorFailover, static_cast<double>(options.takeover_ms))}) {
    const absl::StatusOr<Failure> failure = (simulation.*run)();
    if (!failure.ok()) return failure.status();
    Print(*failure, options, limit, report);
  }
  return absl::OkStatus();
}

}  // namespace verbena::bench
