#include "server/cli/verbena/json_report.h"

#include <algorithm>
#include <map>

#include "absl/time/time.h"
#include "proto/protocol_version.h"
#include "proto/spec/table_spec.h"
#include "server/cli/verbena/format.h"
#include "server/cli/verbena/health.h"
#include "server/cli/verbena/limits.h"
#include "server/cli/verbena/protocol_report.h"
#include "server/cli/verbena/spec_report.h"

namespace verbena::cli {
namespace {

template <typename Numbers>
JsonArray NumbersOf(const Numbers& numbers) {
  JsonArray array;
  for (const auto number : numbers) array.Add(number);
  return array;
}

JsonWriter ServerHead(const ServerState& state) {
  const v1::Server& server = state.server;
  JsonWriter json;
  json.Add("name", server.name());
  json.Add("incarnation", server.incarnation());
  json.Add("address", server.address());
  json.Add("state", server.state() == v1::Server::SILENT ? "silent" : "alive");
  json.Add("draining", server.draining());
  json.Add("zone", server.zone());
  json.Add("answers", state.statistics.ok());
  if (state.statistics.ok()) {
    json.AddNull("error");
  } else {
    json.Add("error", WhyUnanswered(state));
  }
  return json;
}

JsonArray Tables(const ClusterState& state) {
  JsonArray tables;
  for (const v1::Table& table : state.view.tables()) {
    JsonWriter json;
    v1::TableSpec spec = table.spec();
    *spec.mutable_optimizer() = OptimizerOf(table, state);
    AddOptions(spec, &json);
    json.Add("optimizer_changed", spec.optimizer().changed());
    json.Add("id", table.id());
    json.Add("restoring", table.restoring());
    if (table.restoring()) {
      json.Add("restorer", table.restorer());
    } else {
      json.AddNull("restorer");
    }
    const TableSize size = SizeOf(table, state);
    json.Add("rows", size.rows);
    json.Add("bytes", size.bytes);
    json.Add("lost_partitions", NumbersOf(table.lost_partitions()));
    JsonArray hot;
    for (const HotKeyShare& key : HotKeysOf(table, state, 0.001)) {
      JsonWriter entry;
      // As text: most readers of JSON have 53 bits for a number.
      entry.Add("key", absl::StrCat(key.key));
      entry.Add("server", key.server);
      entry.Add("shard", key.shard);
      entry.Add("share", key.share);
      hot.Add(entry);
    }
    json.Add("hot_keys", hot);
    tables.Add(json);
  }
  return tables;
}

void AddOrNull(JsonWriter* json, std::string_view key, uint64_t limit) {
  if (limit == 0) return json->AddNull(key);
  json->Add(key, limit);
}

JsonWriter Limits(const v1::JobLimits& limits) {
  JsonWriter json;
  AddOrNull(&json, "memory_bytes", limits.memory_bytes());
  AddOrNull(&json, "tables", limits.tables());
  AddOrNull(&json, "lanes", limits.lanes());
  return json;
}

JsonArray Jobs(const ClusterState& state) {
  JsonArray jobs;
  for (const v1::Job& job : state.view.jobs()) {
    JsonArray members;
    for (const v1::Worker& worker : job.members()) {
      JsonWriter member;
      member.Add("name", worker.name());
      member.Add("incarnation", worker.incarnation());
      member.Add("rank", worker.rank());
      members.Add(member);
    }
    JsonWriter json;
    json.Add("name", job.name());
    json.Add("generation", job.generation());
    json.Add("expected_workers", job.expected_workers());
    json.Add("members", members);
    json.Add("departed_ranks", NumbersOf(job.departed_ranks()));
    json.Add("limits", Limits(job.limits()));
    jobs.Add(json);
  }
  return jobs;
}

JsonWriter RatesJson(const Rates& rates) {
  JsonWriter json;
  json.Add("push_bytes_per_s", rates.push_bytes);
  json.Add("pull_bytes_per_s", rates.pull_bytes);
  json.Add("pushes_per_s", rates.pushes);
  json.Add("pulls_per_s", rates.pulls);
  json.Add("cpu", rates.cpu);
  return json;
}

JsonArray Lanes(const v1::ShardStatistics& shard) {
  JsonArray lanes;
  for (const v1::LaneStatistics& lane : shard.lanes()) {
    JsonWriter json;
    json.Add("lane", lane.lane());
    json.Add("worker", lane.worker());
    json.Add("of_server", lane.of_server());
    json.Add("transport", lane.transport());
    json.Add("device", lane.device());
    json.Add("rail", lane.rail());
    json.Add("reason", lane.reason());
    json.Add("settings", lane.settings());
    json.Add("protocol", lane.protocol() == 0 ? kUnnamedProtocolVersion : lane.protocol());
    lanes.Add(json);
  }
  return lanes;
}

JsonArray MissingTransports(const v1::ShardStatistics& shard) {
  JsonArray missing;
  for (const v1::MissingTransport& transport : shard.missing_transports()) {
    JsonWriter json;
    json.Add("transport", transport.transport());
    json.Add("reason", transport.reason());
    missing.Add(json);
  }
  return missing;
}

JsonWriter Load(const ShardLoad& load) {
  const v1::ShardStatistics& shard = *load.statistics;
  JsonWriter json;
  json.Add("shard", shard.shard());
  json.Add("hottest", load.hottest);
  json.Add("partitions", load.partitions);
  json.Add("pushes", shard.pushes());
  json.Add("pulls", shard.pulls());
  json.Add("push_bytes", shard.push_bytes());
  json.Add("pull_bytes", shard.pull_bytes());
  json.Add("deferred", shard.deferred());
  json.Add("held", shard.held());
  json.Add("resident_bytes", shard.resident_bytes());
  json.Add("cpu_seconds", shard.cpu_seconds());
  if (load.rates) {
    json.Add("rates", RatesJson(*load.rates));
  } else {
    json.AddNull("rates");
  }
  json.Add("lanes", Lanes(shard));
  json.Add("missing_transports", MissingTransports(shard));
  return json;
}

}  // namespace

JsonWriter ClusterJson(const ClusterState& state) {
  JsonWriter json;
  json.Add("id", state.view.cluster_id());
  json.Add("coordinator", state.coordinator);
  if (state.coordinator_status.ok()) {
    json.AddNull("coordinator_error");
  } else {
    json.Add("coordinator_error", std::string(state.coordinator_status.message()));
  }
  json.Add("time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", state.time, absl::UTCTimeZone()));
  json.Add("term", state.view.term());
  json.Add("revision", state.view.revision());
  json.Add("lease_ms", state.view.lease_ms());
  json.Add("expected_servers", state.view.expected_servers());
  json.Add("replicas", ReplicasOf(state.view));
  json.Add("min_replicas", std::max(state.view.min_replicas(), 1u));
  return json;
}

