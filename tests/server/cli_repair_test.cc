// Repair commands of the operator's program: servers that are removed, tables that are reset.
#include <signal.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/cli_fixture.h"
#include "tests/server/daemon_fixture.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

constexpr uint64_t kElements = 65536;  // of 1024 chunks: some in every partition

// The only worker of job "demo", with a dense async table.
class RepairWorker {
 public:
  explicit RepairWorker(const ProcessCluster& cluster) {
    auto client = Client::Connect(
        {.cluster = cluster.address(), .job = "demo", .transport = TestTransport()});
    INFO(client.status());
    REQUIRE(client.ok());
    client_ = std::move(*client);
    v1::TableSpec spec;
    spec.set_name("weights");
    spec.add_shape(kElements);
    spec.set_chunk_bytes(256);
    spec.set_consistency(v1::CONSISTENCY_ASYNC);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    auto table = client_->CreateTable(spec);
    INFO(table.status());
    REQUIRE(table.ok());
    table_ = *table;
    region_ = *client_->AllocateRegion(table_.bytes());
  }
  // Every parameter is 1 less.
  absl::Status Push() {
    std::vector<float> ones(kElements, 1.0f);
    std::memcpy(region_.data(), ones.data(), table_.bytes());
    return client_->Push(table_, region_).Wait();
  }
  // The sum of all parameters.
  absl::StatusOr<double> Sum() {
    const absl::Status pulled = client_->Pull(table_, region_).Wait();
    if (!pulled.ok()) return pulled;
    std::vector<float> values(kElements);
    std::memcpy(values.data(), region_.data(), table_.bytes());
    double sum = 0;
    for (const float value : values) sum += value;
    return sum;
  }

 private:
  std::unique_ptr<Client> client_;
  Table table_;
  Region region_;
};

Finished Operate(const ProcessCluster& cluster, std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--cluster", cluster.address()});
  return Cli(arguments);
}

void WaitSilent(const ProcessCluster& cluster, const std::string& name) {
  CHECK(Eventually([&] {
    return Operate(cluster, {"status"}).out.find("server '" + name + "' at ") !=
               std::string::npos &&
           Operate(cluster, {"status"}).out.find("is silent") != std::string::npos;
  }));
}

