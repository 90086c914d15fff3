// An empty server joins real servers under load and gets its share of the data, by `verbena
// rebalance` and by the coordinator itself.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/faults/sum_load.h"
#include "tests/support/cluster.h"

namespace verbena::test {
namespace {

Finished Rebalance(const ProcessCluster& cluster, std::vector<std::string> arguments) {
  std::vector<std::string> argv = {CliPath(), "rebalance"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  argv.insert(argv.end(), {"--cluster", cluster.address(), "--timeout", "30"});
  return RunProgram(argv, absl::Seconds(120));
}

// Of two servers with the table "sums", which moves too coarsely alone: 96 chunks besides.
void AddTable(const ProcessCluster& cluster) {
  ClientOptions options;
  options.cluster = cluster.address();
  options.transport = TestTransport();
  options.timeout = absl::Seconds(60);
  auto client = Client::Connect(options);
  REQUIRE(client.ok());
  v1::TableSpec spec;
  spec.set_name("still");
  spec.add_shape(96 << 16);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  REQUIRE((*client)->CreateTable(spec).ok());
}

double Imbalance(const Finished& plan, const char* member = "imbalance") {
  double value = -1;
  REQUIRE(absl::SimpleAtod(JsonField(plan.out, member), &value));
  return value;
}

TEST_CASE("an empty server joins under load: rebalance ends within 10 %, sums are exact") {
  const int replicas = GENERATE(1, 2);
  CAPTURE(replicas);
  ProcessCluster cluster({.servers = 2, .replicas = replicas});
  const Finished early = Rebalance(cluster, {"--apply"});
  CHECK(early.status == 0);
  CHECK(early.err.find("no partition is on a server yet") != std::string::npos);
  const Finished early_plan = Rebalance(cluster, {"--plan"});
  CHECK(early_plan.status == 0);
  CHECK(early_plan.out.find("no partition is on a server yet") != std::string::npos);
  SumLoad load(cluster);
  AddTable(cluster);
  load.AwaitMore();
  cluster.AddServer();
  const Finished plan = Rebalance(cluster, {"--plan", "--json"});
  INFO(plan.err);
  REQUIRE(plan.status == 0);
  CHECK(Imbalance(plan) > 1);
  CHECK(plan.out.find("\"to\": \"server-2\"") != std::string::npos);
  CHECK(plan.out.find("\"to\": \"server-0\"") == std::string::npos);
  const Finished applied = Rebalance(cluster, {"--apply"});
  INFO(applied.err << cluster.logs());
  REQUIRE(applied.status == 0);
  CHECK(applied.err.find("balanced: ") != std::string::npos);
  const Finished after = Rebalance(cluster, {"--plan", "--json"});
  REQUIRE(after.status == 0);
  CHECK(Imbalance(after) <= 0.1);
  CHECK(after.out.find("\"moves\": []") != std::string::npos);
  load.AwaitMore();
  load.Check();
  CHECK(cluster.CheckReplicated());
}

TEST_CASE("a restarted server that has followers alone gets primaries under load, sums are exact") {
  ProcessCluster cluster({.servers = 3, .replicas = 2});
  SumLoad load(cluster);
  AddTable(cluster);
  load.AwaitMore();
  cluster.KillServer(2);
  cluster.RestartServer(2);
  REQUIRE(cluster.WaitReplicated(absl::Seconds(60)));
  const Finished plan = Rebalance(cluster, {"--plan", "--json"});
  INFO(plan.err);
  REQUIRE(plan.status == 0);
  CHECK(Imbalance(plan, "primaries_imbalance") > 1);
  const Finished applied = Rebalance(cluster, {"--apply"});
  INFO(applied.err << cluster.logs());
  REQUIRE(applied.status == 0);
  const Finished after = Rebalance(cluster, {"--plan", "--json"});
  REQUIRE(after.status == 0);
  CHECK(Imbalance(after) <= 0.1);
  CHECK(Imbalance(after, "primaries_imbalance") <= 0.2);
  load.AwaitMore();
  load.Check();
  CHECK(cluster.CheckReplicated());
}

TEST_CASE("the coordinator balances by itself under load, at a limited rate") {
  ProcessCluster cluster(
      {.servers = 2,
       .replicas = 2,
       .coordinator_options = {"--rebalance", "--rebalance-every", "1", "--move-rate", "64MiB"}});
  SumLoad load(cluster);
  AddTable(cluster);
  load.AwaitMore();
  cluster.AddServer();
  const bool balanced = Eventually(
      [&] {
        const Finished plan = Rebalance(cluster, {"--plan", "--json"});
        return plan.status == 0 && Imbalance(plan) <= 0.1;
      },
      absl::Seconds(60));
  INFO(cluster.logs());
  CHECK(balanced);
  load.AwaitMore();
  load.Check();
  // Nobody else has moved anything.
  CHECK(cluster.logs().find("/verbena.v1.Cluster/MovePartitions") != std::string::npos);
}

}  // namespace
}  // namespace verbena::test
