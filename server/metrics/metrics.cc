#include "server/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "server/metrics/families.h"

namespace verbena::server {
namespace {

// A job may have thousands of tables, and a series each: the first of a shard by id, and how many
// are left out.
constexpr size_t kTablesListed = 500;

struct TableValue {
  const char* name;
  const char* help;
  MetricType type;
  uint64_t (*value)(const shard::TableStatistics& table);
};
const TableValue kTableValues[] = {
    {"verbena_table_push_bytes_total", "Gradient bytes taken in, by table.", kCounter,
     [](const shard::TableStatistics& t) { return t.counters.push_bytes; }},
    {"verbena_table_pull_bytes_total", "Parameter bytes written out, by table.", kCounter,
     [](const shard::TableStatistics& t) { return t.counters.pull_bytes; }},
    {"verbena_table_pushes_total", "Pushes received, by table.", kCounter,
     [](const shard::TableStatistics& t) { return t.counters.pushes; }},
    {"verbena_table_pulls_total", "Pulls received, by table.", kCounter,
     [](const shard::TableStatistics& t) { return t.counters.pulls; }},
    {"verbena_table_non_finite_total", "Pushes refused or skipped for a NaN or Inf, by table.",
     kCounter, [](const shard::TableStatistics& t) { return t.counters.non_finite; }},
    {"verbena_table_refused_keys_total",
     "Keys that were pushed and got no row, by the table's admission.", kCounter,
     [](const shard::TableStatistics& t) { return t.counters.refused_keys; }},
    {"verbena_table_evicted_rows_total", "Rows that were dropped, by the table's eviction.",
     kCounter, [](const shard::TableStatistics& t) { return t.counters.evicted_rows; }},
    {"verbena_table_parameter_bytes", "Parameters of a table that a shard holds.", kGauge,
     [](const shard::TableStatistics& t) { return t.parameter_bytes; }},
    {"verbena_table_rows", "Rows of an embedding table that a shard holds.", kGauge,
     [](const shard::TableStatistics& t) { return t.rows; }},
};

// By rank and not by key: keys come and go, and each would leave a series behind.
constexpr size_t kHotKeysListed = 4;

void AddHotKeys(const std::vector<ShardMetrics>& shards, std::vector<MetricFamily>* out) {
  MetricFamily family = Family(
      "verbena_table_hot_key_share",
      "Least share of the most frequent keys in all keys that a shard is asked for.", kGauge);
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].snapshot.has_value()) continue;
    const std::vector<shard::TableStatistics>& tables = shards[i].snapshot->tables;
    for (size_t t = 0; t < std::min(tables.size(), kTablesListed); ++t) {
      const std::vector<shard::HotKey>& keys = tables[t].hot_keys;
      for (size_t rank = 0; rank < std::min(keys.size(), kHotKeysListed); ++rank) {
        Add(&family, D(keys[rank].count - keys[rank].error) / D(tables[t].sampled_keys),
            {{"shard", absl::StrCat(i)},
             {"table", tables[t].name},
             {"rank", absl::StrCat(rank + 1)}});
      }
    }
  }
  if (!family.metric.empty()) out->push_back(std::move(family));
}

void AddTables(const std::vector<ShardMetrics>& shards, std::vector<MetricFamily>* out) {
  for (const TableValue& value : kTableValues) {
    MetricFamily family = Family(value.name, value.help, value.type);
    for (size_t i = 0; i < shards.size(); ++i) {
      if (!shards[i].snapshot.has_value()) continue;
      const std::vector<shard::TableStatistics>& tables = shards[i].snapshot->tables;
      for (size_t t = 0; t < std::min(tables.size(), kTablesListed); ++t) {
        if (tables[t].restoring) continue;  // a series has one table
        Add(&family, D(value.value(tables[t])),
            {{"shard", absl::StrCat(i)}, {"table", tables[t].name}});
      }
    }
    if (!family.metric.empty()) out->push_back(std::move(family));
  }
  AddHotKeys(shards, out);
  MetricFamily unlisted =
      Family("verbena_tables_unlisted", "Tables beyond those that have series here.", kGauge);
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].snapshot.has_value()) continue;
    const size_t tables = shards[i].snapshot->tables.size();
    Add(&unlisted, D(tables - std::min(tables, kTablesListed)), ShardLabel(i));
  }
  if (!unlisted.metric.empty()) out->push_back(std::move(unlisted));
}