TEST_CASE("a dead server is removed, and the lost part of its table is reset to initial values") {
  ProcessCluster cluster({.lease_ms = 2'000});
  {
    RepairWorker worker(cluster);
    REQUIRE(worker.Push().ok());
    CHECK(*worker.Sum() == -static_cast<double>(kElements));
    const Finished alive = Operate(cluster, {"server", "remove", "server-1", "--yes"});
    CHECK(alive.status == 1);
    CHECK_THAT(alive.err, Contains("server 'server-1' at ") && Contains("is alive"));
    cluster.server(1).Signal(SIGKILL);
    WaitSilent(cluster, "server-1");

    const Finished asked = Operate(cluster, {"server", "remove", "server-1"});
    CHECK(asked.status == 2);
    CHECK_THAT(asked.err, Contains("with the last replica of 128 partitions (") &&
                              Contains("table 'weights' loses 128 partitions: ") &&
                              Contains("--yes agrees"));
    CHECK_THAT(Operate(cluster, {"status"}).out, Contains("is silent"));
    const Finished removed = Operate(cluster, {"server", "remove", "server-1", "--yes", "--json"});
    CHECK(removed.status == 0);
    CHECK_THAT(removed.err, Contains("server 'server-1' is removed") && Contains("'weights'"));
    CHECK(Json(removed.out)["removed"].text() == "server-1");
    CHECK(Json(removed.out)["lost_tables"][0].text() == "weights");
    CHECK(absl::IsDataLoss(worker.Push()));
    const Finished refused = Operate(cluster, {"partition", "reset", "weights", "--yes"});
    CHECK(refused.status == 1);
    CHECK_THAT(refused.err, Contains("job 'demo' of table 'weights' has workers"));
  }
  const Json list(Operate(cluster, {"partition", "list", "--json"}).out);
  REQUIRE(list["partitions"].size() == 256);
  int lost = 0;
  for (int i = 0; i < 256; ++i) {
    CHECK(list["partitions"][i]["primary"]["server"].text() == "server-0");
    lost += list["partitions"][i]["lost_by"].size();
  }
  CHECK(lost > 100);
  const Finished reset = Operate(cluster, {"partition", "reset", "weights", "--yes", "--json"});
  CHECK(reset.status == 0);
  CHECK(Json(reset.out)["reset_partitions"].size() == lost);
  CHECK(Operate(cluster, {"partition", "reset", "weights", "--partition", "1", "--yes"}).status ==
        1);

  // Where it was lost it has initial values; elsewhere it is as it was; and training goes on.
  RepairWorker worker(cluster);
  const absl::StatusOr<double> sum = worker.Sum();
  INFO(sum.status());
  REQUIRE(sum.ok());
  CHECK(*sum < 0);
  CHECK(*sum > -static_cast<double>(kElements));
  const absl::Status pushed = worker.Push();
  INFO(pushed);
  CHECK(pushed.ok());
  CHECK(*worker.Sum() == *sum - static_cast<double>(kElements));
}

TEST_CASE(
    "a table is dropped when the operator agrees; the question names the workers that use it") {
  ProcessCluster cluster({.servers = 1, .shards = 1});
  {
    RepairWorker worker(cluster);
    REQUIRE(worker.Push().ok());
    const Finished asked = Operate(cluster, {"table", "drop", "weights"});
    CHECK(asked.status == 2);
    CHECK_THAT(asked.err, Contains("table 'weights' is used by 1 worker of job 'demo'") &&
                              Contains("--yes agrees to it"));
    CHECK(worker.Push().ok());
  }
  const Finished restoring = Operate(cluster, {"table", "drop", "weights", "--restoring", "--yes"});
  CHECK(restoring.status == 1);
  CHECK_THAT(restoring.err, Contains("there is no table 'weights' that is being restored"));
  CHECK(Operate(cluster, {"table", "drop", "weights"}).status == 2);
  const Finished dropped = Operate(cluster, {"table", "drop", "weights", "--yes", "--json"});
  CHECK(dropped.status == 0);
  CHECK_THAT(dropped.err, Contains("table 'weights' of job 'demo' (id 1, [65536]) is dropped"));
  CHECK(Json(dropped.out)["dropped"].text() == "weights");
  CHECK(Json(dropped.out)["id"].number() == 1);
  CHECK_THAT(Operate(cluster, {"tables"}).out, Contains("no tables"));
  const Finished again = Operate(cluster, {"table", "drop", "weights", "--yes"});
  CHECK(again.status == 1);
  CHECK_THAT(again.err, Contains("there is no table 'weights'; 'verbena tables' lists them"));
}

// The lease is long: until it ends the view lists a killed server as if it were there.
TEST_CASE("after a server's restart its copies count when they are made again, and not before") {
  ProcessCluster cluster({.shards = 1, .lease_ms = 5'000, .replicas = 2});
  RepairWorker worker(cluster);
  REQUIRE(worker.Push().ok());
  REQUIRE(cluster.WaitReplicated());
  CHECK_THAT(Operate(cluster, {"status"}).out, Contains("; 0 partitions have fewer, 0 being"));
  CHECK(Operate(cluster, {"status", "--wait", "1"}).status == 0);
  cluster.KillServer(1);
  const Finished killed = Operate(cluster, {"status"});
  CHECK(killed.status == 1);
  CHECK_THAT(killed.out, Contains("256 partitions have fewer, 0 being copied\n") &&
                             Contains("does not answer"));
  const Finished waited = Operate(cluster, {"status", "--wait", "0.3"});
  CHECK(waited.status == 1);
  CHECK_THAT(waited.err, Contains("verbena: waiting: 256 partitions have fewer replicas") &&
                             Contains("did not become healthy within 300ms"));
  cluster.RestartServer(1);
  const Finished healthy = Operate(cluster, {"status", "--wait", "120"});
  INFO(healthy.err);
  CHECK(healthy.status == 0);
  CHECK_THAT(healthy.out,
             StartsWith("healthy\n") && Contains("; 0 partitions have fewer, 0 being"));
  // The other one may go now: the copies are there.
  cluster.KillServer(0);
  CHECK(worker.Push().ok());
}

TEST_CASE("a job that has ended is forgotten, and nothing else of the cluster with it") {
  ProcessCluster cluster;
  {
    RepairWorker worker(cluster);
    const Finished busy = Operate(cluster, {"job", "forget", "demo", "--yes"});
    CHECK(busy.status == 1);
    CHECK_THAT(busy.err, Contains("job 'demo' has 1 members"));
  }
  const Finished tables = Operate(cluster, {"job", "forget", "demo", "--yes"});
  CHECK(tables.status == 1);
  CHECK_THAT(tables.err, Contains("job 'demo' has tables (weights): drop them first"));
  // Its limits keep it in the list.
  CHECK(Operate(cluster, {"limits", "demo", "--tables", "3"}).status == 0);
  CHECK(Operate(cluster, {"table", "drop", "weights", "--yes"}).status == 0);
  const Finished asked = Operate(cluster, {"job", "forget", "demo"});
  CHECK(asked.status == 2);
  CHECK_THAT(asked.err, Contains("job 'demo' (generation 1) is forgotten, with its limits: ") &&
                            Contains("--yes agrees to it"));
  const Finished forgotten = Operate(cluster, {"job", "forget", "demo", "--yes", "--json"});
  CHECK(forgotten.status == 0);
  CHECK(Json(forgotten.out)["forgotten"].text() == "demo");
  CHECK(Json(Operate(cluster, {"jobs", "--json"}).out)["jobs"].size() == 0);
  const Finished again = Operate(cluster, {"job", "forget", "demo", "--yes"});
  CHECK(again.status == 1);
  CHECK_THAT(again.err, Contains("there is no job 'demo'"));
  // Its name may come again.
  RepairWorker worker(cluster);
  CHECK(worker.Push().ok());
  CHECK(Json(Operate(cluster, {"jobs", "--json"}).out)["jobs"][0]["generation"].number() == 2);
}

TEST_CASE("server remove and partition reset refuse unknown names, with the reason") {
  ProcessCluster cluster({.servers = 1, .shards = 1});
  const Finished no_server = Operate(cluster, {"server", "remove", "x", "--yes"});
  CHECK(no_server.status == 1);
  CHECK_THAT(no_server.err, StartsWith("verbena: ") && Contains("there is no server 'x'"));
  const Finished no_table = Operate(cluster, {"partition", "reset", "x", "--yes"});
  CHECK(no_table.status == 1);
  CHECK_THAT(no_table.err, Contains("there is no table 'x'"));
  CHECK(no_table.out.empty());
}

}  // namespace
}  // namespace verbena::test
