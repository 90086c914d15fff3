// Metrics of shards: the counters of their executor and engine.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "server/metrics/families.h"

namespace verbena::server {
namespace {

// A family with one value for each shard that answered.
struct ShardValue {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const ShardCounters& counters);
};
const ShardValue kShardValues[] = {
    {"verbena_shard_push_bytes_total", "Bytes of gradients received.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.push_bytes); }},
    {"verbena_shard_pull_bytes_total", "Bytes of parameters sent.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.pull_bytes); }},
    {"verbena_shard_pushes_total", "Pushes received.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.pushes); }},
    {"verbena_shard_pulls_total", "Pulls received.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.pulls); }},
    {"verbena_shard_duplicates_total", "Pushes that had already been applied.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.duplicates); }},
    {"verbena_shard_refused_total", "Requests answered with an error.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.refused); }},
    {"verbena_shard_non_finite_total", "Pushes with NaN or Inf that were refused or skipped.",
     kCounter, [](const ShardCounters& c) { return D(c.engine.non_finite); }},
    {"verbena_shard_commits_total", "Steps of chunks that were committed (sync).", kCounter,
     [](const ShardCounters& c) { return D(c.engine.commits); }},
    {"verbena_shard_applies_total", "Optimizer applies to chunks.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.applies); }},
    {"verbena_shard_shadow_buffers_exhausted_total",
     "Applies that waited because all shadow buffers were being sent.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.spare_exhausted); }},
    {"verbena_shard_resident_bytes", "Bytes of parameters, optimizer state and accumulators.",
     kGauge, [](const ShardCounters& c) { return D(c.engine.resident_bytes); }},
    {"verbena_shard_held", "Contributions that wait in their slots for a lower rank.", kGauge,
     [](const ShardCounters& c) { return D(c.engine.held); }},
    {"verbena_shard_deferred_requests", "Pulls that wait for a version.", kGauge,
     [](const ShardCounters& c) { return D(c.engine.deferred); }},
    {"verbena_shard_queue_depth", "Received requests without a reply.", kGauge,
     [](const ShardCounters& c) { return D(c.queue_depth); }},
    {"verbena_shard_lanes", "Open lanes.", kGauge,
     [](const ShardCounters& c) { return D(c.lanes_open); }},
    {"verbena_shard_lanes_opened_total", "Lanes opened.", kCounter,
     [](const ShardCounters& c) { return D(c.lanes_opened); }},
    {"verbena_shard_lanes_lost_total", "Lanes that ended without a request of their worker.",
     kCounter, [](const ShardCounters& c) { return D(c.lanes_lost); }},
    {"verbena_shard_write_timeouts_total",
     "Lanes closed because a write to the worker did not complete.", kCounter,
     [](const ShardCounters& c) { return D(c.write_timeouts); }},
    {"verbena_shard_follower_pulls_total",
     "Pulls that this shard answered as a follower, in place of the primary.", kCounter,
     [](const ShardCounters& c) { return D(c.follower_pulls); }},
    {"verbena_shard_follower_redirects_total",
     "Pulls that this shard refused as a follower, so that the primary answers them.", kCounter,
     [](const ShardCounters& c) { return D(c.follower_redirects); }},
    {"verbena_shard_credit_stalls_total",
     "Times that all slots of a size, or all operations, of a lane were in use.", kCounter,
     [](const ShardCounters& c) { return D(c.credit_stalls); }},
    {"verbena_shard_credit_messages_total", "Messages with credits only.", kCounter,
     [](const ShardCounters& c) { return D(c.credit_messages); }},
    {"verbena_shard_links",
     "Open links to shards of other servers that have replicas of this shard's partitions.", kGauge,
     [](const ShardCounters& c) { return D(c.links.open); }},
    {"verbena_shard_links_opened_total", "Links opened.", kCounter,
     [](const ShardCounters& c) { return D(c.links.opened); }},
    {"verbena_shard_links_lost_total", "Links that ended while they were needed.", kCounter,
     [](const ShardCounters& c) { return D(c.links.lost); }},
    {"verbena_shard_link_records_total", "Requests sent over links.", kCounter,
     [](const ShardCounters& c) { return D(c.links.records); }},
    {"verbena_shard_link_bytes_total", "Bytes of requests sent over links, without headers.",
     kCounter, [](const ShardCounters& c) { return D(c.links.payload_bytes); }},
    {"verbena_shard_link_stalls_total", "Times that a link had no room for a request.", kCounter,
     [](const ShardCounters& c) { return D(c.links.stalls); }},
    {"verbena_shard_replica_lag_records",
     "Requests that a follower has not acknowledged: the maximum of all partitions.", kGauge,
     [](const ShardCounters& c) { return D(c.replica_lag); }},
    {"verbena_shard_learner_bytes_left", "Bytes that learners still need.", kGauge,
     [](const ShardCounters& c) { return D(c.learner_bytes); }},
    {"verbena_shard_replica_log_bytes",
     "Bytes of requests kept until replicas acknowledge them, of all partitions.", kGauge,
     [](const ShardCounters& c) { return D(c.engine.replica_log_bytes); }},
    {"verbena_shard_replica_log_limit_bytes",
     "Limit of verbena_shard_replica_log_bytes (--replica-log-limit).", kGauge,
     [](const ShardCounters& c) { return D(c.replica_log.shard_bytes); }},
    {"verbena_shard_replica_log_partition_bytes",
     "Bytes of requests kept until replicas acknowledge them, of the partition with most.", kGauge,
     [](const ShardCounters& c) { return D(c.engine.replica_log_partition_bytes); }},
    {"verbena_shard_replica_log_partition_limit_bytes",
     "Limit of verbena_shard_replica_log_partition_bytes (--replica-log-partition-limit).", kGauge,
     [](const ShardCounters& c) { return D(c.replica_log.partition_bytes); }},
    {"verbena_shard_replica_log_waits_total",
     "Times that an apply found no room in the replication log.", kCounter,
     [](const ShardCounters& c) { return D(c.engine.replica_log_waits); }},
    {"verbena_shard_replica_log_waiting", "Requests that wait for room in the replication log.",
     kGauge, [](const ShardCounters& c) { return D(c.waiting_for_room); }},
    {"verbena_shard_replica_workers",
     "Workers in the duplicate detection of replicas on this shard, counted for each table and "
     "partition.",
     kGauge, [](const ShardCounters& c) { return D(c.engine.replica_marks); }},
    {"verbena_shard_replica_records_total", "Requests sent to replicas.", kCounter,
     [](const ShardCounters& c) { return D(c.replication.sent_records); }},
    {"verbena_shard_replica_refused_total", "Replies of replicas that refused a request for now.",
     kCounter, [](const ShardCounters& c) { return D(c.replication.refused); }},
    {"verbena_shard_replica_applied_total", "Requests applied to replicas on this shard.", kCounter,
     [](const ShardCounters& c) { return D(c.replication.applied_records); }},
    {"verbena_shard_promotions_total", "Partitions taken over from a primary that did not respond.",
     kCounter, [](const ShardCounters& c) { return D(c.replication.promotions); }},
    {"verbena_shard_dropped_replicas_total", "Replicas dropped because they did not respond.",
     kCounter, [](const ShardCounters& c) { return D(c.replication.dropped_copies); }},
    {"verbena_shard_admitted_replicas_total", "Learners that became followers.", kCounter,
     [](const ShardCounters& c) { return D(c.replication.admitted); }},
    {"verbena_shard_replica_mismatch_total",
     "Followers that differed from their primary in its audit (--replica-audit-ms) and are copied "
     "again. Should be 0.",
     kCounter, [](const ShardCounters& c) { return D(c.replication.mismatches); }},
    {"verbena_shard_checkpoints_total", "Parts of checkpoints that were committed.", kCounter,
     [](const ShardCounters& c) { return D(c.saves.committed); }},
    {"verbena_shard_checkpoint_failures_total", "Parts of checkpoints that failed.", kCounter,
     [](const ShardCounters& c) { return D(c.saves.aborted); }},
    {"verbena_shard_checkpoint_bytes_total", "Bytes of tables passed to the checkpoint writer.",
     kCounter, [](const ShardCounters& c) { return D(c.saves.bytes); }},
    {"verbena_shard_checkpoint_memory_bytes",
     "Bytes of data kept because it changed before a checkpoint had written it.", kGauge,
     [](const ShardCounters& c) { return D(c.saves.memory_bytes); }},
    {"verbena_shard_checkpoint_waits_total",
     "Applies that waited because the memory of a checkpoint was used up.", kCounter,
     [](const ShardCounters& c) { return D(c.saves.waits); }},
    {"verbena_shard_cold_reads_total", "Rows read from the disk tier.", kCounter,
     [](const ShardCounters& c) { return D(c.cold.reads); }},
    {"verbena_shard_cold_direct_reads_total",
     "Rows read from the disk tier while the shard waited: by scans, checkpoints, catch-up and "
     "large lookups. They do not become hot.",
     kCounter, [](const ShardCounters& c) { return D(c.cold.direct_reads); }},
    {"verbena_shard_cold_prefetched_total", "Rows read from the disk tier by a prefetch.", kCounter,
     [](const ShardCounters& c) { return D(c.cold.intended); }},
    {"verbena_shard_cold_dropped_prefetches_total",
     "Rows of prefetches that were too many to be read ahead.", kCounter,
     [](const ShardCounters& c) { return D(c.cold.dropped_prefetches); }},
    {"verbena_shard_cold_writes_total", "Rows written to the disk tier.", kCounter,
     [](const ShardCounters& c) { return D(c.cold.writes); }},
    {"verbena_shard_cold_read_bytes_total", "Bytes of rows read from the disk tier.", kCounter,
     [](const ShardCounters& c) { return D(c.cold.read_bytes); }},
    {"verbena_shard_cold_written_bytes_total", "Bytes of rows written to the disk tier.", kCounter,
     [](const ShardCounters& c) { return D(c.cold.written_bytes); }},
    {"verbena_shard_cold_waits_total",
     "Lookups, pushes and steps that waited for rows of the disk tier.", kCounter,
     [](const ShardCounters& c) { return D(c.cold.waits); }},
    {"verbena_shard_cold_waiting", "Lookups, pushes and steps that wait for rows of the disk tier.",
     kGauge, [](const ShardCounters& c) { return D(c.cold.waiting); }},
    {"verbena_shard_cold_failures_total",
     "Rows that could not be read from the disk tier, so that their partitions are lost.", kCounter,
     [](const ShardCounters& c) { return D(c.cold.failures); }},
    {"verbena_shard_cold_write_failures_total",
     "Failed writes to the disk tier; the rows stay in memory.", kCounter,
     [](const ShardCounters& c) { return D(c.cold.write_failures); }},
    {"verbena_shard_cold_stored_bytes", "Bytes of RocksDB's files.", kGauge,
     [](const ShardCounters& c) { return D(c.cold.stored_bytes); }},
    {"verbena_shard_cold_memory_bytes", "Bytes of RocksDB's memory: buffers and cache.", kGauge,
     [](const ShardCounters& c) { return D(c.cold.store_memory_bytes); }},
    {"verbena_shard_hot_rows", "Rows in memory, of tables with a disk tier.", kGauge,
     [](const ShardCounters& c) { return D(c.cold.hot_rows); }},
    {"verbena_shard_hot_bytes", "Bytes of rows in memory, of tables with a disk tier.", kGauge,
     [](const ShardCounters& c) { return D(c.cold.hot_bytes); }},
    {"verbena_shard_hot_limit_bytes", "Limit of verbena_shard_hot_bytes.", kGauge,
     [](const ShardCounters& c) { return D(c.cold.hot_limit_bytes); }},
    {"verbena_shard_rejected_tokens_total", "Connections refused because of an invalid lane token.",
     kCounter, [](const ShardCounters& c) { return D(c.rejected_tokens); }},
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

// Reasons come from clients and servers, and may be many: this many series at most, the rest
// together.
constexpr size_t kMostLaneSeries = 32;

// One series for each way that lanes travel, whose value is how many do: a series for each lane
// would be one for each worker that ever connected.
MetricFamily LaneTransports(const std::vector<ShardMetrics>& shards) {
  MetricFamily family = Family("verbena_lane_transport_info",
                               "Open lanes by transport, device (host: shared memory), rail, and "
                               "the reason why better transports are not used.",
                               kGauge);
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

// Settings of transports that have any: the path's MTU, timeouts and the like. The operator and the
// device determine them, so there are few.
MetricFamily TransportSettings(const std::vector<ShardMetrics>& shards) {
  MetricFamily family = Family("verbena_transport_settings_info",
                               "1 for each set of settings (path MTU, service level, traffic "
                               "class, timeouts) of open lanes.",
                               kGauge);
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
}  // namespace

void AddShards(const std::vector<ShardMetrics>& shards, std::vector<MetricFamily>* out) {
  MetricFamily up =
      Family("verbena_shard_up", "1 if the shard answered this scrape, else 0.", kGauge);
  MetricFamily cpu = Family("verbena_shard_cpu_seconds_total",
                            "CPU time of the shard's thread, in seconds.", kCounter);
  MetricFamily sleeps = Family("verbena_shard_sleeps_total",
                               "Times that the shard's thread went to sleep.", kCounter);
  MetricFamily spins = Family("verbena_shard_spins_total",
                              "Polling phases of the shard's thread before a sleep.", kCounter);
  MetricFamily fruitless =
      Family("verbena_shard_fruitless_spins_total", "Polling phases that found no work.", kCounter);
  MetricFamily push =
      Family("verbena_shard_push_latency_seconds",
             "Time from the arrival of a push to its reply, in seconds.", MetricType::Histogram);
  MetricFamily pull =
      Family("verbena_shard_pull_latency_seconds",
             "Time from the arrival of a pull to its reply, in seconds.", MetricType::Histogram);
  MetricFamily staleness = Family(
      "verbena_shard_pull_staleness_steps",
      "Steps by which the slowest worker was behind the pulling one (ssp).", MetricType::Histogram);
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
    out->push_back(std::move(*family));
  }
}

}  // namespace verbena::server
