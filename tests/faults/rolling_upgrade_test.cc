// A cluster is upgraded in the order of docs/operations.md while clients push and pull.
#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/faults/upgrade_cluster.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("coordinator, then servers are upgraded under load, and once back: no call fails") {
  Upgrade upgrade;
  ProcessCluster& cluster = upgrade.cluster();
  const std::string previous = absl::StrCat(kPrevious);
  cluster.UseProgram(VerbenadPath());
  cluster.RestartCoordinator();
  upgrade.AwaitMore();
  CHECK(InForce(cluster) == previous);

  upgrade.Roll(VerbenadPath(), {0});
  CHECK(LaneVersions(cluster, /*of_server=*/true) == Only(kPrevious));
  upgrade.Roll(Program("VERBENA_PREVIOUS"), {0});

  upgrade.Roll(VerbenadPath(), {0, 1});
  const std::string status = Cli(cluster, "status");
  CHECK(JsonField(status, "in_force") == previous);
  CHECK_THAT(status, Contains(R"("older": ["server-2"])"));
  // A server of the new version has partitions that one of the old has, too, and workers use both.
  const Finished moved = RunProgram({CliPath(), "--cluster", cluster.address(), "migrate",
                                     "--table", "sums", "--to", "server-0"});
  INFO(moved.err);
  CHECK(moved.status == 0);
  upgrade.AwaitMore();
  CHECK(LaneVersions(cluster, /*of_server=*/true).front() == previous);
  CHECK(LaneVersions(cluster, /*of_server=*/false).back() ==
        absl::StrCat(SpokenProtocols().newest));
  upgrade.Roll(VerbenadPath(), {2});
  CheckUpgraded(&upgrade);
}

}  // namespace
}  // namespace verbena::test
