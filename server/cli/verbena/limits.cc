#include "server/cli/verbena/limits.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/byte_size.h"
#include "proto/spec/job_limits.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {

void AddLimitOptions(CLI::App* app, std::string* job, std::string* memory, LimitChange* limits) {
  CLI::Validator number;
  number.description("");
  number.operation([](std::string& text) -> std::string {
    uint32_t value = 0;
    if (absl::SimpleAtoi(text, &value)) return "";
    return absl::StrCat("'", Printable(text),
                        "' is not allowed: a number up to 4294967295; 0: no limit");
  });
  app->add_option("JOB", *job, "Name of the job")->type_name("")->required();
  std::vector<CLI::Option*> options = {
      app->add_option("--memory", *memory,
                      "Limit of memory of its tables on all servers: parameters, optimizer state "
                      "and buffers; 0: no limit")
          ->type_name("BYTES")
          ->transform(ByteSize(0, UINT64_MAX)),
      app->add_option("--tables", limits->tables, "Limit of tables; 0: no limit")
          ->type_name("N")
          ->check(number),
      app->add_option("--lanes", limits->lanes,
                      "Limit of lanes of its workers on each shard; 0: no limit")
          ->type_name("N")
          ->check(number)};
  CLI::Option* none = app->add_flag("--none", limits->none, "Remove all limits");
  for (CLI::Option* option : options) none->excludes(option);
}

uint64_t ShareOf(const ServerState& server, const v1::JobLimits& limits,
                 const v1::ClusterView& view) {
  const uint64_t incarnation = server.server.incarnation();
  // The servers' rule: each replica of a partition has a share.
  uint64_t copies = 0;
  for (const v1::Partition& partition : view.partitions()) {
    copies += partition.primary() == incarnation ? 1 : 0;
    for (const auto* replicas : {&partition.followers(), &partition.learners()}) {
      for (const v1::Replica& replica : *replicas)
        copies += replica.server() == incarnation ? 1 : 0;
    }
  }
  return ShareOfServer(limits.memory_bytes(), copies,
                       static_cast<uint64_t>(view.partitions_size()));
}

JobUse UseOf(const ServerState& server, const std::string& job) {
  JobUse use;
  if (!server.statistics.ok()) return use;
  for (const v1::ShardStatistics& shard : server.statistics->shards()) {
    for (const v1::JobStatistics& part : shard.jobs()) {
      if (part.job() != job) continue;
      use.memory_bytes += part.memory_bytes();
      use.lanes = std::max(use.lanes, part.lanes());
    }
  }
  return use;
}

JobUse UseOf(const ClusterState& state, const std::string& job) {
  JobUse all;
  for (const ServerState& server : state.servers) {
    const JobUse use = UseOf(server, job);
    all.memory_bytes += use.memory_bytes;
    all.lanes = std::max(all.lanes, use.lanes);
  }
  all.tables = static_cast<uint64_t>(std::count_if(
      state.view.tables().begin(), state.view.tables().end(),
      [&](const v1::Table& table) { return table.spec().job() == job && table.replaces() == 0; }));
  return all;
}

v1::JobLimits LimitsOf(const ClusterState& state, const std::string& name) {
  const v1::Job* job = FindJob(state, name);
  return job == nullptr ? v1::JobLimits() : job->limits();
}

const v1::Job* FindJob(const ClusterState& state, const std::string& name) {
  for (const v1::Job& job : state.view.jobs()) {
    if (job.name() == name) return &job;
  }
  return nullptr;
}

v1::JobLimits Changed(const v1::JobLimits& before, const LimitChange& change) {
  v1::JobLimits limits;
  if (change.none) return limits;
  limits.set_memory_bytes(change.memory_bytes.value_or(before.memory_bytes()));
  limits.set_tables(change.tables.value_or(before.tables()));
  limits.set_lanes(change.lanes.value_or(before.lanes()));
  return limits;
}

std::string LimitsWord(const v1::JobLimits& limits) {
  std::vector<std::string> words;
  if (limits.memory_bytes() > 0) {
    words.push_back(absl::StrCat("memory ", Bytes(limits.memory_bytes())));
  }
  if (limits.tables() > 0) words.push_back(absl::StrCat(limits.tables(), " tables"));
  if (limits.lanes() > 0) words.push_back(absl::StrCat(limits.lanes(), " lanes a shard"));
  return words.empty() ? "-" : absl::StrJoin(words, ", ");
}

}  // namespace verbena::cli
