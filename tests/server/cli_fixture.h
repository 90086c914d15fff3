// The operator's program, run against a small real cluster.
#ifndef VERBENA_TESTS_SERVER_CLI_FIXTURE_H_
#define VERBENA_TESTS_SERVER_CLI_FIXTURE_H_

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "proto/spec/table_options.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"

namespace verbena::test {

inline Finished Cli(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), CliPath());
  return RunProgram(arguments, absl::Seconds(60));
}

// A value inside parsed JSON. Missing members and elements fail the test.
class Json {
 public:
  // Exactly one JSON object.
  explicit Json(const std::string& text) {
    google::protobuf::Struct object;
    const auto status = google::protobuf::util::JsonStringToMessage(text, &object);
    INFO(text);
    INFO(status);
    REQUIRE(status.ok());
    *value_.mutable_struct_value() = object;
  }
  Json operator[](const std::string& member) const {
    INFO("member " << member << " of " << value_.ShortDebugString());
    REQUIRE(value_.struct_value().fields().contains(member));
    return Json(value_.struct_value().fields().at(member));
  }
  Json operator[](int element) const {
    REQUIRE(element < size());
    return Json(value_.list_value().values(element));
  }
  int size() const {
    REQUIRE(value_.has_list_value());
    return value_.list_value().values_size();
  }
  std::string text() const {
    REQUIRE(value_.kind_case() == google::protobuf::Value::kStringValue);
    return value_.string_value();
  }
  double number() const {
    REQUIRE(value_.kind_case() == google::protobuf::Value::kNumberValue);
    return value_.number_value();
  }
  bool truth() const {
    REQUIRE(value_.kind_case() == google::protobuf::Value::kBoolValue);
    return value_.bool_value();
  }
  const google::protobuf::Value& value() const { return value_; }
  bool null() const { return value_.kind_case() == google::protobuf::Value::kNullValue; }

 private:
  explicit Json(google::protobuf::Value value) : value_(std::move(value)) {}
  google::protobuf::Value value_;
};

// Whether a member is a table option or a group of them: docs/reference/table-options.md has them.
inline bool IsTableOption(const std::string& member) {
  const auto is_part = [&member](const TableOption& option) {
    const std::vector<std::string> parts = absl::StrSplit(option.name, '.');
    return std::find(parts.begin(), parts.end(), member) != parts.end();
  };
  return std::any_of(TableOptions().begin(), TableOptions().end(), is_part);
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SERVER_CLI_FIXTURE_H_