std::string StatusJson(const ClusterState& state) {
  const std::vector<std::string> problems = Problems(state);
  const Placement placement = PlacementOf(state);
  JsonArray problem_list;
  for (const std::string& problem : problems) problem_list.Add(problem);
  JsonArray servers;
  for (const ServerState& server : state.servers) {
    JsonArray shards;
    for (uint32_t i = 0; i < std::min(server.server.shards(), kMostShards); ++i) {
      const PartitionCount count = placement.Of(server.server.incarnation(), i);
      JsonWriter shard;
      shard.Add("shard", i);
      shard.Add("partitions", count.partitions);
      shard.Add("followers", count.followers);
      shard.Add("learners", count.learners);
      shard.Add("lost", count.lost);
      const CopyLoad copies = CopiesOf(server, i);
      shard.Add("lag", copies.lag);
      shard.Add("copied_bytes", copies.copied_bytes);
      shard.Add("copy_bytes", copies.total_bytes);
      shards.Add(shard);
    }
    JsonWriter json = ServerHead(server);
    json.Add("version", server.server.version());
    json.Add("protocol_newest", ProtocolsOf(server.server.protocol()).newest);
    json.Add("shards", shards);
    servers.Add(json);
  }
  JsonWriter partitions;
  partitions.Add("total", placement.all.partitions);
  partitions.Add("unassigned", placement.unassigned);
  partitions.Add("lost", placement.all.lost);
  partitions.Add("incomplete", placement.incomplete);
  partitions.Add("dead", placement.dead);
  partitions.Add("learners", placement.all.learners);
  JsonWriter json;
  json.Add("healthy", problems.empty());
  json.Add("problems", problem_list);
  json.Add("cluster", ClusterJson(state));
  json.Add("protocol", ProtocolJson(state));
  json.Add("partitions", partitions);
  json.Add("servers", servers);
  json.Add("jobs", Jobs(state));
  json.Add("tables", Tables(state));
  return json.ToString();
}

