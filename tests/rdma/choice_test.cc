// Which transports a process has, and what is said of the others.
#include <catch2/catch.hpp>

#include "rdma/choice/transports.h"
#include "rdma/sim/sim_network.h"
#include "tests/rdma/forwarding_endpoint.h"

namespace verbena::rdma {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

struct Makers {
  absl::Status shm, verbs;  // not OK: cannot be made
  SimNetwork network{1, {}};

  absl::StatusOr<Transports> Make(const std::string& wanted) {
    const auto maker = [this](const std::string& name, const absl::Status& status) {
      return [this, name, status]() -> absl::StatusOr<MadeTransport> {
        if (!status.ok()) return status;
        auto endpoint = std::make_unique<ForwardingEndpoint>(network.NewEndpoint("here"));
        endpoint->name = name;
        endpoint->device_name = name == "verbs" ? "mlx5_0:1" : "";
        return MadeTransport{std::move(endpoint), ""};
      };
    };
    return MakeTransports(wanted, {{"shm", maker("shm", shm)}, {"verbs", maker("verbs", verbs)}});
  }
};

TEST_CASE("auto makes every transport that works, best first, and says why not the others") {
  Makers makers;
  SECTION("all work") {
    const auto made = makers.Make("auto");
    REQUIRE(made.ok());
    REQUIRE(made->made.size() == 2);
    CHECK(made->made[0].endpoint->transport() == "shm");
    CHECK(made->missing.empty());
    CHECK(DescribeTransports(*made) == "shm, verbs (mlx5_0:1)");
  }
  SECTION("no device") {
    makers.verbs = absl::UnavailableError("no RDMA device found");
    const auto made = makers.Make("auto");
    REQUIRE(made.ok());
    REQUIRE(made->made.size() == 1);
    REQUIRE(made->missing.size() == 1);
    CHECK(made->missing[0].transport == "verbs");
    CHECK(DescribeTransports(*made) == "shm; not verbs: no RDMA device found");
  }
  SECTION("the best does not work") {
    makers.shm = absl::ResourceExhaustedError("no descriptors");
    const auto made = makers.Make("auto");
    REQUIRE(made.ok());
    CHECK(DescribeTransports(*made) == "verbs (mlx5_0:1); not shm: no descriptors");
  }
  SECTION("none works") {
    makers.shm = absl::ResourceExhaustedError("no descriptors");
    makers.verbs = absl::UnavailableError("no RDMA device found");
    const absl::Status status = makers.Make("auto").status();
    CHECK(absl::IsUnavailable(status));
    CHECK(status.message() ==
          "no transport works here: shm: no descriptors; verbs: no RDMA device found");
  }
  SECTION("a wrong option is not taken for a missing device") {
    makers.verbs = absl::InvalidArgumentError("rdma retries is 9; allowed: 0..7");
    CHECK(makers.Make("auto").status() == makers.verbs);
  }
}

TEST_CASE("a named transport is the only one and never falls back") {
  Makers makers;
  const auto shm = makers.Make("shm");
  REQUIRE(shm.ok());
  REQUIRE(shm->made.size() == 1);
  CHECK(DescribeTransports(*shm) == "shm; not verbs: only transport shm was asked for");
  makers.verbs = absl::UnavailableError("no RDMA device found");
  const absl::Status status = makers.Make("verbs").status();
  CHECK(absl::IsUnavailable(status));
  CHECK(status.message() == "transport verbs: no RDMA device found");
}

TEST_CASE("an unknown transport is named with what is allowed") {
  const absl::Status status = MakeTransports({.transport = "tcp", .verbs = {}, .ofi = {}}).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK_THAT(std::string(status.message()), StartsWith("transport is 'tcp'; allowed: auto") &&
                                                Contains("shm") && Contains("verbs") &&
                                                Contains("ofi"));
}

TEST_CASE("within a host nothing is preferred to shm") {
  CHECK(TransportRank("shm") < TransportRank("verbs"));
  CHECK(TransportRank("verbs") < TransportRank("ofi"));
  CHECK(TransportRank("ofi") < TransportRank("something else"));
  const auto made = MakeTransports(TransportSettings{});
  REQUIRE(made.ok());
  CHECK(made->made[0].endpoint->transport() == "shm");
  CHECK(made->made.size() + made->missing.size() == 3);
}

}  // namespace
}  // namespace verbena::rdma
