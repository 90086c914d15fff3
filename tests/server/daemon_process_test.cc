// verbenad as a process: reasons not to start, the services, its end.
#include <google/protobuf/wrappers.pb.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "proto/control/grpc_control_channel.h"
#include "proto/protocol_version.h"
#include "proto/wire/record.h"
#include "tests/server/daemon_fixture.h"
#include "tests/support/http.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

template <typename Response>
absl::StatusOr<Response> CallNow(const std::string& address, const std::string& method,
                                 const google::protobuf::Message& request) {
  GrpcControlChannel channel;
  absl::StatusOr<Response> result = absl::InternalError("no answer");
  bool done = false;
  Call<Response>(channel, address, method, request, absl::Seconds(20),
                 [&](absl::StatusOr<Response> answer) {
                   result = std::move(answer);
                   done = true;
                 });
  REQUIRE(Eventually([&] {
    channel.RunOnce();
    return done;
  }));
  return result;
}

// grpc.health.v1: a string in field 1 goes in, an enum in field 1 comes back (1: SERVING).
int HealthOf(const std::string& address, const std::string& service) {
  google::protobuf::StringValue request;
  request.set_value(service);
  auto answer =
      CallNow<google::protobuf::Int32Value>(address, "/grpc.health.v1.Health/Check", request);
  return answer.ok() ? answer->value() : -static_cast<int>(answer.status().code());
}

TEST_CASE("the error about an unresolved host names it, and does not mention --insecure") {
  const Finished refused = Verbenad({"--coordinator", "--listen", "no-such-host.invalid:7000"});
  CHECK(refused.status == 1);
  CHECK_THAT(refused.err,
             Contains("--listen no-such-host.invalid:7000: host no-such-host.invalid: "));
  CHECK_THAT(refused.err, !Contains("--insecure"));
}

TEST_CASE("a server that joins another server logs that this is not the coordinator") {
  Daemon coordinator({"--coordinator"});
  coordinator.Ready();
  Daemon server({"--name", "server", "--join", coordinator.address()});
  server.Ready();
  Daemon lost({"--name", "lost", "--join", server.address()});
  const std::string problem = server.address() + ": it is not the coordinator";
  CHECK(Eventually([&] { return lost.process().err().find(problem) != std::string::npos; }));
}

TEST_CASE("an address in use ends verbenad with an error") {
  Daemon first({"--coordinator"});
  first.Ready();
  for (const std::string option : {"--listen", "--metrics"}) {
    const std::string taken = option == "--listen" ? first.address() : first.metrics();
    std::vector<std::string> arguments = {"--coordinator", option, taken};
    if (option == "--metrics") arguments.insert(arguments.end(), {"--listen", "127.0.0.1:0"});
    const Finished second = Verbenad(arguments);
    CHECK(second.status == 1);
    CHECK_THAT(second.err, Contains("cannot listen on " + taken + ": address already in use"));
  }
  CHECK(first.process().running());
}

TEST_CASE("regression: a server whose metrics port is taken does not join") {
  Daemon coordinator({"--coordinator", "--shards", "0"});
  coordinator.Ready();
  TemporaryDirectory directory;
  const Finished second =
      Verbenad({"--join", coordinator.address(), "--name", "late", "--listen", "127.0.0.1:0",
                "--cold-dir", directory.File("cold"), "--metrics", coordinator.metrics()});
  CHECK(second.status == 1);
  // Nothing was begun before: no shard, which opens this directory, and no call to join.
  CHECK(access(directory.File("cold").c_str(), F_OK) != 0);
  CHECK_THAT(second.err, Contains("cannot listen on " + coordinator.metrics()));
  // A server that has left is still listed.
  const Finished status = RunProgram(
      {CliPath(), "status", "--json", "--cluster", coordinator.address()}, absl::Seconds(60));
  CHECK_THAT(status.out, Contains("\"servers\"") && !Contains("late"));
}

