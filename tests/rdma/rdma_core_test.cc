// rdma-core, found at run time.
#include "rdma/verbs/rdma_core.h"

#include <catch2/catch.hpp>
#include <string>

namespace verbena::rdma {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("verbs: errors name a missing rdma-core, and a library that is another one") {
  const absl::Status missing = CheckRdmaCore("/nowhere/libibverbs.so.1", "librdmacm.so.1");
  CHECK(absl::IsUnavailable(missing));
  CHECK_THAT(std::string(missing.message()), Contains("/nowhere/libibverbs.so.1") &&
                                                 Contains("ibverbs-providers") &&
                                                 Contains("librdmacm1"));
  const absl::Status other = CheckRdmaCore("libibverbs.so.1", "libdl.so.2");
  CHECK(absl::IsUnavailable(other));
  CHECK_THAT(std::string(other.message()), Contains("libdl.so.2 lacks rdma_accept"));
}

TEST_CASE("verbs: rdma-core of this machine has all functions") {
  const absl::Status loaded = LoadRdmaCore();
  INFO(loaded.message());
  CHECK(loaded.ok());
}

}  // namespace
}  // namespace verbena::rdma