std::string TablesJson(const ClusterState& state) {
  JsonWriter json;
  json.Add("cluster", ClusterJson(state));
  json.Add("tables", Tables(state));
  return json.ToString();
}

std::string JobsJson(const ClusterState& state) {
  JsonWriter json;
  json.Add("cluster", ClusterJson(state));
  json.Add("jobs", Jobs(state));
  return json.ToString();
}

std::string LimitsJson(const ClusterState& state, const std::string& job) {
  const v1::JobLimits limits = LimitsOf(state, job);
  const JobUse all = UseOf(state, job);
  JsonWriter in_use;
  in_use.Add("memory_bytes", all.memory_bytes);
  in_use.Add("tables", all.tables);
  in_use.Add("lanes", all.lanes);
  JsonArray servers;
  for (const ServerState& server : state.servers) {
    const JobUse use = UseOf(server, job);
    JsonWriter row = ServerHead(server);
    row.Add("memory_bytes", use.memory_bytes);
    if (limits.memory_bytes() > 0) {
      row.Add("memory_share_bytes", ShareOf(server, limits, state.view));
    } else {
      row.AddNull("memory_share_bytes");
    }
    row.Add("lanes", use.lanes);
    servers.Add(row);
  }
  JsonWriter json;
  json.Add("cluster", ClusterJson(state));
  json.Add("job", job);
  json.Add("limits", Limits(limits));
  json.Add("in_use", in_use);
  json.Add("servers", servers);
  return json.ToString();
}

std::string WorkersJson(const ClusterState& state) {
  const std::map<uint64_t, LaneCounts> lanes = LanesOfWorkers(state);
  JsonArray workers;
  for (const v1::Job& job : state.view.jobs()) {
    for (const v1::Worker& worker : job.members()) {
      JsonWriter by_transport;
      if (const auto it = lanes.find(worker.incarnation()); it != lanes.end()) {
        for (const auto& [transport, count] : it->second) by_transport.Add(transport, count);
      }
      JsonWriter json;
      json.Add("job", job.name());
      json.Add("rank", worker.rank());
      json.Add("incarnation", worker.incarnation());
      json.Add("name", worker.name());
      json.Add("lanes", by_transport);
      workers.Add(json);
    }
  }
  JsonArray unanswered;
  for (const ServerState& server : state.servers) {
    if (!server.statistics.ok()) unanswered.Add(ServerHead(server));
  }
  JsonWriter json;
  json.Add("cluster", ClusterJson(state));
  json.Add("workers", workers);
  json.Add("unanswered_servers", unanswered);
  return json.ToString();
}

std::string ShardsJson(const ClusterState& state, const std::vector<ShardLoad>& loads,
                       std::optional<double> interval) {
  JsonArray servers;
  for (const ServerState& server : state.servers) {
    JsonArray shards;
    for (const ShardLoad& load : loads) {
      if (load.server == &server && load.statistics != nullptr) shards.Add(Load(load));
    }
    JsonWriter json = ServerHead(server);
    json.Add("shards", shards);
    servers.Add(json);
  }
  JsonWriter json;
  json.Add("cluster", ClusterJson(state));
  if (interval) {
    json.Add("interval_s", *interval);
  } else {
    json.AddNull("interval_s");
  }
  json.Add("servers", servers);
  return json.ToString();
}

}  // namespace verbena::cli
