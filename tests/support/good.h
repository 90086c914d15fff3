// Conditions without which a test cannot go on.
//
// **Thread safety**: as Catch2: the test's thread alone.
#ifndef VERBENA_TESTS_SUPPORT_GOOD_H_
#define VERBENA_TESTS_SUPPORT_GOOD_H_

#include <catch2/catch.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::test {

inline void Good(const absl::Status& status) {
  INFO(status.ToString());
  REQUIRE(status.ok());
}
template <typename T>
T Value(absl::StatusOr<T> value) {
  Good(value.status());
  return *std::move(value);
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SUPPORT_GOOD_H_