// A series for each job that a shard has something of: the first by name.
constexpr size_t kJobsListed = 500;

struct JobValue {
  const char* name;
  const char* help;
  // Empty: this job has no such series.
  std::optional<uint64_t> (*value)(const JobSnapshot& job);
};
const JobValue kJobValues[] = {
    {"verbena_job_memory_bytes", "Parameters, optimizer state and buffers of a job's tables.",
     [](const JobSnapshot& j) -> std::optional<uint64_t> { return j.engine.memory_bytes; }},
    {"verbena_job_memory_limit_bytes",
     "Limit of that for all shards of this server together: its share of the job's limit.",
     [](const JobSnapshot& j) -> std::optional<uint64_t> {
       if (j.engine.memory_limit == shard::JobMemory::kUnlimited) return std::nullopt;
       return j.engine.memory_limit;
     }},
    {"verbena_job_lanes", "Lanes of a job: granted, open and closing.",
     [](const JobSnapshot& j) -> std::optional<uint64_t> { return j.lanes; }},
    {"verbena_job_lane_limit", "Lanes of a shard that a job may have.",
     [](const JobSnapshot& j) -> std::optional<uint64_t> {
       if (j.lane_limit == 0) return std::nullopt;
       return j.lane_limit;
     }},
};

void AddJobs(const std::vector<ShardMetrics>& shards, std::vector<MetricFamily>* out) {
  for (const JobValue& value : kJobValues) {
    MetricFamily family = Family(value.name, value.help, kGauge);
    for (size_t i = 0; i < shards.size(); ++i) {
      if (!shards[i].snapshot.has_value()) continue;
      const std::vector<JobSnapshot>& jobs = shards[i].snapshot->jobs;
      for (size_t j = 0; j < std::min(jobs.size(), kJobsListed); ++j) {
        const std::optional<uint64_t> number = value.value(jobs[j]);
        if (!number) continue;
        Add(&family, D(*number), {{"shard", absl::StrCat(i)}, {"job", jobs[j].engine.name}});
      }
    }
    if (!family.metric.empty()) out->push_back(std::move(family));
  }
}

void AddGauge(const char* name, const char* help, double value, std::vector<MetricFamily>* out,
              Labels labels = {}) {
  Add(&out->emplace_back(Family(name, help, kGauge)), value, std::move(labels));
}

void AddCoordinator(const CoordinatorMetrics& c, std::vector<MetricFamily>* out) {
  AddGauge("verbena_coordinator_revision", "Revision of the cluster's view.", D(c.revision), out);
  AddGauge("verbena_coordinator_term", "Times a coordinator has taken office.", D(c.term), out);
  MetricFamily servers =
      Family("verbena_coordinator_servers", "Servers of the cluster by state.", kGauge);
  Add(&servers, D(c.servers_alive), {{"state", "alive"}});
  Add(&servers, D(c.servers_silent), {{"state", "silent"}});
  out->push_back(std::move(servers));
  AddGauge("verbena_coordinator_workers", "Workers with a lease.", D(c.workers), out);
  AddGauge("verbena_coordinator_jobs", "Jobs known.", D(c.jobs), out);
  AddGauge("verbena_coordinator_tables", "Tables.", D(c.tables), out);
  AddGauge("verbena_coordinator_lost_partitions",
           "Partitions of tables whose only replica is gone.", D(c.lost_partitions), out);
  AddGauge("verbena_coordinator_state_failing",
           "1 while the coordinator cannot save its state, so that nothing can change.",
           c.checkpoint_failing ? 1 : 0, out);
  MetricFamily failures = Family("verbena_coordinator_state_failures_total",
                                 "Changes that were refused as they could not be saved.", kCounter);
  Add(&failures, D(c.checkpoint_failures));
  out->push_back(std::move(failures));
}

void AddCheckpoints(const CheckpointMetrics& c, std::vector<MetricFamily>* out) {
  MetricFamily saved =
      Family("verbena_checkpoints_total", "Periodic checkpoints that were made.", kCounter);
  Add(&saved, D(c.saved));
  out->push_back(std::move(saved));
  MetricFamily failed =
      Family("verbena_checkpoint_failures_total", "Checkpoints that could not be made.", kCounter);
  Add(&failed, D(c.failed));
  out->push_back(std::move(failed));
  if (!c.age_seconds.has_value()) return;
  AddGauge("verbena_checkpoint_age_seconds", "Time since the last checkpoint was complete.",
           *c.age_seconds, out);
  AddGauge("verbena_checkpoint_duration_seconds", "Duration of the last checkpoint.",
           c.duration_seconds, out);
  AddGauge("verbena_checkpoint_bytes", "Size of the files of the last checkpoint.", D(c.bytes),
           out);
}

