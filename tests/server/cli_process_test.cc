// The operator's program against real clusters: its output, the problems it reports, its exit
// status.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "server/cli/verbena/json_fields.h"
#include "tests/server/access_fixture.h"
#include "tests/server/cli_fixture.h"
#include "tests/server/daemon_fixture.h"
#include "tests/support/json_check.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;
using Catch::Matchers::StartsWith;

// A worker of job "demo" with a table of one chunk, so that one shard gets all of its requests.
class Worker {
 public:
  explicit Worker(const ProcessCluster& cluster) {
    auto client = Client::Connect({.cluster = cluster.address(),
                                   .job = "demo",
                                   .name = "worker\xe2\x80\xae-a",  // would turn the line around
                                   .transport = TestTransport()});
    INFO(client.status());
    REQUIRE(client.ok());
    client_ = std::move(*client);
    v1::TableSpec spec;
    spec.set_name("weights");
    spec.add_shape(100);
    spec.add_shape(10);
    spec.set_consistency(v1::CONSISTENCY_ASYNC);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(0.5);
    auto table = client_->CreateTable(spec);
    INFO(table.status());
    REQUIRE(table.ok());
    table_ = *table;
    auto region = client_->AllocateRegion(table_.bytes());
    REQUIRE(region.ok());
    region_ = *region;
  }
  void Step() {
    REQUIRE(client_->Push(table_, region_).Wait().ok());
    REQUIRE(client_->Pull(table_, region_).Wait().ok());
  }
  void Leave() { client_.reset(); }
  uint64_t incarnation() const { return client_->run().incarnation; }

 private:
  std::unique_ptr<Client> client_;
  Table table_;
  Region region_;
};

// Whether a process has taken a signal into its own hands: before it has, a signal may meet the
// handlers of this test instead.
bool HasBlocked(int signal, pid_t pid) {
  const std::string status = ReadFile("/proc/" + std::to_string(pid) + "/status");
  const size_t at = status.find("SigBlk:");
  if (at == std::string::npos) return false;
  return (std::stoull(status.substr(at + 7), nullptr, 16) >> (signal - 1) & 1) != 0;
}

// The shard of a `shards --json` that is marked, and that it is the only one.
std::vector<Json> Hottest(const Json& answer) {
  std::vector<Json> hottest;
  for (int i = 0; i < answer["servers"].size(); ++i) {
    const Json shards = answer["servers"][i]["shards"];
    for (int k = 0; k < shards.size(); ++k) {
      if (shards[k]["hottest"].truth()) hottest.push_back(shards[k]);
    }
  }
  return hottest;
}

