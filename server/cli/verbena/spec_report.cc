#include "server/cli/verbena/spec_report.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/option_value.h"
#include "proto/spec/table_options.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Options of a table that reports show in columns: ShapeWord(), TypesWord() and the optimizer.
constexpr const char* kInColumns[] = {"name",           "job",
                                      "shape",          "dim",
                                      "dtype",          "consistency",
                                      "gradient_dtype", "push_codec",
                                      "pull_codec",     "optimizer.name",
                                      "optimizer.rate"};

JsonArray ListOf(const TableOption& option, const v1::TableSpec& spec) {
  const Message& message = MessageOf(option, spec);
  const FieldDescriptor& field = FieldOf(option);
  const Reflection& r = *message.GetReflection();
  JsonArray array;
  for (int i = 0; i < r.FieldSize(message, &field); ++i) {
    if (IsReal(option)) {
      array.Add(r.GetRepeatedDouble(message, &field, i));
    } else {
      array.Add(r.GetRepeatedUInt64(message, &field, i));
    }
  }
  return array;
}

JsonWriter ParametersJson(const v1::TableSpec& spec) {
  JsonWriter parameters;
  for (const auto& [name, value] : ParametersOf(spec)) parameters.Add(name, value);
  return parameters;
}

void AddNumber(const std::string& key, const TableOption& option, const v1::TableSpec& spec,
               JsonWriter* json) {
  const Message& message = MessageOf(option, spec);
  const FieldDescriptor& field = FieldOf(option);
  const Reflection& r = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return json->Add(key, r.GetBool(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return json->Add(key, r.GetUInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return json->Add(key, r.GetUInt64(message, &field));
    default:
      return json->Add(key, r.GetDouble(message, &field));
  }
}

void AddOption(const TableOption& option, const v1::TableSpec& spec, JsonWriter* json) {
  const FieldDescriptor& field = FieldOf(option);
  const std::string& key = field.name();
  if (field.is_map()) return json->Add(key, ParametersJson(spec));
  if (field.is_repeated()) return json->Add(key, ListOf(option, spec));
  if (!Applies(option, spec)) return json->AddNull(key);
  if (field.enum_type() != nullptr) return json->Add(key, OptionText(option, spec));
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    return json->Add(key, StringOf(option, spec));
  }
  AddNumber(key, option, spec, json);
}

bool GroupApplies(const std::string& group, const v1::TableSpec& spec) {
  const auto options = TableOptions();
  return std::any_of(options.begin(), options.end(), [&](const TableOption& option) {
    return GroupOf(option) == group && Applies(option, spec);
  });
}

// The options of `group` and the groups in it, in the order of the descriptors.
JsonWriter GroupJson(const std::string& group, const v1::TableSpec& spec);

void AddGroup(const std::string& group, const v1::TableSpec& spec, JsonWriter* json) {
  const std::string prefix = group.empty() ? "" : group + ".";
  std::string last;
  for (const TableOption& option : TableOptions()) {
    if (!absl::StartsWith(option.name, prefix)) continue;
    const std::string rest = std::string(option.name).substr(prefix.size());
    const size_t dot = rest.find('.');
    if (dot == std::string::npos) {
      AddOption(option, spec, json);
      continue;
    }
    const std::string name = rest.substr(0, dot);
    if (name == last) continue;
    last = name;
    if (GroupApplies(prefix + name, spec)) {
      json->Add(name, GroupJson(prefix + name, spec));
    } else {
      json->AddNull(name);
    }
  }
}

JsonWriter GroupJson(const std::string& group, const v1::TableSpec& spec) {
  JsonWriter json;
  AddGroup(group, spec, &json);
  return json;
}

}  // namespace

void AddOptions(const v1::TableSpec& spec, JsonWriter* json) { AddGroup("", spec, json); }

std::string OptionWord(const char* option, const v1::TableSpec& spec) {
  return OptionText(*FindTableOption(option), spec);
}

std::string OtherOptionsText(const v1::TableSpec& spec) {
  std::string text;
  for (const TableOption& option : TableOptions()) {
    const bool shown = std::find(std::begin(kInColumns), std::end(kInColumns),
                                 std::string_view(option.name)) != std::end(kInColumns);
    if (shown || GroupOf(option) == "initializer" || HasDefault(option, spec)) continue;
    const bool is_text = FieldOf(option).cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    absl::StrAppend(
        &text, text.empty() ? "" : ", ", option.name, " ",
        is_text ? absl::StrCat("\"", StringOf(option, spec), "\"") : OptionText(option, spec));
  }
  return Printable(text);
}

}  // namespace verbena::cli