void AddMemory(const rdma::MemoryStatistics& memory, std::vector<MetricFamily>* out) {
  MetricFamily bytes =
      Family("verbena_memory_bytes",
             "Memory mapped for tables and lanes, by kind of page and NUMA node.", kGauge);
  for (const auto& entry : memory.entries) {
    const std::string node = entry.node == rdma::kAnyNode ? "any" : absl::StrCat(entry.node);
    Add(&bytes, D(entry.bytes),
        {{"pages", std::string(rdma::PageKindName(entry.pages))}, {"node", node}});
  }
  out->push_back(std::move(bytes));
  MetricFamily fallbacks =
      Family("verbena_memory_huge_page_fallbacks_total",
             "Blocks in ordinary pages because there were not enough huge ones.", kCounter);
  Add(&fallbacks, D(memory.huge_page_fallbacks));
  out->push_back(std::move(fallbacks));
}

void AddCounter(const char* name, const char* help, uint64_t value,
                std::vector<MetricFamily>* out) {
  MetricFamily family = Family(name, help, kCounter);
  Add(&family, D(value));
  out->push_back(std::move(family));
}

void AddBudgets(const NodeMetrics& node, std::vector<MetricFamily>* out) {
  MetricFamily exceeded = Family(
      "verbena_budget_exceeded_total",
      "Times that a peer was refused or cut off because a budget (docs/security.md) is used up.",
      kCounter);
  for (size_t i = 0; i < kBudgetNames.size(); ++i) {
    Add(&exceeded, D(node.exceeded[i]), {{"budget", kBudgetNames[i]}});
  }
  out->push_back(std::move(exceeded));
  AddGauge("verbena_control_connections", "Connections to the control port.",
           D(node.control_connections), out);
}

}  // namespace

std::string RenderMetrics(const NodeMetrics& node) {
  std::vector<MetricFamily> families;
  AddGauge("verbena_server_info", "1; labels identify this process.", 1, &families,
           {{"name", node.name},
            {"incarnation", absl::StrCat(node.incarnation)},
            {"version", node.version}});
  if (node.joined.has_value()) {
    AddGauge("verbena_server_joined", "1 while this server is a member of its cluster.",
             *node.joined ? 1 : 0, &families);
  }
  AddMemory(node.memory, &families);
  AddCounter("verbena_log_lines_left_out_total",
             "Log lines that peers caused faster than they are written.", node.log_lines_left_out,
             &families);
  AddCounter("verbena_audit_lines_left_out_total",
             "Audit lines that were dropped: refusals beyond a host's rate, and lines that the "
             "disk was too slow for.",
             node.audit_lines_left_out, &families);
  AddBudgets(node, &families);
  if (node.memory_limit > 0) {
    AddGauge("verbena_memory_limit_bytes", "Limit of memory for tables (--memory-limit).",
             D(node.memory_limit), &families);
    AddGauge("verbena_memory_reserved_bytes", "Memory taken from the system for tables.",
             D(node.memory_reserved), &families);
  }
  if (!node.shards.empty()) {
    AddShards(node.shards, &families);
    AddTables(node.shards, &families);
    AddJobs(node.shards, &families);
  }
  if (node.coordinator.has_value()) AddCoordinator(*node.coordinator, &families);
  if (node.checkpoints.has_value()) AddCheckpoints(*node.checkpoints, &families);
  return prometheus::TextSerializer().Serialize(families);
}

CoordinatorMetrics Summarise(const v1::ClusterView& view) {
  CoordinatorMetrics m;
  m.revision = view.revision();
  m.term = view.term();
  for (const v1::Server& server : view.servers()) {
    ++(server.state() == v1::Server::SILENT ? m.servers_silent : m.servers_alive);
  }
  for (const v1::Job& job : view.jobs()) m.workers += static_cast<uint64_t>(job.members_size());
  m.jobs = static_cast<uint64_t>(view.jobs_size());
  m.tables = static_cast<uint64_t>(view.tables_size());
  for (const v1::Table& table : view.tables()) {
    if (table.restoring()) continue;
    m.lost_partitions += static_cast<uint64_t>(table.lost_partitions_size());
  }
  return m;
}

}  // namespace verbena::server
