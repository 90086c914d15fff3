// `verbena table set`: the values of a table's optimizer while a worker trains, in reports and in a
// checkpoint.
#include <signal.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/cli_fixture.h"
#include "tests/server/daemon_fixture.h"
#include "verbena/client.h"

namespace verbena::test {
namespace cli_table_set_test {

using Catch::Matchers::Contains;

constexpr uint64_t kElements = 4096;

v1::TableSpec Spec(v1::Consistency consistency) {
  v1::TableSpec spec;
  spec.set_name("weights");
  spec.add_shape(kElements);
  spec.set_chunk_bytes(256);
  spec.set_consistency(consistency);
  spec.mutable_optimizer()->set_name("momentum");
  spec.mutable_optimizer()->set_rate(1);
  (*spec.mutable_optimizer()->mutable_parameters())["momentum"] = 0;
  return spec;
}

// The only worker of job "demo".
struct Trainer {
  Trainer(const ProcessCluster& cluster, v1::Consistency consistency) {
    auto connected = Client::Connect(
        {.cluster = cluster.address(), .job = "demo", .transport = TestTransport()});
    INFO(connected.status());
    REQUIRE(connected.ok());
    client = std::move(*connected);
    auto created = client->CreateTable(Spec(consistency));
    INFO(created.status());
    REQUIRE(created.ok());
    table = *created;
    region = *client->AllocateRegion(table.bytes());
  }
  // A step that pushes 1 everywhere; the first parameter after it.
  float Step() {
    std::vector<float> ones(kElements, 1.0f);
    std::memcpy(region.data(), ones.data(), table.bytes());
    Ticket push = client->Push(table, region);
    REQUIRE(client->EndStep(table).Wait().ok());
    REQUIRE(push.Wait().ok());
    REQUIRE(client->Pull(table, region).Wait().ok());
    std::vector<float> values(kElements);
    std::memcpy(values.data(), region.data(), table.bytes());
    for (const float value : values) REQUIRE(value == values[0]);
    return values[0];
  }
  std::unique_ptr<Client> client;
  Table table;
  Region region;
};

Finished Operate(const ProcessCluster& cluster, std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--cluster", cluster.address()});
  return Cli(arguments);
}

TEST_CASE("table set changes the rate of a table that is trained, and prints from which step on") {
  ProcessCluster cluster({.servers = 2, .shards = 1});
  Trainer trainer(cluster, v1::CONSISTENCY_SYNC);
  CHECK(trainer.Step() == -1);
  const Finished set = Operate(cluster, {"table", "set", "weights", "--rate", "0.5", "--json"});
  CHECK(set.status == 0);
  CHECK_THAT(set.err, Contains("table 'weights' is changed, in force from step 1 on"));
  CHECK(Json(set.out)["first_step"].number() == 1);
  CHECK(Json(set.out)["last_step"].number() == 1);
  CHECK(trainer.Step() == -1.5f);
  CHECK_THAT(Operate(cluster, {"tables"}).out, Contains("momentum 0.5 (changed)"));
  const Json tables(Operate(cluster, {"tables", "--json"}).out);
  CHECK(tables["tables"][0]["optimizer"]["rate"].number() == 0.5);
  CHECK(tables["tables"][0]["optimizer_changed"].truth());

  // The worker's own, for its open step.
  auto steps = std::make_shared<StepRange>();
  Ticket change = trainer.client->SetOptimizer(trainer.table, {.rate = 4}, {.in_force = steps});
  CHECK(trainer.Step() == -5.5f);
  REQUIRE(change.Wait().ok());
  CHECK(steps->first == 2);
  CHECK(steps->last == 2);
}

TEST_CASE("table set: a refusal names the allowed values") {
  ProcessCluster cluster({.servers = 1, .shards = 1});
  Trainer trainer(cluster, v1::CONSISTENCY_ASYNC);
  const auto refused = [&](std::vector<std::string> arguments, const std::string& why) {
    arguments.insert(arguments.begin(), {"table", "set"});
    const Finished set = Operate(cluster, arguments);
    CHECK(set.status == 1);
    CHECK_THAT(set.err, Contains(why));
  };
  refused({"weights", "--param", "beta1=0.5"},
          "there is no value \"beta1\" to change; allowed: \"rate\" [0,");
  refused({"weights", "--param", "momentum=1"}, "\"momentum\" is 1; allowed: [0, 1) in f32");
  refused({"other", "--rate", "1"}, "there is no table 'other'");
  const Finished set = Operate(cluster, {"table", "set", "weights", "--param", "momentum=0.5"});
  CHECK(set.status == 0);
  CHECK_THAT(set.err, Contains("in force now"));
  CHECK_THAT(Operate(cluster, {"tables"}).out, Contains("optimizer.parameters {momentum: 0.5}"));
}

TEST_CASE(
    "regression: table set: a server that does not answer is no coordinator, nor holds a signal") {
  ProcessCluster cluster({.servers = 1, .shards = 1});
  Trainer trainer(cluster, v1::CONSISTENCY_ASYNC);
  cluster.server(0).Signal(SIGSTOP);
  const std::vector<std::string> set = {"table", "set", "weights", "--rate", "0.5"};
  std::vector<std::string> brief = set;
  brief.insert(brief.end(), {"--timeout", "3"});
  const Finished late = Operate(cluster, brief);
  CHECK(late.status == 1);
  CHECK_THAT(late.err, Contains("server 'server-0'"));

  std::vector<std::string> words = {CliPath(), "--cluster", cluster.address(), "--timeout", "600"};
  words.insert(words.end(), set.begin(), set.end());
  Process waiting(words);
  CHECK(Eventually([&] {
    return Operate(cluster, {"jobs", "--json"}).out.find("verbena table set") != std::string::npos;
  }));
  waiting.Signal(SIGINT);
  CHECK(waiting.Wait() == 128 + SIGINT);
  cluster.server(0).Signal(SIGCONT);
}

TEST_CASE(
    "a checkpoint has the optimizer values in force, and a restored table goes on with them") {
  ProcessCluster cluster({.servers = 2, .shards = 1});
  TemporaryDirectory directory;
  {
    Trainer trainer(cluster, v1::CONSISTENCY_SYNC);
    CHECK(trainer.Step() == -1);
    REQUIRE(trainer.client->SetOptimizer(trainer.table, {.rate = 0.5}).Wait().ok());
    CHECK(trainer.Step() == -1.5f);
    const Finished saved = Operate(cluster, {"checkpoint", "save", directory.path()});
    INFO(saved.err);
    REQUIRE(saved.status == 0);
  }
  const Finished restored =
      Operate(cluster, {"checkpoint", "restore", directory.path(), "--replace", "--yes"});
  INFO(restored.err);
  REQUIRE(restored.status == 0);
  Trainer trainer(cluster, v1::CONSISTENCY_SYNC);
  CHECK(trainer.Step() == -2);
}

}  // namespace cli_table_set_test
}  // namespace verbena::test
