#include "proto/security/role.h"

#include <catch2/catch.hpp>

namespace verbena {
namespace {

TEST_CASE("every role has a name that parses to it") {
  int roles = 0;
  for (int number = v1::Role_MIN; number <= v1::Role_MAX; ++number) {
    if (!v1::Role_IsValid(number) || number == v1::ROLE_UNSPECIFIED) continue;
    ++roles;
    const auto role = static_cast<v1::Role>(number);
    INFO(v1::Role_Name(role));
    const auto parsed = ParseRole(RoleName(role));
    REQUIRE(parsed.ok());  // so that a new role cannot be forgotten
    CHECK(*parsed == role);
  }
  CHECK(roles >= 4);
  CHECK(RoleName(v1::ROLE_READ_ONLY) == "read-only");
  CHECK(RoleName(v1::ROLE_UNSPECIFIED) == "none");
  CHECK(RoleName(static_cast<v1::Role>(77)) == "77");
}

TEST_CASE("the error of an unknown role has its name and the allowed roles") {
  for (const char* name : {"", "read_only", "Operator", "none", "4", "job\n"}) {
    const absl::Status status = ParseRole(name).status();
    REQUIRE(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()),
               Catch::Contains("one of operator, server, job, read-only"));
    CHECK_THAT(std::string(status.message()), !Catch::Contains("\n"));
  }
}

}  // namespace
}  // namespace verbena
