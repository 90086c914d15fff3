// The transports of a process, and the reasons for those that it lacks.
#include <catch2/catch.hpp>

#include "rdma/selection/transports.h"
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
      return [this, name, status]() -> absl::StatusOr<std::vector<MadeTransport>> {
        if (!status.ok()) return status;
        auto endpoint = std::make_unique<ForwardingEndpoint>(network.NewEndpoint("here"));
        endpoint->name = name;
        endpoint->device_name = name == "verbs" ? "mlx5_0:1" : "";
        std::vector<MadeTransport> made;
        made.push_back({std::move(endpoint), "", 0});
        return made;
      };
    };
    return MakeTransports(wanted, {{"shm", maker("shm", shm)}, {"verbs", maker("verbs", verbs)}});
  }
};

TEST_CASE("auto makes every transport that works, best first, with the reasons for the others") {
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
  SECTION("a wrong option is an error, not a missing device") {
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

TEST_CASE("the error of an unknown transport lists the allowed ones") {
  const absl::Status status = MakeTransports({.transport = "tcp", .verbs = {}, .ofi = {}}).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK_THAT(std::string(status.message()), StartsWith("transport is 'tcp'; allowed: auto") &&
                                                Contains("shm") && Contains("verbs") &&
                                                Contains("ofi"));
}

TEST_CASE("each device or address of a list is a rail") {
  VerbsOptions verbs;
  CHECK(VerbsRails(verbs)->size() == 1);
  verbs.device = "mlx5_0,mlx5_1:2";
  auto rails = VerbsRails(verbs);
  REQUIRE(rails.ok());
  REQUIRE(rails->size() == 2);
  CHECK((*rails)[0].device == "mlx5_0");
  CHECK((*rails)[1].device == "mlx5_1:2");
  CHECK((*rails)[1].address.empty());
  verbs.address = "10.0.0.1,fd00::2";
  rails = VerbsRails(verbs);
  REQUIRE(rails.ok());
  CHECK((*rails)[1].address == "fd00::2");
  verbs.device.clear();
  CHECK(VerbsRails(verbs)->size() == 2);

  OfiOptions ofi;
  REQUIRE(OfiRails(ofi)->size() == 1);
  CHECK((*OfiRails(ofi))[0].silence == ofi.silence);
  ofi.address = "10.0.0.1,10.1.0.1";
  REQUIRE(OfiRails(ofi)->size() == 2);
  CHECK((*OfiRails(ofi))[1].address == "10.1.0.1");
  CHECK((*OfiRails(ofi))[1].silence < ofi.silence);
}

TEST_CASE("lists that cannot be rails are refused, and the error names the problem") {
  const auto verbs = [](const char* device, const char* address) {
    VerbsOptions options;
    options.device = device;
    options.address = address;
    const absl::Status status = VerbsRails(options).status();
    CHECK(absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  CHECK_THAT(verbs("mlx5_0,", ""), Contains("rdma device is 'mlx5_0,'") && Contains("empty entry"));
  CHECK_THAT(verbs("", "10.0.0.1,,10.0.0.2"), Contains("rdma address") && Contains("empty entry"));
  CHECK_THAT(verbs("a,b", "10.0.0.1"), Contains("of 2 entries") && Contains("'10.0.0.1', of 1;"));
  CHECK_THAT(verbs("a,b,a", ""), Contains("names 'a' twice"));
  CHECK_THAT(verbs("a,a", "10.0.0.1,10.0.0.1"), Contains("names 'a 10.0.0.1' twice"));
  CHECK(VerbsRails([] {
          VerbsOptions options;
          options.device = "a,a";
          options.address = "10.0.0.1,10.0.0.2";
          return options;
        }())
            .ok());
  OfiOptions ofi;
  ofi.address = "10.0.0.1,10.0.0.1";
  CHECK_THAT(std::string(OfiRails(ofi).status().message()), Contains("names '10.0.0.1' twice"));
}

TEST_CASE("a transport is missing as a whole if one of its rails cannot be made") {
  TransportSettings settings;
  settings.transport = "ofi";
  settings.ofi.address = "127.0.0.1,192.0.2.1";  // the second is nobody's here
  const auto made = MakeTransports(settings);
  REQUIRE_FALSE(made.ok());
  CHECK_THAT(std::string(made.status().message()), Contains("ofi"));
}

TEST_CASE("within a host shm is preferred") {
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
