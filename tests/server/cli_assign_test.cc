// `verbena table assign` against a real cluster: a dense table and rows from files, and its errors.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "tests/server/checkpoint/import_fixture.h"
#include "tests/server/cli_fixture.h"
#include "verbena/client.h"

namespace verbena::test {
namespace cli_assign_test {

using Catch::Matchers::Contains;
using checkpoint::test::Raw;

struct World {
  World() {
    std::vector<float> weights(600), rows(8);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i) / 4;
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
    file = directory.path() + "/model.safetensors";
    std::ofstream(file, std::ios::binary)
        << checkpoint::test::File({{"w", "F32", "20,30", Raw(weights)},
                                   {"items.values", "F32", "2,4", Raw(rows)},
                                   {"items.keys", "I64", "2", Raw<int64_t>({70, 80})}});
  }
  Finished Assign(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"table", "assign"});
    arguments.insert(arguments.end(), {"--cluster", cluster.address(), "--from", file});
    return Cli(arguments);
  }
  std::unique_ptr<Client> Join() {
    auto client = Client::Connect(
        {.cluster = cluster.address(), .job = "demo", .transport = TestTransport()});
    INFO(client.status());
    REQUIRE(client.ok());
    return *std::move(client);
  }

  TemporaryDirectory directory;
  ProcessCluster cluster{{.servers = 1, .shards = 2}};
  std::string file;
};

v1::TableSpec Spec(const std::string& name, v1::Consistency consistency) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_consistency(consistency);
  spec.mutable_optimizer()->set_name("adam");
  spec.mutable_optimizer()->set_rate(0.5);
  return spec;
}

TEST_CASE("table assign: a table begins with a model's weights, between two runs of its job") {
  World world;
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  {
    auto client = world.Join();
    v1::TableSpec dense = Spec("w", consistency);
    dense.add_shape(20);
    dense.add_shape(30);
    REQUIRE(client->CreateTable(dense).ok());
    v1::TableSpec rows = Spec("items", consistency);
    rows.set_dim(4);
    REQUIRE(client->CreateTable(rows).ok());
    // Steps are those of the job's workers alone.
    if (consistency == v1::CONSISTENCY_SYNC) {
      const Finished busy = world.Assign({"w"});
      CHECK(busy.status == 1);
      CHECK_THAT(busy.err, Contains("demo"));
    }
  }
  const Finished run = world.Assign({"w", "--json"});
  INFO(run.out << run.err);
  REQUIRE(run.status == 0);
  CHECK_THAT(run.err, Contains("table 'w' has 600 parameters of tensor 'w' (F32)"));
  CHECK(Json(run.out)["elements"].number() == 600);
  const Finished rows = world.Assign({"items", "--tensor", "items.values", "--keys", "items.keys"});
  INFO(rows.out << rows.err);
  REQUIRE(rows.status == 0);
  CHECK_THAT(rows.err, Contains("table 'items' has 2 rows of tensor 'items.values'"));
  auto client = world.Join();
  const Table table = *client->OpenTable("w");
  const Region region = *client->AllocateRegion(table.bytes());
  REQUIRE(client->Pull(table, region).Wait().ok());
  CHECK(region.floats()[599] == 599.0f / 4);
  const Table items = *client->OpenTable("items");
  REQUIRE(client->Lookup(items, {80, 70}, region).Wait().ok());
  CHECK(region.floats()[0] == 4);
  CHECK(region.floats()[7] == 3);
}

TEST_CASE("table assign: errors name the table, the tensor and the allowed shape") {
  World world;
  {
    auto client = world.Join();
    v1::TableSpec dense = Spec("w", v1::CONSISTENCY_SYNC);
    dense.add_shape(30);
    dense.add_shape(20);
    REQUIRE(client->CreateTable(dense).ok());
  }
  CHECK_THAT(world.Assign({"v"}).err,
             Contains("there is no table 'v'; 'verbena tables' lists them"));
  CHECK_THAT(world.Assign({"w"}).err, Contains("shape [20, 30]; table 'w' needs [30, 20]"));
  CHECK_THAT(world.Assign({"w", "--tensor", "x"}).err, Contains("no tensor 'x'; it has 'w'"));
  CHECK_THAT(world.Assign({"w", "--keys", "items.keys"}).err,
             Contains("--keys is 'items.keys', and table 'w' is dense; allowed: embedding tables"));
  CHECK(Cli({"table", "assign", "w"}).status == 2);
  world.file += ".gone";
  const Finished gone = world.Assign({"w"});
  CHECK(gone.status == 1);
  CHECK_THAT(gone.err, Contains("model.safetensors.gone"));
}

}  // namespace cli_assign_test
}  // namespace verbena::test
