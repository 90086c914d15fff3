#include "server/metrics/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

MetricFamily Family(std::string name, std::string help, MetricType type) {
  MetricFamily family;
  family.name = std::move(name);
  family.help = std::move(help);
  family.type = type;
  return family;
}

void Add(MetricFamily* family, double value, Labels labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (family->type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  family->metric.push_back(std::move(metric));
}

Labels ShardLabel(size_t shard) { return {{"shard", absl::StrCat(shard)}}; }

// A family with one value for each shard that answered.
struct ShardValue {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const ShardCounters& counters);
};

constexpr MetricType kCounter = MetricType::Counter;
constexpr MetricType kGauge = MetricType::Gauge;

template <typename T>
double D(T value) {
  return static_cast<double>(value);
}

const ShardValue kShardValues[] = {
    {"verbena_shard_push_bytes_total", "Gradient bytes taken in.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.push_bytes); }},
    {"verbena_shard_pull_bytes_total", "Parameter bytes written out.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.pull_bytes); }},
    {"verbena_shard_pushes_total", "Pushes received.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.pushes); }},
    {"verbena_shard_pulls_total", "Pulls received.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.pulls); }},
    {"verbena_shard_duplicates_total", "Pushes that had been applied already.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.duplicates); }},
    {"verbena_shard_refused_total", "Requests answered with an error.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.refused); }},
    {"verbena_shard_non_finite_total", "Pushes with a NaN or Inf, refused or skipped.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.non_finite); }},
    {"verbena_shard_commits_total", "Steps of chunks committed (sync).", kCounter,
     [](const ShardCounters& c) { return D(c.engine.commits); }},
    {"verbena_shard_applies_total", "Optimizer applications to chunks.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.applies); }},
    {"verbena_shard_spare_exhausted_total",
     "Applies that waited because every spare buffer was being written out.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.spare_exhausted); }},
    {"verbena_shard_resident_bytes", "Parameters, optimizer state and accumulators.", kGauge,
     [](const ShardCounters& c) { return D(c.engine.resident_bytes); }},
    {"verbena_shard_held", "Contributions held in their slots for a lower rank.", kGauge,
     [](const ShardCounters& c) { return D(c.engine.held); }},
    {"verbena_shard_parked", "Pulls waiting for a version.", kGauge,
     [](const ShardCounters& c) { return D(c.engine.parked); }},
    {"verbena_shard_queue_depth", "Requests arrived and not answered.", kGauge,
     [](const ShardCounters& c) { return D(c.queue_depth); }},
    {"verbena_shard_lanes", "Lanes open.", kGauge,
     [](const ShardCounters& c) { return D(c.lanes_open); }},
    {"verbena_shard_lanes_opened_total", "Lanes opened.", kCounter,
     [](const ShardCounters& c) { return D(c.lanes_opened); }},
    {"verbena_shard_lanes_lost_total", "Lanes that ended otherwise than by their worker's wish.",
     kCounter, [](const ShardCounters& c) { return D(c.lanes_lost); }},
    {"verbena_shard_write_timeouts_total", "Lanes closed because a write to the worker hung.",
     kCounter, [](const ShardCounters& c) { return D(c.write_timeouts); }},
    {"verbena_shard_credit_stalls_total",
     "Times a lane had all its slots of a size, or all its operations, in use here.", kCounter,
     [](const ShardCounters& c) { return D(c.credit_stalls); }},
    {"verbena_shard_credit_messages_total", "Credits sent without a reply.", kCounter,
     [](const ShardCounters& c) { return D(c.credit_messages); }},
    {"verbena_shard_links", "Links open to shards that keep copies of this one's partitions.",
     kGauge, [](const ShardCounters& c) { return D(c.links.open); }},
    {"verbena_shard_links_opened_total", "Links opened.", kCounter,
     [](const ShardCounters& c) { return D(c.links.opened); }},
    {"verbena_shard_links_lost_total", "Links that ended while they were wanted.", kCounter,
     [](const ShardCounters& c) { return D(c.links.lost); }},
    {"verbena_shard_link_records_total", "Records sent over links.", kCounter,
     [](const ShardCounters& c) { return D(c.links.records); }},
    {"verbena_shard_link_bytes_total", "Bytes of these, without headers and groups.", kCounter,
     [](const ShardCounters& c) { return D(c.links.payload_bytes); }},
    {"verbena_shard_link_stalls_total", "Times a link had no room for a record.", kCounter,
     [](const ShardCounters& c) { return D(c.links.stalls); }},
    {"verbena_shard_replica_lag_records",
     "Records made of a partition that its follower has not: the most of any.", kGauge,
     [](const ShardCounters& c) { return D(c.replica_lag); }},
    {"verbena_shard_learner_bytes_left", "Bytes that copies which are brought up do not have yet.",
     kGauge, [](const ShardCounters& c) { return D(c.learner_bytes); }},
    {"verbena_shard_replica_records_total", "Records made for copies and sent.", kCounter,
     [](const ShardCounters& c) { return D(c.replication.sent_records); }},
    {"verbena_shard_replica_refused_total", "Answers of copies that refused a record for now.",
     kCounter, [](const ShardCounters& c) { return D(c.replication.refused); }},
    {"verbena_shard_replica_applied_total", "Records applied to copies that this shard keeps.",
     kCounter, [](const ShardCounters& c) { return D(c.replication.applied_records); }},
    {"verbena_shard_promotions_total", "Partitions taken over because their primary was silent.",
     kCounter, [](const ShardCounters& c) { return D(c.replication.promotions); }},
    {"verbena_shard_dropped_copies_total", "Copies given up because they did not answer.", kCounter,
     [](const ShardCounters& c) { return D(c.replication.dropped_copies); }},
    {"verbena_shard_admitted_copies_total", "Copies brought up that became followers.", kCounter,
     [](const ShardCounters& c) { return D(c.replication.admitted); }},
    {"verbena_shard_checkpoints_total", "Parts of checkpoints written that were committed.",
     kCounter, [](const ShardCounters& c) { return D(c.saves.committed); }},
    {"verbena_shard_checkpoint_failures_total", "Parts of checkpoints that were given up.",
     kCounter, [](const ShardCounters& c) { return D(c.saves.aborted); }},
    {"verbena_shard_checkpoint_bytes_total", "Bytes of tables handed to be written.", kCounter,
     [](const ShardCounters& c) { return D(c.saves.bytes); }},
    {"verbena_shard_checkpoint_memory_bytes",
     "Kept for checkpoints under way: what was changed before it was written.", kGauge,
     [](const ShardCounters& c) { return D(c.saves.memory_bytes); }},
    {"verbena_shard_checkpoint_waits_total",
     "Applies that waited because a checkpoint's memory was spent.", kCounter,
     [](const ShardCounters& c) { return D(c.saves.waits); }},
    {"verbena_shard_rejected_tokens_total", "Connections refused for a bad lane token.", kCounter,
     [](const ShardCounters& c) { return D(c.rejected_tokens); }},
};

void AddHistogram(MetricFamily* family, const LatencyHistogram& histogram, Labels labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.histogram.sample_count = histogram.count;
  metric.histogram.sample_sum = D(histogram.sum_ns) * 1e-9;
  uint64_t cumulative = 0;
  // The last bucket is the rest: the serialiser's +Inf.
  for (int i = 0; i + 1 < LatencyHistogram::kBuckets; ++i) {
    cumulative += histogram.counts[i];
    metric.histogram.bucket.push_back({cumulative, D(uint64_t{1} << i) * 1e-6});
  }
  family->metric.push_back(std::move(metric));
}

// Counts of 0, 1, 2 ...; the last is the rest.
void AddStaleness(MetricFamily* family, const std::array<uint64_t, kStalenessBuckets>& counts,
                  Labels labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  uint64_t cumulative = 0;
  for (uint32_t i = 0; i < counts.size(); ++i) {
    cumulative += counts[i];
    metric.histogram.sample_sum += D(counts[i]) * i;
    if (i + 1 < counts.size()) metric.histogram.bucket.push_back({cumulative, D(i)});
  }
  metric.histogram.sample_count = cumulative;
  family->metric.push_back(std::move(metric));
}

// Reasons come from two sides and may say much: this many series at most, the rest together.
constexpr size_t kMostLaneSeries = 32;

// One series for each way that lanes travel, whose value is how many do: a series for each lane
// would be one for each worker that ever connected.
MetricFamily LaneTransports(const std::vector<ShardMetrics>& shards) {
  MetricFamily family =
      Family("verbena_lane_transport_info", "Lanes open by how they travel, and why so.", kGauge);
  std::map<std::array<std::string, 4>, uint64_t> lanes;
  for (const ShardMetrics& shard : shards) {
    if (!shard.snapshot.has_value()) continue;
    for (const v1::LaneStatistics& lane : shard.snapshot->lanes) {
      // The host's memory is the device of shm.
      const std::string device = lane.device().empty() ? "host" : lane.device();
      std::array<std::string, 4> key = {lane.transport(), device, std::to_string(lane.rail()),
                                        lane.reason()};
      if (lanes.size() >= kMostLaneSeries && lanes.count(key) == 0) key[3] = "other";
      ++lanes[key];
    }
  }
  for (const auto& [key, count] : lanes) {
    Add(&family, D(count),
        {{"transport", key[0]}, {"device", key[1]}, {"rail", key[2]}, {"reason", key[3]}});
  }
  return family;
}

// Of transports that have any: the path's MTU, timeouts and the like. They are the operator's and
// the device's choice, so there are few.
MetricFamily TransportSettings(const std::vector<ShardMetrics>& shards) {
  MetricFamily family = Family("verbena_transport_settings_info",
                               "1 for each set of settings that open lanes travel with.", kGauge);
  std::set<std::array<std::string, 3>> known;
  for (const ShardMetrics& shard : shards) {
    if (!shard.snapshot.has_value()) continue;
    for (const v1::LaneStatistics& lane : shard.snapshot->lanes) {
      if (!lane.settings().empty() && known.size() < kMostLaneSeries) {
        known.insert({lane.transport(), lane.device(), lane.settings()});
      }
    }
  }
  for (const auto& key : known) {
    Add(&family, 1, {{"transport", key[0]}, {"device", key[1]}, {"settings", key[2]}});
  }
  return family;
}

void AddShards(const std::vector<ShardMetrics>& shards, std::vector<MetricFamily>* out) {
  MetricFamily up = Family("verbena_shard_up", "1 when the shard answered this scrape.", kGauge);
  MetricFamily cpu =
      Family("verbena_shard_cpu_seconds_total", "Processor time of the shard's thread.", kCounter);
  MetricFamily sleeps =
      Family("verbena_shard_sleeps_total", "Times the shard's thread went to sleep.", kCounter);
  MetricFamily spins =
      Family("verbena_shard_spins_total", "Times it looked for work before that.", kCounter);
  MetricFamily fruitless =
      Family("verbena_shard_fruitless_spins_total", "Times it found none.", kCounter);
  MetricFamily push = Family("verbena_shard_push_latency_seconds",
                             "From a push's arrival to its reply.", MetricType::Histogram);
  MetricFamily pull = Family("verbena_shard_pull_latency_seconds",
                             "From a pull's arrival to its reply.", MetricType::Histogram);
  MetricFamily staleness =
      Family("verbena_shard_pull_staleness_steps",
             "Pulls of ssp tables, by how many steps the slowest worker was behind the puller.",
             MetricType::Histogram);
  MetricFamily lanes = LaneTransports(shards);
  MetricFamily settings = TransportSettings(shards);
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardMetrics& shard = shards[i];
    Add(&up, shard.snapshot.has_value() ? 1 : 0, ShardLabel(i));
    Add(&cpu, shard.cpu_seconds, ShardLabel(i));
    Add(&sleeps, D(shard.sleeps), ShardLabel(i));
    Add(&spins, D(shard.spins), ShardLabel(i));
    Add(&fruitless, D(shard.fruitless_spins), ShardLabel(i));
    if (!shard.snapshot.has_value()) continue;
    AddHistogram(&push, shard.snapshot->counters.push_latency, ShardLabel(i));
    AddHistogram(&pull, shard.snapshot->counters.pull_latency, ShardLabel(i));
    AddStaleness(&staleness, shard.snapshot->counters.engine.staleness, ShardLabel(i));
  }
  for (const ShardValue& value : kShardValues) {
    MetricFamily family = Family(value.name, value.help, value.type);
    for (size_t i = 0; i < shards.size(); ++i) {
      if (!shards[i].snapshot.has_value()) continue;
      Add(&family, value.value(shards[i].snapshot->counters), ShardLabel(i));
    }
    out->push_back(std::move(family));
  }
  for (MetricFamily* family :
       {&up, &cpu, &sleeps, &spins, &fruitless, &push, &pull, &staleness, &lanes, &settings}) {
    if (!family->metric.empty()) out->push_back(std::move(*family));
  }
}

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
      "Of the keys that a shard is asked for, the share of the most frequent ones, at least.",
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
  if (!family.metric.empty()) out->push_back(std::move(family));
}

void AddTables(const std::vector<ShardMetrics>& shards, std::vector<MetricFamily>* out) {
  for (const TableValue& value : kTableValues) {
    MetricFamily family = Family(value.name, value.help, value.type);
    for (size_t i = 0; i < shards.size(); ++i) {
      if (!shards[i].snapshot.has_value()) continue;
      const std::vector<shard::TableStatistics>& tables = shards[i].snapshot->tables;
      for (size_t t = 0; t < std::min(tables.size(), kTablesListed); ++t) {
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
  // Empty: nothing to say of this job.
  std::optional<uint64_t> (*value)(const JobSnapshot& job);
};
const JobValue kJobValues[] = {
    {"verbena_job_memory_bytes", "Parameters, optimizer state and buffers of a job's tables.",
     [](const JobSnapshot& j) -> std::optional<uint64_t> { return j.engine.memory_bytes; }},
    {"verbena_job_memory_limit_bytes",
     "What all shards of this server together may have of that: its share of the job's limit.",
     [](const JobSnapshot& j) -> std::optional<uint64_t> {
       if (j.engine.memory_limit == shard::JobMemory::kUnlimited) return std::nullopt;
       return j.engine.memory_limit;
     }},
    {"verbena_job_lanes", "Lanes of a job: granted, open and closing.",
     [](const JobSnapshot& j) -> std::optional<uint64_t> { return j.lanes; }},
    {"verbena_job_lane_limit", "How many lanes of a shard a job may have.",
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
  AddGauge("verbena_coordinator_lost_partitions", "Partitions of tables whose only copy is gone.",
           D(c.lost_partitions), out);
}

void AddCheckpoints(const CheckpointMetrics& c, std::vector<MetricFamily>* out) {
  MetricFamily saved =
      Family("verbena_checkpoints_total", "Checkpoints that were made by the clock.", kCounter);
  Add(&saved, D(c.saved));
  out->push_back(std::move(saved));
  MetricFamily failed =
      Family("verbena_checkpoint_failures_total", "Checkpoints that could not be made.", kCounter);
  Add(&failed, D(c.failed));
  out->push_back(std::move(failed));
  if (!c.age_seconds.has_value()) return;
  AddGauge("verbena_checkpoint_age_seconds", "Since the last checkpoint was complete.",
           *c.age_seconds, out);
  AddGauge("verbena_checkpoint_duration_seconds", "That the last one took.", c.duration_seconds,
           out);
  AddGauge("verbena_checkpoint_bytes", "Of the last one's files.", D(c.bytes), out);
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

}  // namespace

std::string RenderMetrics(const NodeMetrics& node) {
  std::vector<MetricFamily> families;
  AddGauge("verbena_server_info", "1; what this process is.", 1, &families,
           {{"name", node.name},
            {"incarnation", absl::StrCat(node.incarnation)},
            {"version", node.version}});
  AddGauge("verbena_server_joined", "1 while this server is a member of its cluster.",
           node.joined ? 1 : 0, &families);
  AddMemory(node.memory, &families);
  if (node.memory_limit > 0) {
    AddGauge("verbena_memory_limit_bytes", "What --memory-limit allows for tables.",
             D(node.memory_limit), &families);
    AddGauge("verbena_memory_reserved_bytes", "Taken from the system for tables.",
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
    m.lost_partitions += static_cast<uint64_t>(table.lost_partitions_size());
  }
  return m;
}

}  // namespace verbena::server
