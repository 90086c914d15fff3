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
    {"verbena_table_push_bytes_total", "Bytes of gradients received.", kCounter,
     [](const shard::TableStatistics& t) { return t.counters.push_bytes; }},
    {"verbena_table_pull_bytes_total", "Bytes of parameters sent.", kCounter,
     [](const shard::TableStatistics& t) { return t.counters.pull_bytes; }},
    {"verbena_table_pushes_total", "Pushes received.", kCounter,
     [](const shard::TableStatistics& t) { return t.counters.pushes; }},
    {"verbena_table_pulls_total", "Pulls received.", kCounter,
     [](const shard::TableStatistics& t) { return t.counters.pulls; }},
    {"verbena_table_non_finite_total", "Pushes with NaN or Inf that were refused or skipped.",
     kCounter, [](const shard::TableStatistics& t) { return t.counters.non_finite; }},
    {"verbena_table_refused_keys_total",
     "Pushed keys of an embedding table that were not admitted.", kCounter,
     [](const shard::TableStatistics& t) { return t.counters.refused_keys; }},
    {"verbena_table_evicted_rows_total", "Rows of an embedding table that were evicted.", kCounter,
     [](const shard::TableStatistics& t) { return t.counters.evicted_rows; }},
    {"verbena_table_parameter_bytes", "Bytes of the table's parameters on a shard.", kGauge,
     [](const shard::TableStatistics& t) { return t.parameter_bytes; }},
    {"verbena_table_rows", "Rows of an embedding table on a shard.", kGauge,
     [](const shard::TableStatistics& t) { return t.rows; }},
};

// By rank and not by key: keys come and go, and each would leave a series behind.
constexpr size_t kHotKeysListed = 4;

void AddHotKeys(const std::vector<ShardMetrics>& shards, std::vector<MetricFamily>* out) {
  MetricFamily family =
      Family("verbena_table_hot_key_share",
             "Lower bound of the share of the most frequent (rank 1) to the fourth most frequent "
             "key in recent lookups and pushes of an embedding table on a shard, from 0 to 1; "
             "verbena tables names the keys.",
             kGauge);
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
  out->push_back(std::move(family));
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
    out->push_back(std::move(family));
  }
  AddHotKeys(shards, out);
  MetricFamily unlisted =
      Family("verbena_tables_unlisted",
             "Tables of a shard without series: a shard exports its first 500.", kGauge);
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].snapshot.has_value()) continue;
    const size_t tables = shards[i].snapshot->tables.size();
    Add(&unlisted, D(tables - std::min(tables, kTablesListed)), ShardLabel(i));
  }
  out->push_back(std::move(unlisted));
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
    {"verbena_job_memory_bytes",
     "Bytes of parameters, optimizer state and buffers of a job's tables on a shard.",
     [](const JobSnapshot& j) -> std::optional<uint64_t> { return j.engine.memory_bytes; }},
    {"verbena_job_memory_limit_bytes",
     "Limit, in bytes, of a job's memory on all shards of this server together.",
     [](const JobSnapshot& j) -> std::optional<uint64_t> {
       if (j.engine.memory_limit == shard::JobMemory::kUnlimited) return std::nullopt;
       return j.engine.memory_limit;
     }},
    {"verbena_job_lanes", "Lanes of a job on a shard.",
     [](const JobSnapshot& j) -> std::optional<uint64_t> { return j.lanes; }},
    {"verbena_job_lane_limit", "Limit of a job's lanes on each shard.",
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
    out->push_back(std::move(family));
  }
}

void AddGauge(const char* name, const char* help, double value, std::vector<MetricFamily>* out,
              Labels labels = {}) {
  Add(&out->emplace_back(Family(name, help, kGauge)), value, std::move(labels));
}

