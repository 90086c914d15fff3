// A cluster is upgraded in another order than that of docs/operations.md while clients push and
// pull.
#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/faults/upgrade_cluster.h"

namespace verbena::test {

TEST_CASE("servers, then the coordinator are upgraded under load: no call fails") {
  Upgrade upgrade;
  ProcessCluster& cluster = upgrade.cluster();
  upgrade.Roll(VerbenadPath(), {0, 1, 2});
  const std::string status = Cli(cluster, "status");
  CHECK(JsonField(status, "in_force") == absl::StrCat(kPrevious));
  CHECK_THAT(status, Catch::Matchers::Contains(R"("older": ["coordinator"])"));
  CHECK(LaneVersions(cluster, /*of_server=*/true) == Only(kProtocolVersion));
  cluster.RestartCoordinator();
  CheckUpgraded(&upgrade);
}

}  // namespace verbena::test
