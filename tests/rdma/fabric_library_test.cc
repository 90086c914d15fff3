// libfabric, found at run time.
#include "rdma/ofi/fabric_library.h"

#include <dlfcn.h>
#include <signal.h>

#include <catch2/catch.hpp>
#include <cstdlib>

namespace verbena::rdma {
namespace {

using Catch::Matchers::Contains;

void OwnHandler(int) {}

TEST_CASE("ofi: errors name a missing libfabric, and a library that is another one") {
  const absl::Status missing = LoadFabricFrom("/nowhere/libfabric.so.1").status();
  CHECK(absl::IsUnavailable(missing));
  CHECK_THAT(std::string(missing.message()), Contains("/nowhere/libfabric.so.1") &&
                                                 Contains("libfabric1") &&
                                                 Contains("VERBENA_LIBFABRIC"));
  const absl::Status other = LoadFabricFrom("libdl.so.2").status();
  CHECK(absl::IsUnavailable(other));
  CHECK_THAT(std::string(other.message()), Contains("libdl.so.2 lacks fi_") && Contains("1.17"));
}

TEST_CASE("ofi: libraries loaded with libfabric do not replace the process's signal handlers") {
  const char* const taker = std::getenv("VERBENA_SIGNAL_TAKER");
  REQUIRE(taker != nullptr);
  struct sigaction own = {};
  own.sa_handler = OwnHandler;
  struct sigaction before = {};
  REQUIRE(sigaction(SIGINT, &own, &before) == 0);
  CHECK(absl::IsUnavailable(LoadFabricFrom(taker).status()));
  struct sigaction after = {};
  CHECK(sigaction(SIGINT, &before, &after) == 0);
  CHECK(after.sa_handler == OwnHandler);
  CHECK(dlopen(taker, RTLD_NOW | RTLD_NOLOAD) != nullptr);  // its constructor has run
}

}  // namespace
}  // namespace verbena::rdma