void AddCoordinator(const CoordinatorMetrics& c, std::vector<MetricFamily>* out) {
  AddGauge("verbena_coordinator_revision", "Revision of the cluster's view.", D(c.revision), out);
  AddGauge("verbena_coordinator_term",
           "Number of times that a coordinator of this cluster has started.", D(c.term), out);
  MetricFamily servers =
      Family("verbena_coordinator_servers", "Servers by state: alive, silent.", kGauge);
  Add(&servers, D(c.servers_alive), {{"state", "alive"}});
  Add(&servers, D(c.servers_silent), {{"state", "silent"}});
  out->push_back(std::move(servers));
  AddGauge("verbena_coordinator_workers", "Workers with a lease.", D(c.workers), out);
  AddGauge("verbena_coordinator_jobs", "Jobs.", D(c.jobs), out);
  AddGauge("verbena_coordinator_tables", "Tables.", D(c.tables), out);
  AddGauge("verbena_coordinator_lost_partitions", "Lost partitions, summed over tables.",
           D(c.lost_partitions), out);
  AddGauge("verbena_coordinator_state_failing",
           "1 while the coordinator cannot save its state (a full disk) and refuses changes.",
           c.checkpoint_failing ? 1 : 0, out);
  AddGauge("verbena_coordinator_partitions_moving",
           "Partitions whose planned move (rebalance, migrate) has not ended.",
           D(c.partitions_moving), out);
  AddGauge("verbena_coordinator_partitions_without_memory",
           "Partitions of which a replica is missing, or waited for by a planned move or the drain "
           "of a server, and for which a server had no memory.",
           D(c.partitions_refused), out);
  MetricFamily moves =
      Family("verbena_coordinator_moves_total",
             "Planned moves of partitions that ended in this term, by result: moved, cancelled, "
             "target_gone, primary_gone, no_memory.",
             kCounter);
  Add(&moves, D(c.moves.moved), {{"result", "moved"}});
  Add(&moves, D(c.moves.cancelled), {{"result", "cancelled"}});
  Add(&moves, D(c.moves.target_gone), {{"result", "target_gone"}});
  Add(&moves, D(c.moves.primary_gone), {{"result", "primary_gone"}});
  Add(&moves, D(c.moves.no_memory), {{"result", "no_memory"}});
  out->push_back(std::move(moves));
  MetricFamily failures =
      Family("verbena_coordinator_state_failures_total",
             "Changes that were refused because the state could not be saved.", kCounter);
  Add(&failures, D(c.checkpoint_failures));
  out->push_back(std::move(failures));
}

void AddElection(const ElectionMetrics& e, std::vector<MetricFamily>* out) {
  AddGauge("verbena_coordinator_leads",
           "1 while this coordinator leads, 0 while it is a standby. Only with --etcd.",
           e.leads ? 1 : 0, out);
  MetricFamily elected = Family("verbena_coordinator_elected_total",
                                "How often this coordinator has begun to lead.", kCounter);
  Add(&elected, D(e.elected));
  out->push_back(std::move(elected));
  MetricFamily failures = Family("verbena_coordinator_etcd_failures_total",
                                 "Attempts of the election's calls of etcd that failed.", kCounter);
  Add(&failures, D(e.etcd_failures));
  out->push_back(std::move(failures));
}

void AddCheckpoints(const CheckpointMetrics& c, std::vector<MetricFamily>* out) {
  MetricFamily saved =
      Family("verbena_checkpoints_total", "Periodic checkpoints that were committed.", kCounter);
  Add(&saved, D(c.saved));
  out->push_back(std::move(saved));
  MetricFamily failed =
      Family("verbena_checkpoint_failures_total", "Periodic checkpoints that failed.", kCounter);
  Add(&failed, D(c.failed));
  out->push_back(std::move(failed));
  if (!c.age_seconds.has_value()) return;
  AddGauge("verbena_checkpoint_age_seconds",
           "Time since the last periodic checkpoint was committed, in seconds.", *c.age_seconds,
           out);
  AddGauge("verbena_checkpoint_duration_seconds",
           "Duration of the last periodic checkpoint, in seconds.", c.duration_seconds, out);
  AddGauge("verbena_checkpoint_bytes", "Bytes of the files of the last periodic checkpoint.",
           D(c.bytes), out);
}

