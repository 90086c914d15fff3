// A specification to change, and how it is refused then.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_PROTO_TABLE_SPEC_FIXTURE_H_
#define VERBENA_TESTS_PROTO_TABLE_SPEC_FIXTURE_H_

#include <catch2/catch.hpp>
#include <functional>
#include <string>

#include "proto/spec/table_spec.h"

namespace verbena::test {

inline v1::TableSpec Spec() {
  v1::TableSpec spec;
  spec.set_name("emb");
  spec.set_job("job");
  spec.add_shape(128);
  spec.add_shape(64);
  spec.mutable_optimizer()->set_rate(0.5);
  return spec;
}

inline std::string Refused(const std::function<void(v1::TableSpec*)>& change) {
  v1::TableSpec spec = Spec();
  change(&spec);
  const auto normal = NormalizeTableSpec(spec);
  if (normal.ok()) return "accepted";
  CHECK(normal.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(normal.status().message());
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_PROTO_TABLE_SPEC_FIXTURE_H_
