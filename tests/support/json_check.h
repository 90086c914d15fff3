// Compares parsed JSON with the descriptions of its members (proto/base/json_fields.h).
//
// **Thread safety**: pure functions.
#ifndef VERBENA_TESTS_SUPPORT_JSON_CHECK_H_
#define VERBENA_TESTS_SUPPORT_JSON_CHECK_H_

#include <google/protobuf/struct.pb.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/base/json_fields.h"

namespace verbena::test {

// The first difference between `value` and its type, with its place; empty if there is none.
inline std::string Undescribed(const google::protobuf::Value& value, absl::string_view type,
                               const std::vector<JsonObject>& objects) {
  using google::protobuf::Value;
  const Value::KindCase kind = value.kind_case();
  absl::ConsumeSuffix(&type, ", optional");
  if (absl::ConsumeSuffix(&type, " or null") && kind == Value::kNullValue) return "";
  const std::string wrong = absl::StrCat(" is not ", type, ": ", value.ShortDebugString());
  if (absl::ConsumePrefix(&type, "list of ")) {
    if (kind != Value::kListValue) return wrong;
    for (const Value& element : value.list_value().values()) {
      if (std::string inside = Undescribed(element, type, objects); !inside.empty()) return inside;
    }
    return "";
  }
  if (type == "text") return kind == Value::kStringValue ? "" : wrong;
  if (type == "number") return kind == Value::kNumberValue ? "" : wrong;
  if (type == "boolean") return kind == Value::kBoolValue ? "" : wrong;
  if (kind != Value::kStructValue) return wrong;
  const auto& members = value.struct_value().fields();
  if (type == "numbers by name") {
    for (const auto& [name, member] : members) {
      if (member.kind_case() != Value::kNumberValue) return absl::StrCat(name, wrong);
    }
    return "";
  }
  const auto object = std::find_if(objects.begin(), objects.end(),
                                   [type](const JsonObject& o) { return o.name == type; });
  if (object == objects.end()) return absl::StrCat("no object is called '", type, "'");

  bool others = false;
  for (const verbena::JsonField& field : object->fields) {
    if (field.name == std::string_view("*")) {
      others = true;  // members whose names are described elsewhere
      continue;
    }
    const auto member = members.find(field.name);
    if (member == members.end()) {
      if (absl::EndsWith(field.type, ", optional")) continue;
      return absl::StrCat(type, " has no member ", field.name);
    }
    if (std::string inside = Undescribed(member->second, field.type, objects); !inside.empty()) {
      return absl::StrCat(type, ".", field.name, ": ", inside);
    }
  }
  for (const auto& [name, member] : members) {
    const auto known =
        std::any_of(object->fields.begin(), object->fields.end(),
                    [&](const verbena::JsonField& field) { return field.name == name; });
    if (!known && !others) return absl::StrCat(type, ".", name, " is not described");
  }
  return "";
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SUPPORT_JSON_CHECK_H_
