// Programs of a later version, which speak no version of this cluster: this one, and VERBENA_NEXT.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/protocol_version.h"
#include "tests/support/cluster.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("programs without a common version are refused, with both versions and the remedy") {
  ProcessCluster cluster({.servers = 1});
  const uint32_t later = SpokenProtocols().newest;
  REQUIRE(SpokenProtocols().oldest > kProtocolVersion);
  ClientOptions options;
  options.cluster = cluster.address();
  options.transport = TestTransport();
  const auto client = Client::Connect(options);
  REQUIRE(client.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(client.status().message()),
             Contains(absl::StrCat("speaks protocol version ", later, ", and this cluster ",
                                   kOldestProtocolVersion, " to ", kProtocolVersion,
                                   "; upgrade the coordinator and the servers first")));
  const char* const next = std::getenv("VERBENA_NEXT");
  REQUIRE(next != nullptr);
  const Finished server =
      RunProgram({next, "--join", cluster.address(), "--listen", "127.0.0.1:0", "--name", "early"});
  CHECK(server.status == 1);
  CHECK_THAT(server.err, Contains(absl::StrCat(
                             "speaks protocol version ", later, ", and version ", kProtocolVersion,
                             " is in force in this cluster; upgrade the coordinator and the "
                             "other servers first")));
}

}  // namespace
}  // namespace verbena::test