void AddMemory(const rdma::MemoryStatistics& memory, std::vector<MetricFamily>* out) {
  MetricFamily bytes = Family("verbena_memory_bytes",
                              "Bytes mapped for tables and lanes, by pages (huge: of 2 MiB; "
                              "advised: ordinary pages, transparent huge ones where the system "
                              "provides them; small) and NUMA node (any: bound to none).",
                              kGauge);
  for (const auto& entry : memory.entries) {
    const std::string node = entry.node == rdma::kAnyNode ? "any" : absl::StrCat(entry.node);
    Add(&bytes, D(entry.bytes),
        {{"pages", std::string(rdma::PageKindName(entry.pages))}, {"node", node}});
  }
  out->push_back(std::move(bytes));
  MetricFamily fallbacks =
      Family("verbena_memory_huge_page_fallbacks_total",
             "Blocks in ordinary pages because there were too few huge pages.", kCounter);
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
  MetricFamily exceeded = Family("verbena_budget_exceeded_total",
                                 "Times that a peer was refused or cut off because a budget was "
                                 "used up, by budget (docs/security.md).",
                                 kCounter);
  for (size_t i = 0; i < kBudgetNames.size(); ++i) {
    Add(&exceeded, D(node.exceeded[i]), {{"budget", kBudgetNames[i]}});
  }
  out->push_back(std::move(exceeded));
  AddGauge("verbena_control_connections", "Connections to the control port.",
           D(node.control_connections), out);
}

// All families of a node with these parts; some may have no values.
std::vector<MetricFamily> FamiliesOf(const NodeMetrics& node) {
  std::vector<MetricFamily> families;
  AddGauge("verbena_server_info",
           "1; the labels name, incarnation and version identify this process.", 1, &families,
           {{"name", node.name},
            {"incarnation", absl::StrCat(node.incarnation)},
            {"version", node.version}});
  if (node.joined.has_value()) {
    AddGauge("verbena_server_joined", "1 while this server is a member of its cluster.",
             *node.joined ? 1 : 0, &families);
  }
  AddMemory(node.memory, &families);
  AddCounter("verbena_log_lines_left_out_total", "Log lines dropped because peers caused too many.",
             node.log_lines_left_out, &families);
  AddCounter("verbena_audit_lines_left_out_total",
             "Audit lines dropped because of a host's rate limit or a slow disk.",
             node.audit_lines_left_out, &families);
  AddBudgets(node, &families);
  if (node.memory_limit > 0) {
    AddGauge("verbena_memory_limit_bytes", "Limit of memory for tables, in bytes (--memory-limit).",
             D(node.memory_limit), &families);
    AddGauge("verbena_memory_reserved_bytes", "Bytes reserved of verbena_memory_limit_bytes.",
             D(node.memory_reserved), &families);
  }
  if (!node.shards.empty()) {
    AddShards(node.shards, &families);
    AddTables(node.shards, &families);
    AddJobs(node.shards, &families);
  }
  if (node.coordinator.has_value()) AddCoordinator(*node.coordinator, &families);
  if (node.election.has_value()) AddElection(*node.election, &families);
  if (node.imbalance.has_value()) {
    AddGauge("verbena_coordinator_imbalance",
             "Difference of the largest and the smallest load of a server in bytes, over the "
             "average. Only with --rebalance.",
             *node.imbalance, &families);
    AddGauge("verbena_coordinator_primaries_imbalance",
             "The same with the bytes of primaries alone. Only with --rebalance.",
             node.imbalance_of_primaries, &families);
  }
  if (node.checkpoints.has_value()) AddCheckpoints(*node.checkpoints, &families);
  return families;
}

const char* TypeName(MetricType type) {
  if (type == kCounter) return "counter";
  return type == kGauge ? "gauge" : "histogram";
}

}  // namespace

std::string RenderMetrics(const NodeMetrics& node) {
  std::vector<MetricFamily> families = FamiliesOf(node);
  std::erase_if(families, [](const MetricFamily& family) { return family.metric.empty(); });
  return prometheus::TextSerializer().Serialize(families);
}

std::vector<MetricDescription> DescribeMetrics() {
  NodeMetrics every_part;
  every_part.joined = true;
  every_part.memory_limit = 1;
  every_part.shards.resize(1);
  every_part.coordinator.emplace();
  every_part.election.emplace();
  every_part.checkpoints.emplace().age_seconds = 0;
  every_part.imbalance = 0;
  std::vector<MetricDescription> descriptions;
  for (const MetricFamily& family : FamiliesOf(every_part)) {
    descriptions.push_back({family.name, TypeName(family.type), family.help});
  }
  return descriptions;
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
  for (const v1::Partition& partition : view.partitions()) {
    m.partitions_moving += partition.move_to() != 0 ? 1 : 0;
  }
  return m;
}

}  // namespace verbena::server