TEST_CASE("a state directory that cannot be used ends verbenad with an error") {
  TemporaryDirectory directory;
  const std::string state = directory.File("state");
  std::string says;
  SECTION("in use by another daemon") {
    Daemon first({"--coordinator", "--state", state});
    first.Ready();
    const Finished second =
        Verbenad({"--coordinator", "--listen", "127.0.0.1:0", "--state", state});
    CHECK(second.status == 1);
    CHECK_THAT(second.err, Contains(state) && Contains("in use"));
    CHECK_THAT(second.err, Contains(std::to_string(first.process().pid())));
    return;
  }
  std::string path = state;
  SECTION("a file where the directory should be") {
    WriteFile(state, "x");
    says = "directory";
  }
  SECTION("cannot be made") {
    path = "/proc/verbena-state";
    says = "/proc/verbena-state";
  }
  SECTION("damaged") {
    {
      Daemon first({"--coordinator", "--state", state});
      first.Ready();
      first.process().Signal(SIGTERM);
      REQUIRE(first.process().Wait() == 0);
    }
    std::string content = ReadFile(state + "/coordinator.db");
    REQUIRE(content.size() > 4096);
    content.replace(0, 2000, std::string(2000, 'x'));
    WriteFile(state + "/coordinator.db", content);
    says = "coordinator.db";
  }
  const Finished run = Verbenad({"--coordinator", "--listen", "127.0.0.1:0", "--state", path});
  INFO(run.err);
  CHECK(run.status == 1);
  CHECK_THAT(run.err, Contains(says));
}

TEST_CASE("a server joins, serves metrics and health, and leaves at SIGTERM") {
  Daemon coordinator({"--coordinator", "--shards", "0", "--name", "c"});
  coordinator.Ready();
  CHECK_THAT(HttpGet(coordinator.metrics(), "/metrics").body,
             Contains("verbena_coordinator_servers{state=\"alive\"} 0"));
  Daemon server({"--join", coordinator.address(), "--shards", "2", "--name", "s"});
  server.Ready();
  CHECK(JsonField(server.ready_text(), "pid") == std::to_string(server.process().pid()));
  CHECK(JsonField(server.ready_text(), "incarnation") != "0");

  const HttpAnswer health = HttpGet(server.metrics(), "/healthz");
  CHECK(health.status == 200);
  CHECK(health.body == "ok\n");
  const HttpAnswer metrics = HttpGet(server.metrics(), "/metrics");
  CHECK(metrics.status == 200);
  for (const char* text :
       {"verbena_server_info{name=\"s\"", "verbena_shard_push_bytes_total{shard=\"1\"} 0",
        "verbena_shard_pull_latency_seconds_bucket{shard=\"0\",le=\"+Inf\"} 0",
        "verbena_shard_up{shard=\"0\"} 1", "verbena_shard_cpu_seconds_total{shard=\"0\"}",
        "verbena_memory_bytes{pages=\"huge\",node=\"any\"} 0",
        "verbena_memory_huge_page_fallbacks_total 0"}) {
    CHECK_THAT(metrics.body, Contains(text));
  }
  CHECK(HttpGet(server.metrics(), "/").status == 404);
  CHECK_THAT(HttpGet(coordinator.metrics(), "/metrics").body,
             Contains("verbena_coordinator_servers{state=\"alive\"} 1"));

  CHECK(HealthOf(server.address(), "") == 1);
  CHECK(HealthOf(server.address(), "verbena.v1.Shard") == 1);
  CHECK(HealthOf(coordinator.address(), "verbena.v1.Cluster") == 1);

  server.process().Signal(SIGTERM);
  CHECK(server.process().Wait() == 0);
  CHECK_THAT(server.process().err(), Contains("draining"));
  CHECK_THAT(HttpGet(coordinator.metrics(), "/metrics").body,
             Contains("verbena_coordinator_servers{state=\"alive\"} 0"));
  coordinator.process().Signal(SIGINT);
  CHECK(coordinator.process().Wait() == 0);
}

TEST_CASE("the ready file is there while the process serves; SIGHUP ends it as SIGTERM does") {
  TemporaryDirectory directory;
  const std::string ready = directory.File("ready");
  std::ofstream(ready) << "{\"address\": \"of an earlier process\"}";
  Process process({VerbenadPath(), "--coordinator", "--shards", "0", "--listen", "127.0.0.1:0",
                   "--metrics", "127.0.0.1:0", "--ready-file", ready});
  REQUIRE(Eventually([&] { return ReadFile(ready).find("127.0.0.1") != std::string::npos; }));
  // A process without shards never joins, so no alert of servers that have not joined names it.
  CHECK_THAT(HttpGet(JsonField(ReadFile(ready), "metrics"), "/metrics").body,
             !Contains("verbena_server_joined"));
  process.Signal(SIGHUP);
  CHECK(process.Wait() == 0);
  CHECK_THAT(process.err(), Contains("draining"));
  CHECK(access(ready.c_str(), F_OK) != 0);
}