TEST_CASE("every command prints text and JSON about a working cluster") {
  ProcessCluster cluster;
  Worker worker(cluster);
  for (int i = 0; i < 5; ++i) worker.Step();
  const auto text = [&](const std::string& command) {
    const Finished run = Cli({command, "--cluster", cluster.address()});
    INFO(run.out << run.err);
    CHECK(run.status == 0);
    CHECK(run.err.empty());
    return run.out;
  };
  const auto json = [&](const std::string& command) {
    const Finished run = Cli({"--cluster", cluster.address(), "--json", command});
    CHECK(run.status == 0);
    CHECK(run.err.empty());
    CHECK(run.out.find('\n') == run.out.size() - 1);
    return Json(run.out);
  };

  SECTION("status") {
    CHECK_THAT(text("status"), StartsWith("healthy\n") &&
                                   Contains("coordinator " + cluster.address()) &&
                                   Contains("server-1") && Contains("demo") && Contains("weights"));
    const Json status = json("status");
    CHECK(status["healthy"].truth());
    CHECK(status["problems"].size() == 0);
    CHECK(status["cluster"]["coordinator"].text() == cluster.address());
    CHECK(status["cluster"]["coordinator_error"].null());
    CHECK(status["cluster"]["term"].number() == 1);
    CHECK(status["cluster"]["expected_servers"].number() == 2);
    CHECK(status["partitions"]["total"].number() == 256);
    CHECK(status["partitions"]["lost"].number() == 0);
    REQUIRE(status["servers"].size() == 2);
    CHECK(status["servers"][0]["state"].text() == "alive");
    CHECK(status["servers"][0]["answers"].truth());
    CHECK(status["servers"][0]["shards"][1]["partitions"].number() == 64);
    CHECK(status["jobs"].size() == 1);
    CHECK(status["tables"].size() == 1);
  }
  SECTION("tables") {
    CHECK_THAT(text("tables"), Contains("weights") && Contains("[100, 10]") && Contains("async") &&
                                   Contains("sgd 0.5") && Contains("4.0 kB"));
    const Json table = json("tables")["tables"][0];
    CHECK(table["name"].text() == "weights");
    CHECK(table["id"].number() == 1);
    CHECK(table["job"].text() == "demo");
    CHECK(table["shape"][0].number() == 100);
    CHECK(table["shape"][1].number() == 10);
    CHECK(table["dtype"].text() == "f32");
    CHECK(table["gradient_dtype"].text() == "f32");
    CHECK(table["push_codec"].text() == "none");
    CHECK(table["pull_codec"].text() == "none");
    CHECK(table["consistency"].text() == "async");
    CHECK(table["optimizer"]["rate"].number() == 0.5);
    CHECK(table["bytes"].number() == 4000);
    CHECK(table["lost_partitions"].size() == 0);
  }
  SECTION("jobs") {
    CHECK_THAT(text("jobs"), Contains("demo"));
    const Json job = json("jobs")["jobs"][0];
    CHECK(job["name"].text() == "demo");
    CHECK(job["generation"].number() == 1);
    CHECK(job["expected_workers"].number() == 1);
    CHECK(job["members"].size() == 1);
    CHECK(job["members"][0]["rank"].number() == 0);
    CHECK(job["departed_ranks"].size() == 0);
  }
  SECTION("workers") {
    CHECK_THAT(text("workers"), Contains("worker\\u202e-a") && Contains("demo"));
    const Json answer = json("workers");
    CHECK(answer["unanswered_servers"].size() == 0);
    REQUIRE(answer["workers"].size() == 1);
    const Json row = answer["workers"][0];
    CHECK(row["job"].text() == "demo");
    CHECK(row["rank"].number() == 0);
    CHECK(row["incarnation"].number() == static_cast<double>(worker.incarnation()));
    CHECK(row["name"].text() == "worker\xe2\x80\xae-a");
    const std::string transport = TestTransport() == "auto" ? "shm" : TestTransport();
    CHECK(row["lanes"][transport].number() >= 1);
  }
  SECTION("shards") {
    const std::string transport = TestTransport() == "auto" ? "shm" : TestTransport();
    const std::string shown = text("shards");
    CHECK_THAT(shown, Contains("<- hottest\n") && Contains("1 " + transport) &&
                          Contains("REASON") && Contains("20.0 kB"));
    CHECK(shown.find("hottest") == shown.rfind("hottest"));
    const Json answer = json("shards");
    CHECK(answer["interval_s"].null());
    const std::vector<Json> hottest = Hottest(answer);
    REQUIRE(hottest.size() == 1);
    CHECK(hottest[0]["pushes"].number() == 5);
    CHECK(hottest[0]["pulls"].number() == 5);
    CHECK(hottest[0]["push_bytes"].number() == 20'000);
    CHECK(hottest[0]["pull_bytes"].number() == 20'000);
    CHECK(hottest[0]["resident_bytes"].number() >= 4000);
    CHECK(hottest[0]["cpu_seconds"].number() > 0);
    CHECK(hottest[0]["partitions"].number() == 64);
    CHECK(hottest[0]["rates"].null());
    REQUIRE(hottest[0]["lanes"].size() == 1);
    CHECK(hottest[0]["lanes"][0]["worker"].number() == static_cast<double>(worker.incarnation()));
    CHECK(hottest[0]["lanes"][0]["transport"].text() == transport);
    CHECK_FALSE(hottest[0]["lanes"][0]["reason"].text().empty());
  }
}

TEST_CASE("objects of a cluster have the members that the reference describes") {
  ProcessCluster cluster({.servers = 1, .shards = 1});
  Worker worker(cluster);
  worker.Step();
  const std::vector<std::pair<std::string, std::vector<std::string>>> commands = {
      {"status", {"status"}},
      {"tables", {"tables"}},
      {"jobs", {"jobs"}},
      {"limits", {"limits", "demo", "--tables", "5"}},  // a job with limits can be forgotten
      {"workers", {"workers"}},
      {"shards", {"shards"}},
      {"partition list", {"partition", "list"}},
      {"partition reset", {"partition", "reset", "weights", "--yes"}},
      {"table drop", {"table", "drop", "weights", "--yes"}},
      {"job forget", {"job", "forget", "demo", "--yes"}}};
  for (auto [name, command] : commands) {
    if (name == "partition reset") worker.Leave();
    command.insert(command.end(), {"--json", "--cluster", cluster.address()});
    CHECK(Undescribed(Json(Cli(command).out).value(), name, cli::JsonObjects()) == "");
  }
}

TEST_CASE("watching shows rates and the hottest shard until a signal") {
  ProcessCluster cluster;
  Worker worker(cluster);
  Process text({CliPath(), "shards", "--cluster", cluster.address(), "--watch", "0.2"});
  Process json({CliPath(), "shards", "--cluster", cluster.address(), "--watch", "0.2", "--json"});
  const auto seen = [&] {
    worker.Step();
    return text.out().find("<- hottest\n") != std::string::npos &&
           json.out().find("\"hottest\": true") != std::string::npos;
  };
  REQUIRE(Eventually(seen));
  // The coordinator's absence ends nothing.
  cluster.coordinator().Signal(SIGKILL);
  CHECK(text.WaitFor("the coordinator " + cluster.address() + " cannot be reached"));
  text.Signal(SIGINT);
  CHECK(text.Wait() == 0);
  json.Signal(SIGTERM);
  CHECK(json.Wait() == 0);
  CHECK(text.err().empty());
  CHECK(json.err().empty());
  CHECK_THAT(text.out(), Contains("PUSH MB/s") && Contains("CPU %"));

  std::istringstream lines(json.out());
  std::string line;
  bool any = false;
  while (std::getline(lines, line)) {
    const Json answer(line);
    CHECK(answer["interval_s"].number() > 0);
    for (const Json& shard : Hottest(answer)) {
      any = true;
      CHECK(shard["rates"]["pushes_per_s"].number() + shard["rates"]["pulls_per_s"].number() > 0);
      CHECK(shard["rates"]["cpu"].number() >= 0);
    }
  }
  CHECK(any);
}

TEST_CASE("a stopped server is named, and does not keep the others from being shown") {
  // It must not become silent in the middle of this.
  ProcessCluster cluster({.lease_ms = 120'000});
  cluster.server(1).Signal(SIGSTOP);
  const auto run = [&](const std::string& command, bool json) {
    std::vector<std::string> arguments = {command, "--cluster", cluster.address(), "--timeout",
                                          "0.5"};
    if (json) arguments.push_back("--json");
    const Finished result = Cli(arguments);
    INFO(command << ": " << result.out << result.err);
    CHECK(result.status == 1);
    CHECK(result.err.empty());
    return result.out;
  };
  CHECK_THAT(run("status", false), StartsWith("1 thing is wrong:\n  - server 'server-1' at ") &&
                                       Contains("does not answer: no statistics within 500ms") &&
                                       Contains("server-0"));
  const Json status(run("status", true));
  CHECK_FALSE(status["healthy"].truth());
  CHECK_THAT(status["problems"][0].text(), Contains("server-1"));
  CHECK_THAT(run("shards", false), Contains("server-0      0") && Contains("server-1      -") &&
                                       Contains("did not answer: no statistics within 500ms"));
  const Json servers = Json(run("shards", true))["servers"];
  CHECK(servers.size() == 2);
  for (int i = 0; i < servers.size(); ++i) {
    const bool answers = servers[i]["name"].text() == "server-0";
    CHECK(servers[i]["answers"].truth() == answers);
    CHECK(servers[i]["error"].null() == answers);
    CHECK(servers[i]["shards"].size() == (answers ? 2 : 0));
  }
  CHECK_THAT(run("workers", false),
             Contains("server-1") && Contains("lanes to it are not counted"));
  CHECK(Json(run("workers", true))["unanswered_servers"].size() == 1);
  // The coordinator answers alone about dense tables.
  CHECK(Cli({"tables", "--cluster", cluster.address()}).status == 0);

  cluster.server(1).Signal(SIGCONT);
  CHECK(Eventually([&] { return Cli({"status", "--cluster", cluster.address()}).status == 0; }));
}

// Takes 4 s: longer than gRPC's own limit for an attempt to connect, which ended these commands.
TEST_CASE("regression: commands wait for stopped processes until --timeout has passed") {
  ProcessCluster cluster({.lease_ms = 120'000});
  Daemon coordinator({"--coordinator", "--shards", "0"});
  coordinator.Ready();
  coordinator.process().Signal(SIGSTOP);
  cluster.server(1).Signal(SIGSTOP);
  Process unanswered({CliPath(), "status", "--cluster", coordinator.address(), "--timeout", "4"});
  const Finished status = Cli({"status", "--cluster", cluster.address(), "--timeout", "4"});
  CHECK(status.status == 1);
  CHECK_THAT(status.out, Contains("does not answer: no statistics within 4s") &&
                             Contains("workers that use shm wait until it is killed or continues"));
  CHECK(unanswered.Wait() == 3);
  CHECK_THAT(unanswered.err(), Contains("did not answer within 4s"));
  // One that continues in time has answered.
  Process answered({CliPath(), "status", "--cluster", coordinator.address(), "--timeout", "60"});
  REQUIRE(Eventually([&] { return HasBlocked(SIGINT, answered.pid()); }));
  coordinator.process().Signal(SIGCONT);
  CHECK(answered.Wait() == 1);  // no server has joined
}

// With --timeout's ten minutes RunProgram() would end it, with another status.
TEST_CASE("regression: status --wait ends with the wait, though a process does not respond") {
  ProcessCluster cluster({.lease_ms = 120'000});
  Daemon coordinator({"--coordinator", "--shards", "0"});
  coordinator.Ready();
  coordinator.process().Signal(SIGSTOP);
  cluster.server(1).Signal(SIGSTOP);
  const auto wait = [](const std::string& address) {
    return Cli({"status", "--wait", "0.5", "--timeout", "600", "--cluster", address});
  };
  const Finished silent = wait(coordinator.address());
  CHECK(silent.status == 3);
  CHECK_THAT(silent.err,
             Contains("did not become healthy within 500ms") && Contains("did not answer within"));
  const Finished in_part = wait(cluster.address());
  CHECK(in_part.status == 1);
  CHECK_THAT(in_part.err, Contains("did not become healthy within 500ms"));
  CHECK_THAT(in_part.out, Contains("does not answer: no statistics within"));
  coordinator.process().Signal(SIGCONT);
  cluster.server(1).Signal(SIGCONT);
}

TEST_CASE("a dead server is silent, and its restart has lost partitions") {
  ProcessCluster cluster({.lease_ms = 500});
  const Worker worker(cluster);
  const auto status = [&] { return Cli({"status", "--cluster", cluster.address()}); };
  // One of them holds the table's only chunk.
  for (const int server : {0, 1}) {
    const std::string name = "server '" + std::string("server-") + std::to_string(server) + "'";
    cluster.server(server).Signal(SIGKILL);
    CHECK(Eventually([&] {
      const Finished run = status();
      return run.status == 1 && run.out.find(name) != std::string::npos &&
             run.out.find(
                 "is silent: it has left or its lease has ended; its data (128 "
                 "partitions) are UNAVAILABLE") != std::string::npos;
    }));
    cluster.RestartServer(server);
  }
  const Finished run = status();
  INFO(run.out);
  CHECK(run.status == 1);
  CHECK_THAT(run.out, Contains("table 'weights' has lost 1 partition (") &&
                          Contains("until the table is dropped") && Contains("1 lost by a table"));
  const Json json(Cli({"tables", "--json", "--cluster", cluster.address()}).out);
  CHECK(json["tables"][0]["lost_partitions"].size() == 1);
}

TEST_CASE("a change right after the coordinator has started waits until its state is proved") {
  ProcessCluster cluster({.lease_ms = 4'000});
  cluster.server(0).Signal(SIGSTOP);
  cluster.RestartCoordinator();
  Process set({CliPath(), "limits", "demo", "--memory", "1GiB", "--cluster", cluster.address(),
               "--timeout", "60"});
  CHECK(Eventually([&] { return set.err().find("retrying for ") != std::string::npos; }));
  CHECK_THAT(set.err(), StartsWith("verbena: the coordinator " + cluster.address() +
                                   " is not ready (coordinator state: it may be an old one") &&
                            Contains("not heard since: server "));
  cluster.server(0).Signal(SIGCONT);
  CHECK(set.Wait() == 0);
  CHECK_THAT(set.out(), Contains("1.1 GB"));
  // One line for each reason, however often it is tried.
  const std::string err = set.err();
  CHECK(std::count(err.begin(), err.end(), '\n') <= 3);
}

TEST_CASE("the error about an unreachable coordinator names its address and the next step") {
  Daemon coordinator({"--coordinator", "--shards", "0"});
  coordinator.Ready();
  const std::string address = coordinator.address();
  SECTION("none there") {
    coordinator.process().Signal(SIGKILL);
    coordinator.process().Wait();
    const std::vector<std::vector<std::string>> commands = {
        {"status"},
        {"tables"},
        {"jobs"},
        {"limits", "demo"},
        {"workers"},
        {"shards"},
        {"partition", "list"},
        {"server", "remove", "server-0", "--yes"}};
    for (std::vector<std::string> command : commands) {
      command.insert(command.end(), {"--cluster", address});
      const Finished run = Cli(command);
      CHECK(run.status == 3);
      CHECK(run.out.empty());
      CHECK_THAT(run.err,
                 StartsWith("verbena: the coordinator " + address + " cannot be reached") &&
                     Contains("Connection refused") && Contains("VERBENA_CLUSTER"));
    }
  }
  SECTION("stopped") {
    coordinator.process().Signal(SIGSTOP);
    const Finished run = Cli({"status", "--cluster", address, "--timeout", "0.3"});
    CHECK(run.status == 3);
    CHECK_THAT(run.err,
               Contains(address + " did not answer within 300ms") && Contains("--timeout"));
    // Ctrl-C while it waits.
    Process waiting({CliPath(), "status", "--cluster", address, "--timeout", "60"});
    REQUIRE(Eventually([&] { return HasBlocked(SIGINT, waiting.pid()); }));
    waiting.Signal(SIGINT);
    CHECK(waiting.Wait() == 128 + SIGINT);
    CHECK(waiting.out().empty());
    CHECK(waiting.err().empty());
  }
  SECTION("a server that is not the coordinator") {
    Daemon server({"--join", address, "--name", "s"});
    server.Ready();
    const Finished run = Cli({"status", "--cluster", server.address()});
    CHECK(run.status == 3);
    CHECK_THAT(run.err,
               Contains(server.address() + " is not the coordinator") && Contains("--coordinator"));
  }
}

TEST_CASE("a coordinator that refuses its older state has answered: exit status 1") {
  ProcessCluster cluster({.servers = 1, .shards = 1});
  const Json status(Cli({"status", "--json", "--cluster", cluster.address()}).out);
  v1::HeartbeatRequest request;
  request.set_incarnation(static_cast<uint64_t>(status["servers"][0]["incarnation"].number()));
  request.set_server(true);
  v1::Seen* seen = request.mutable_seen();
  seen->set_cluster_id(status["cluster"]["id"].text());
  seen->set_term(static_cast<uint64_t>(status["cluster"]["term"].number()) + 1);
  seen->set_term_id(1);
  seen->set_revision(1'000'000);
  GrpcControlChannel channel(nullptr, nullptr);
  CHECK(absl::IsFailedPrecondition(CallMethod(&channel, cluster.address(),
                                              "/verbena.v1.Cluster/Heartbeat", request,
                                              v1::HeartbeatResponse::descriptor())));
  for (const char* command : {"status", "jobs", "limits"}) {
    std::vector<std::string> words = {command, "--cluster", cluster.address()};
    if (words.front() == "limits") words.emplace_back("demo");
    const Finished run = Cli(words);
    CHECK(run.status == 1);
    CHECK_THAT(run.err, Contains("answered with an error: coordinator state: it is not the one") &&
                            Contains("--accept-older-state=") && !Contains("cannot be reached"));
  }
  // To wait would not help.
  CHECK(Cli({"status", "--wait", "60", "--cluster", cluster.address()}).status == 1);
}

TEST_CASE("the environment names the cluster, and an empty cluster is not healthy") {
  Daemon coordinator({"--coordinator", "--shards", "0", "--expected-servers", "3"});
  coordinator.Ready();
  const Finished run =
      RunProgram({"/usr/bin/env", "VERBENA_CLUSTER=" + coordinator.address(), CliPath(), "status"});
  INFO(run.err);
  CHECK(run.status == 1);
  CHECK_THAT(run.out, Contains("0 of 3 expected servers are alive") && Contains("no servers\n") &&
                          Contains("no jobs\n") && Contains("no tables\n"));
}

TEST_CASE("a wrong command line ends with exit status 2") {
  const Finished run = Cli({"status", "--jsno"});
  CHECK(run.status == 2);
  CHECK(run.out.empty());
  CHECK_THAT(run.err, Equals("verbena: unknown option '--jsno' of 'verbena status'\n"
                             "'verbena status --help' has what is allowed.\n"));
}

TEST_CASE("a closed output ends the program without an error, a full disk with one") {
  ProcessCluster cluster({.servers = 1, .shards = 1});
  TemporaryDirectory directory;
  const auto run = [&](const std::string& to, std::vector<std::string> arguments) {
    // Descriptor 4 is a pipe whose only reader is gone.
    const std::string script = "mkfifo \"$0\"; exec 3<>\"$0\" 4>\"$0\" 3>&-; exec \"$@\" >" + to;
    std::vector<std::string> command = {
        "/bin/bash", "-c",        script,           directory.File("pipe"),
        CliPath(),   "--cluster", cluster.address()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return RunProgram(command, absl::Seconds(60));
  };
  SECTION("once") {
    const Finished result = run("&4", {"shards"});
    CHECK(result.status == 0);
    CHECK(result.err.empty());
  }
  SECTION("watching") {
    const Finished result = run("&4", {"shards", "--watch", "0.1"});
    CHECK(result.status == 0);
    CHECK(result.err.empty());
  }
  SECTION("a full disk") {
    const Finished result = run("/dev/full", {"status"});
    CHECK(result.status == 1);
    CHECK(result.err == "verbena: cannot write the output: No space left on device\n");
  }
}

}  // namespace
}  // namespace verbena::test
