// Metrics of lanes in a scrape, and that no client keeps others from scraping.
#include "server/metrics/metrics.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
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

TEST_CASE("jobs have series of their use of each shard, and of the limits that are set") {
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

TEST_CASE("tables have series of their own, up to a bound") {
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

TEST_CASE("metrics on an IPv6 address: served where the host has one") {
  auto server = HttpServer::Start(
      "[::1]:0", [] { return std::string(); }, [] { return absl::OkStatus(); });
  if (server.ok()) {
    CHECK_THAT((*server)->address(), Catch::StartsWith("[::1]:"));
  } else {
    CHECK(server.status().code() == absl::StatusCode::kUnavailable);
    // A host without IPv6 cannot listen there at all.
    CHECK_THAT(std::string(server.status().message()), Contains("ddress"));
  }
}

// A client of an HTTP server on 127.0.0.1.
class HttpClient {
 public:
  explicit HttpClient(const std::string& address) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.substr(10).c_str())));
    const timeval patience = {3, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    REQUIRE(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0);
  }
  ~HttpClient() { close(fd_); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void Send(const std::string& text) { send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // The text received until the server closes the connection, or within 3 s.
  std::string Receive() {
    std::string text;
    char part[4096];
    for (ssize_t got; (got = recv(fd_, part, sizeof(part), 0)) > 0;) {
      text.append(part, static_cast<size_t>(got));
    }
    return text;
  }
  std::string Get(const std::string& path) {
    Send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    return Receive();
  }

 private:
  const int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

TEST_CASE("half-open requests, however many, keep nobody from health and metrics") {
  auto server = HttpServer::Start(
      "127.0.0.1:0", [] { return std::string(1 << 20, 'm'); }, [] { return absl::OkStatus(); });
  REQUIRE(server.ok());
  std::vector<std::unique_ptr<HttpClient>> open;
  for (int i = 0; i < 200; ++i) {
    open.push_back(std::make_unique<HttpClient>((*server)->address()));
    open.back()->Send("GET /metrics HTTP/1.1\r\nHost: x\r\n");
  }
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THAT(HttpClient((*server)->address()).Get("/healthz"), Contains("200 OK"));
  const std::string scrape = HttpClient((*server)->address()).Get("/metrics");
  CHECK(scrape.size() > (1 << 20));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
}

TEST_CASE("a scrape that takes long does not hold up a health probe") {
  std::promise<void> go;
  auto server = HttpServer::Start(
      "127.0.0.1:0",
      [wait = go.get_future().share()] {
        wait.wait();
        return std::string("late");
      },
      [] { return absl::UnavailableError("not yet"); });
  REQUIRE(server.ok());
  std::vector<std::unique_ptr<HttpClient>> scrapes;
  for (int i = 0; i < 4; ++i) {
    scrapes.push_back(std::make_unique<HttpClient>((*server)->address()));
    scrapes.back()->Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  const std::string health = HttpClient((*server)->address()).Get("/healthz");
  CHECK_THAT(health, Contains("503") && Contains("not yet"));
  go.set_value();
  for (auto& scrape : scrapes)
    CHECK_THAT(scrape->Receive(), Contains("200 OK") && Contains("late"));
}

TEST_CASE("scrapes take a tenth of the time, however often they are asked for") {
  std::atomic<int> scrapes{0};
  auto server = HttpServer::Start(
      "127.0.0.1:0",
      [&] {
        ++scrapes;
        absl::SleepFor(absl::Milliseconds(20));
        return std::string("text");
      },
      [] { return absl::OkStatus(); });
  REQUIRE(server.ok());
  const absl::Time end = absl::Now() + absl::Seconds(1);
  while (absl::Now() < end) {
    CHECK_THAT(HttpClient((*server)->address()).Get("/metrics"), Contains("200 OK"));
  }
  CHECK(scrapes.load() > 2);
  CHECK(scrapes.load() < 8);
}

TEST_CASE("requests that are too long or ask for something else are refused") {
  auto server = HttpServer::Start(
      "127.0.0.1:0", [] { return std::string(); }, [] { return absl::OkStatus(); });
  REQUIRE(server.ok());
  CHECK_THAT(HttpClient((*server)->address()).Get("/etc/passwd"), Contains("404"));
  HttpClient longer((*server)->address());
  longer.Send("GET /" + std::string(100000, 'x'));
  CHECK_THAT(longer.Receive(), Contains("431") || Contains("414"));
}

}  // namespace
}  // namespace verbena::server