TEST_CASE("a server without its coordinator is unhealthy, with the reason") {
  TemporaryDirectory directory;
  Daemon coordinator({"--coordinator", "--shards", "0"});
  coordinator.Ready();
  const std::string address = coordinator.address();
  coordinator.process().Signal(SIGKILL);
  coordinator.process().Wait();
  Daemon server({"--join", address, "--name", "s"});
  REQUIRE(server.process().WaitFor("metrics 127.0.0.1:"));
  const std::string log = server.process().err();
  const size_t at = log.find("metrics ") + 8;
  const std::string metrics = log.substr(at, log.find(',', at) - at);
  const HttpAnswer health = HttpGet(metrics, "/healthz");
  CHECK(health.status == 503);
  CHECK_FALSE(health.body.empty());
  CHECK_THAT(HttpGet(metrics, "/metrics").body, Contains("verbena_server_joined 0"));
  CHECK(server.ready_text().empty());
  server.process().Signal(SIGTERM);
  CHECK(server.process().Wait() == 0);
}

TEST_CASE("regression: a server logs that another cluster's coordinator has taken the address") {
  const std::string address = AddressToKeep();
  const std::vector<std::string> command = {
      VerbenadPath(), "--listen", address, "--shards", "0", "--lease-ms", "500", "--coordinator"};
  Process coordinator(command);
  Daemon server({"--join", address, "--name", "s"});
  server.Ready();
  coordinator.Signal(SIGKILL);
  coordinator.Wait();
  // The first reason precedes the one that the test waits for below.
  REQUIRE(Eventually([&] { return Contains("Connection refused").match(server.process().err()); }));
  // Without --state it begins another cluster.
  Process other(command);
  CHECK(Eventually([&] {
    return (Contains("belongs to cluster ") && Contains("start it with the state of cluster "))
        .match(server.process().err());
  }));
}

TEST_CASE("lane requests and statistics are answered over gRPC") {
  Daemon node({"--coordinator", "--shards", "2", "--name", "s"});
  node.Ready();
  const auto statistics = CallNow<v1::GetStatisticsResponse>(
      node.address(), "/verbena.v1.Shard/GetStatistics", v1::GetStatisticsRequest());
  REQUIRE(statistics.ok());
  CHECK(std::to_string(statistics->incarnation()) == JsonField(node.ready_text(), "incarnation"));
  CHECK(statistics->shards_size() == 2);

  v1::OpenLaneRequest request;
  request.set_server_incarnation(statistics->incarnation());
  request.set_oldest_protocol(kOldestProtocolVersion);
  request.set_newest_protocol(kProtocolVersion);
  request.set_incarnation(12345);
  const std::string method = "/verbena.v1.Shard/OpenLane";
  auto opened = CallNow<v1::OpenLaneResponse>(node.address(), method, request);
  CHECK(absl::IsNotFound(opened.status()));
  CHECK_THAT(std::string(opened.status().message()), Contains("12345"));
  request.set_shard(2);
  opened = CallNow<v1::OpenLaneResponse>(node.address(), method, request);
  CHECK(absl::IsInvalidArgument(opened.status()));
  CHECK_THAT(std::string(opened.status().message()), Contains("shard 2 does not exist"));
  request.set_server_incarnation(999);
  opened = CallNow<v1::OpenLaneResponse>(node.address(), method, request);
  CHECK(absl::IsFailedPrecondition(opened.status()));
}

TEST_CASE("a coordinator ends at once although calls wait for the view to change") {
  Daemon node({"--coordinator", "--shards", "0"});
  node.Ready();
  const std::string method = "/verbena.v1.Cluster/GetView";
  v1::GetViewRequest request;
  const auto view = CallNow<v1::GetViewResponse>(node.address(), method, request);
  REQUIRE(view.ok());
  request.set_known_revision(view->view().revision());
  request.set_wait_ms(60'000);
  GrpcControlChannel channel;
  absl::Status status;
  bool done = false;
  Call<v1::GetViewResponse>(channel, node.address(), method, request, absl::Seconds(90),
                            [&](absl::StatusOr<v1::GetViewResponse> answer) {
                              status = answer.status();
                              done = true;
                            });
  // Answered after the long poll has arrived: calls of one connection come in order.
  bool second = false;
  Call<v1::GetViewResponse>(channel, node.address(), method, v1::GetViewRequest(),
                            absl::Seconds(90),
                            [&](absl::StatusOr<v1::GetViewResponse>) { second = true; });
  REQUIRE(Eventually([&] {
    channel.RunOnce();
    return second;
  }));
  node.process().Signal(SIGTERM);
  CHECK(node.process().Wait(absl::Seconds(30)) == 0);
  REQUIRE(Eventually([&] {
    channel.RunOnce();
    return done;
  }));
  INFO(status);
  CHECK(absl::IsUnavailable(status));
}

}  // namespace
}  // namespace verbena::test
