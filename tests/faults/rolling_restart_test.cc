// `verbena rolling-restart` on real servers, while clients push and pull.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/faults/sum_load.h"
#include "tests/support/cluster.h"

namespace verbena::test {
namespace {

// A command that names the server in a file, and ends when the file is gone.
std::string Ask(const std::string& file) {
  return absl::StrCat("echo $VERBENA_SERVER_NAME > ", file, ".new && mv ", file, ".new ", file,
                      " && while test -e ", file, "; do sleep 0.05; done");
}

std::vector<std::string> Command(const ProcessCluster& cluster, std::vector<std::string> more) {
  more.insert(more.begin(), {CliPath(), "rolling-restart", "--cluster", cluster.address()});
  return more;
}

TEST_CASE("servers are restarted one after the other under load: no call fails") {
  const int replicas = GENERATE(1, 2);
  CAPTURE(replicas);
  TemporaryDirectory directory;
  const std::string file = directory.File("restart");
  ProcessCluster cluster({.servers = 3, .replicas = replicas});
  SumLoad load(cluster);
  load.AwaitMore();
  std::vector<std::string> more = {"--command", Ask(file), "--json"};
  if (replicas == 1) more.emplace_back("--drain");
  Process restart(Command(cluster, more));
  for (int i = 0; i < 3; ++i) {
    const std::string name = absl::StrCat("server-", i, "\n");
    INFO(restart.err() << cluster.logs());
    REQUIRE(Eventually([&] { return ReadFile(file) == name; }, absl::Seconds(60)));
    cluster.server(i).Signal(SIGTERM);
    REQUIRE(cluster.server(i).Wait().has_value());
    cluster.RestartServer(i);
    REQUIRE(unlink(file.c_str()) == 0);
    load.AwaitMore();
  }
  const std::optional<int> status = restart.Wait();
  INFO(restart.err());
  CHECK(status == 0);
  CHECK(JsonField(restart.out(), "restarted") == "3");
  CHECK(cluster.CheckReplicated());
  load.Check();
}

TEST_CASE("a rolling restart is refused, or stops, and names the servers that are left") {
  SECTION("one replica") {
    ProcessCluster cluster({.servers = 2, .replicas = 1});
    const Finished refused = RunProgram(Command(cluster, {"--command", "true"}));
    CHECK(refused.status == 1);
    CHECK_THAT(refused.err, Catch::Matchers::Contains("with --drain they are moved"));
  }
  SECTION("the command fails") {
    ProcessCluster cluster({.servers = 3, .replicas = 2});
    SumLoad load(cluster);
    REQUIRE(cluster.WaitReplicated());
    const Finished failed = RunProgram(Command(cluster, {"--command", "exit 7"}));
    CHECK(failed.status == 1);
    CHECK_THAT(failed.err, Catch::Matchers::Contains(
                               "--command ended with exit status 7 for server "
                               "'server-0'; not restarted: server-0, server-1, server-2"));
    load.Check();
  }
  SECTION("an unknown server") {
    ProcessCluster cluster({.servers = 2, .replicas = 2});
    const Finished unknown =
        RunProgram(Command(cluster, {"--server", "server-9", "--command", "true"}));
    CHECK(unknown.status == 1);
    CHECK_THAT(unknown.err, Catch::Matchers::Contains("there is no server 'server-9'"));
  }
}

}  // namespace
}  // namespace verbena::test
