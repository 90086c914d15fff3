// Partitions move between real servers, and servers are drained, while clients push and pull.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/faults/sum_load.h"
#include "tests/support/cluster.h"

namespace verbena::test {
namespace {

Finished Cli(const ProcessCluster& cluster, std::vector<std::string> arguments) {
  std::vector<std::string> argv = {CliPath()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  argv.insert(argv.end(), {"--cluster", cluster.address(), "--timeout", "30"});
  return RunProgram(argv, absl::Seconds(120));
}

int Primaries(const ProcessCluster& cluster, const std::string& server) {
  const Finished list = Cli(cluster, {"partition", "list", "--json"});
  REQUIRE(list.status == 0);
  const std::string primary = absl::StrCat("\"primary\": {\"server\": \"", server, "\"");
  int count = 0;
  for (size_t at = 0; (at = list.out.find(primary, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST_CASE("partitions of a table move under load: sums are exact and no call fails") {
  const int replicas = GENERATE(1, 2);
  CAPTURE(replicas);
  ProcessCluster cluster({.servers = 3, .replicas = replicas});
  SumLoad load(cluster);
  load.AwaitMore();
  for (const char* to : {"server-1", "server-2", "server-0"}) {
    const Finished moved = Cli(cluster, {"migrate", "--table", "sums", "--to", to});
    INFO(moved.err);
    INFO(cluster.logs());
    REQUIRE(moved.status == 0);
    load.AwaitMore();
  }
  const Finished again = Cli(cluster, {"migrate", "--table", "sums", "--to", "server-0"});
  CHECK(again.status == 0);
  CHECK(again.err.find("nothing to move: all of it is at server 'server-0'") != std::string::npos);
  load.Check();
}

TEST_CASE("a drained server is stopped under load: sums are exact and no call fails") {
  const int replicas = GENERATE(1, 2);
  CAPTURE(replicas);
  ProcessCluster cluster({.servers = 3, .replicas = replicas});
  SumLoad load(cluster);
  load.AwaitMore();
  REQUIRE(Primaries(cluster, "server-1") > 0);
  const Finished drained = Cli(cluster, {"drain", "server-1"});
  INFO(drained.err);
  INFO(cluster.logs());
  REQUIRE(drained.status == 0);
  CHECK(Primaries(cluster, "server-1") == 0);
  cluster.KillServer(1);
  load.AwaitMore();
  load.Check();
}

TEST_CASE("nothing to cancel is no failure of migrate, drain and rebalance") {
  ProcessCluster cluster({.servers = 2, .replicas = 1});
  SumLoad load(cluster);
  load.AwaitMore();
  const Finished migrate = Cli(cluster, {"migrate", "--table", "sums", "--cancel"});
  CHECK(migrate.status == 0);
  CHECK(migrate.err.find("no move of these partitions is in progress") != std::string::npos);
  const Finished drain = Cli(cluster, {"drain", "server-1", "--cancel"});
  CHECK(drain.status == 0);
  CHECK(drain.err.find("server 'server-1' is not being drained") != std::string::npos);
  const Finished rebalance = Cli(cluster, {"rebalance", "--cancel"});
  CHECK(rebalance.status == 0);
  CHECK(Cli(cluster, {"drain", "server-9", "--cancel"}).status == 1);
  // Each table of several has to be there.
  const Finished both =
      Cli(cluster, {"migrate", "--table", "sums", "--table", "none", "--to", "server-1"});
  CHECK(both.status == 1);
  CHECK(both.err.find("there is no table 'none'") != std::string::npos);
  load.Check();
}

TEST_CASE("sync training has the same bits while its partitions move without replicas") {
  const TemporaryDirectory directory;
  std::string text;
  for (int row = 0; row < 4000; ++row) {
    absl::StrAppend(&text, row % 2, " ", 1 + row % 50, ":1 ", 51 + row % 37, ":1\n");
  }
  WriteFile(directory.File("train"), text);
  ProcessCluster cluster({.servers = 3, .replicas = 1});
  const auto train = [&](const std::string& job) {
    return std::vector<std::string>{TrainPath(),
                                    "--cluster",
                                    cluster.address(),
                                    "--format",
                                    "libsvm",
                                    "--model",
                                    "mlp",
                                    "--data",
                                    directory.File("train"),
                                    "--workers",
                                    "2",
                                    "--job",
                                    job,
                                    "--batch",
                                    "64",
                                    "--steps",
                                    "1500",
                                    "--transport",
                                    TestTransport(),
                                    "--checksum",
                                    "--json",
                                    "--log-steps"};
  };
  const Finished still = RunProgram(train("still"));
  INFO(still.err);
  REQUIRE(still.status == 0);
  Process moving(train("moving"));
  REQUIRE(moving.WaitFor(") step 20\n"));
  int moves = 0;
  for (; moves < 6 && moving.running(); ++moves) {
    const Finished drained = Cli(cluster, {"drain", absl::StrCat("server-", moves % 3)});
    INFO(drained.err << cluster.logs());
    REQUIRE(drained.status == 0);
    REQUIRE(Cli(cluster, {"drain", absl::StrCat("server-", moves % 3), "--cancel"}).status == 0);
  }
  const std::optional<int> status = moving.Wait(absl::Seconds(120));
  INFO(moving.err_end());
  REQUIRE(status == 0);
  CAPTURE(moves);
  CHECK(moves >= 2);
  CHECK(JsonField(moving.out(), "parameters_xxh64") == JsonField(still.out, "parameters_xxh64"));
}

}  // namespace
}  // namespace verbena::test
