// What a scrape says of lanes.
#include "server/metrics/metrics.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "server/metrics/http_server.h"

namespace verbena::server {
namespace {

using Catch::Matchers::Contains;

void AddLane(ShardMetrics* shard, const std::string& transport, const std::string& device,
             const std::string& reason) {
  if (!shard->snapshot.has_value()) shard->snapshot.emplace();
  v1::LaneStatistics& lane = shard->snapshot->lanes.emplace_back();
  lane.set_lane(static_cast<uint32_t>(shard->snapshot->lanes.size()));
  lane.set_worker(100 + lane.lane());
  lane.set_transport(transport);
  lane.set_device(device);
  lane.set_reason(reason);
}

TEST_CASE("lanes are counted by transport, device and reason over all shards") {
  NodeMetrics node;
  node.shards.resize(3);
  AddLane(&node.shards[0], "shm", "", "shm: same host");
  AddLane(&node.shards[0], "verbs", "mlx5_0:1", "shm: other host; verbs: both have it");
  AddLane(&node.shards[1], "shm", "", "shm: same host");
  AddLane(&node.shards[1], "verbs", "mlx5_1:1", "shm: other host; verbs: both have it");
  const std::string text = RenderMetrics(node);
  CHECK_THAT(text, Contains("verbena_lane_transport_info{transport=\"shm\",device=\"host\","
                            "rail=\"0\",reason=\"shm: same host\"} 2"));
  for (const char* device : {"mlx5_0:1", "mlx5_1:1"}) {
    CHECK_THAT(text, Contains(absl::StrCat(
                         "verbena_lane_transport_info{transport=\"verbs\",device=\"", device,
                         "\",rail=\"0\",reason=\"shm: other host; verbs: both have it\"} 1")));
  }
}

TEST_CASE("the settings that lanes travel with are exported once each") {
  NodeMetrics node;
  node.shards.resize(1);
  for (int i = 0; i < 3; ++i) {
    AddLane(&node.shards[0], "verbs", "rxe0:1", "verbs: both have it");
    node.shards[0].snapshot->lanes.back().set_settings("path MTU 4096, retries 7");
  }
  AddLane(&node.shards[0], "shm", "", "shm: same host");
  const std::string text = RenderMetrics(node);
  CHECK_THAT(text, Contains("verbena_transport_settings_info{transport=\"verbs\",device=\"rxe0:1\","
                            "settings=\"path MTU 4096, retries 7\"} 1"));
  CHECK_THAT(text, !Contains("verbena_transport_settings_info{transport=\"shm\""));
}

TEST_CASE("jobs have series of what they have of each shard, and of limits that there are") {
  NodeMetrics node;
  node.shards.resize(2);
  node.shards[1].snapshot.emplace();
  JobSnapshot job;
  job.engine = {"ads", 4096, uint64_t{1} << 30};
  job.lanes = 3;
  job.lane_limit = 8;
  node.shards[1].snapshot->jobs.push_back(job);
  job.engine = {"free", 64, shard::JobMemory::kUnlimited};
  job.lane_limit = 0;
  node.shards[1].snapshot->jobs.push_back(job);
  const std::string text = RenderMetrics(node);
  const std::string ads = "{shard=\"1\",job=\"ads\"} ";
  CHECK_THAT(text, Contains("verbena_job_memory_bytes" + ads + "4096"));
  CHECK_THAT(text, Contains("verbena_job_memory_limit_bytes" + ads + "1073741824"));
  CHECK_THAT(text, Contains("verbena_job_lanes" + ads + "3"));
  CHECK_THAT(text, Contains("verbena_job_lane_limit" + ads + "8"));
  CHECK_THAT(text, Contains("verbena_job_memory_bytes{shard=\"1\",job=\"free\"} 64"));
  CHECK_THAT(text, !Contains("limit_bytes{shard=\"1\",job=\"free\"}") &&
                       !Contains("lane_limit{shard=\"1\",job=\"free\"}"));
}

TEST_CASE("tables have series of their own, as many as can be borne") {
  NodeMetrics node;
  node.shards.resize(2);
  node.shards[1].snapshot.emplace();
  for (uint32_t id = 1; id <= 510; ++id) {
    shard::TableStatistics& table = node.shards[1].snapshot->tables.emplace_back();
    table.id = id;
    table.name = absl::StrCat("layer.", id);
    table.counters.push_bytes = 1000 + id;
    table.counters.non_finite = id == 7 ? 3 : 0;
  }
  const std::string text = RenderMetrics(node);
  CHECK_THAT(text,
             Contains("verbena_table_push_bytes_total{shard=\"1\",table=\"layer.500\"} 1500"));
  CHECK_THAT(text, Contains("verbena_table_non_finite_total{shard=\"1\",table=\"layer.7\"} 3"));
  CHECK_THAT(text, !Contains("layer.501"));
  CHECK_THAT(text, Contains("verbena_tables_unlisted{shard=\"1\"} 10"));
}

TEST_CASE("the most frequent keys of a table have a series by rank") {
  NodeMetrics node;
  node.shards.resize(1);
  node.shards[0].snapshot.emplace();
  shard::TableStatistics& table = node.shards[0].snapshot->tables.emplace_back();
  table.name = "items";
  CHECK_THAT(RenderMetrics(node), !Contains("hot_key"));
  table.sampled_keys = 1000;
  for (uint64_t i = 0; i < 10; ++i) table.hot_keys.push_back({i * 7654321, 500 - i * 50, 100});
  const std::string text = RenderMetrics(node);
  const std::string items = "verbena_table_hot_key_share{shard=\"0\",table=\"items\",rank=";
  CHECK_THAT(text, Contains(items + "\"1\"} 0.4") && Contains(items + "\"4\"} 0.25"));
  CHECK_THAT(text, !Contains("rank=\"5\"") && !Contains("7654321"));
}

TEST_CASE("workers with many reasons do not make many series") {
  NodeMetrics node;
  node.shards.resize(1);
  for (int i = 0; i < 1000; ++i) {
    AddLane(&node.shards[0], "verbs", "mlx5_0:1", absl::StrCat("shm: because of ", i));
  }
  const std::string text = RenderMetrics(node);
  size_t series = 0;
  for (size_t at = 0; (at = text.find("\nverbena_lane_transport_info{", at)) != std::string::npos;
       ++at) {
    ++series;
  }
  CHECK(series == 33);
  CHECK_THAT(text, Contains("reason=\"other\"} 968"));
}

TEST_CASE("metrics on an IPv6 address: served, or refused with what to do") {
  auto server = HttpServer::Start(
      "[::1]:0", [] { return std::string(); }, [] { return absl::OkStatus(); });
  if (server.ok()) {
    CHECK_THAT((*server)->address(), Catch::StartsWith("[::1]:"));
  } else {
    CHECK(server.status().code() == absl::StatusCode::kUnavailable);
    // A host without IPv6 cannot listen there at all.
    CHECK_THAT(std::string(server.status().message()),
               (Contains("civetweb") && Contains("IPv4")) || Contains("ddress"));
  }
}

}  // namespace
}  // namespace verbena::server
