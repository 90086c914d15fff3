#include "proto/spec/option_check.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/json.h"
#include "proto/spec/option_value.h"
#include "proto/spec/spec_text.h"

namespace verbena {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Longer lists are named by their length: a peer decides about it.
constexpr size_t kMostElementsShown = 8;

TableKind KindOf(const v1::TableSpec& spec) {
  return spec.dim() > 0 ? TableKind::kEmbedding : TableKind::kDense;
}

// "2 (bf16)"; a number that this build does not know alone.
std::string EnumText(const TableOption& option, int number) {
  const std::string word = EnumWord(*FieldOf(option).enum_type(), number);
  const std::string text = absl::StrCat(number);
  return word == text ? text : absl::StrCat(text, " (", word, ")");
}

std::string ValueText(const TableOption& option, const v1::TableSpec& spec) {
  const FieldDescriptor& field = FieldOf(option);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    return EnumText(option, EnumOf(option, spec));
  }
  if (field.is_repeated() && !field.is_map()) {
    const size_t size = ListTexts(option, spec).size();
    if (size > kMostElementsShown) return absl::StrCat("a list of ", size);
  }
  return OptionText(option, spec);
}

absl::Status Refused(const std::string& name, const std::string& value,
                     const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; allowed: ", allowed));
}

// "2 (step) or 3 (cosine)": the values of option `when`.
std::string WhenText(const TableOption& option, const TableOption& when) {
  std::vector<std::string> texts;
  for (const int number : EnumValues(when, TableKind::kAny)) {
    if ((option.when_values >> number & 1) != 0) texts.push_back(EnumText(when, number));
  }
  return absl::StrJoin(texts, " or ");
}

// Allowed value of an option that does not apply, and the reason.
std::string ElsewhereText(const TableOption& option, const v1::TableSpec& spec) {
  const FieldDescriptor& field = FieldOf(option);
  std::string value = field.is_repeated() ? "none" : "0";
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) value = "false";
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    value = EnumText(option, static_cast<int>(option.default_value));
  }
  if (option.kind == TableKind::kEmbedding && spec.dim() == 0) {
    return absl::StrCat(value, " for a dense table");
  }
  if (option.kind == TableKind::kDense && spec.dim() > 0) {
    return absl::StrCat(value, " for an embedding table, as dim is ", spec.dim());
  }
  const TableOption& when = *FindTableOption(option.when);
  return absl::StrCat(value, ", unless ", option.when, " is ", WhenText(option, when));
}

// The condition under which the range holds: "", or ", as consistency is 3 (ssp)".
std::string AsText(const TableOption& option, const v1::TableSpec& spec) {
  if (option.when == nullptr) return "";
  const TableOption& when = *FindTableOption(option.when);
  return absl::StrCat(", as ", option.when, " is ", EnumText(when, EnumOf(when, spec)));
}

std::string RangeText(const TableOption& option) {
  const std::string min = BoundText(option, std::max(option.min, 0.0));
  std::string text;
  if (!IsReal(option)) {
    const bool open = std::isinf(option.max);
    text = absl::StrCat(min, open ? " and more" : "..", open ? "" : BoundText(option, option.max));
    if (option.multiple_of > 1) {
      text = absl::StrCat("a multiple of ", option.multiple_of, " in ", text);
    }
  } else if (std::isinf(option.max)) {
    text = option.min == -FLT_MAX ? "a finite number" : absl::StrCat("a finite number >= ", min);
  } else {
    text = absl::StrCat(option.above_min ? "more than " : "at least ", min,
                        option.below_max ? " and less than " : " and at most ", Number(option.max));
  }
  if (option.zero != nullptr) absl::StrAppend(&text, ", or 0: ", option.zero);
  if (option.default_value != 0) {
    absl::StrAppend(&text, ", or 0 for ", BoundText(option, option.default_value));
  }
  return text;
}

bool InRange(const TableOption& option, double value) {
  if (value == 0 && option.zero != nullptr) return true;
  if (IsReal(option) && !FiniteAsF32(value)) return false;
  const bool low = option.above_min ? value > option.min : value >= option.min;
  return low && (option.below_max ? value < option.max : value <= option.max);
}

std::string TextRuleText(const TableOption& option) {
  switch (option.text) {
    case TextRule::kName:
      return absl::StrCat("1..", option.max_bytes, " characters of [A-Za-z0-9_./-]");
    case TextRule::kLabel:
      return absl::StrCat("1..", option.max_bytes, " characters, no control characters");
    case TextRule::kText:
      return absl::StrCat("at most ", option.max_bytes, " bytes of UTF-8, no control characters");
    default:
      return "a registered name";
  }
}

bool IsNameCharacter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '/' || c == '-';
}

// Reports, logs and metric labels show texts in a line.
bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

bool Follows(const TableOption& option, const std::string& text) {
  if (option.max_bytes != 0 && text.size() > option.max_bytes) return false;
  switch (option.text) {
    case TextRule::kName:
      return !text.empty() && std::all_of(text.begin(), text.end(), IsNameCharacter);
    case TextRule::kLabel:
      return !text.empty() && std::none_of(text.begin(), text.end(), IsControl);
    case TextRule::kText:
      return IsUtf8(text) && std::none_of(text.begin(), text.end(), IsControl);
    default:
      return true;
  }
}

absl::Status CheckEnum(const TableOption& option, const v1::TableSpec& spec) {
  const int number = EnumOf(option, spec);
  const std::vector<int> known = EnumValues(option, TableKind::kAny);
  const std::vector<int> allowed = EnumValues(option, KindOf(spec));
  if (std::find(allowed.begin(), allowed.end(), number) != allowed.end()) return absl::OkStatus();
  const char* where = spec.dim() > 0 ? " for an embedding table" : " for a dense table";
  const bool restricted = std::find(known.begin(), known.end(), number) != known.end();
  const bool by_kind = restricted && option.dense_values != option.embedding_values;
  return Refused(option.name, ValueText(option, spec),
                 absl::StrCat(AllowedText(option, KindOf(spec)), by_kind ? where : "",
                              restricted && option.reason[0] != 0 ? ": " : "",
                              restricted ? option.reason : ""));
}

absl::Status CheckList(const TableOption& option, const v1::TableSpec& spec) {
  const Message& message = MessageOf(option, spec);
  const FieldDescriptor& field = FieldOf(option);
  const Reflection& r = *message.GetReflection();
  for (int i = 0; i < r.FieldSize(message, &field); ++i) {
    const double value = IsReal(option)
                             ? r.GetRepeatedDouble(message, &field, i)
                             : static_cast<double>(r.GetRepeatedUInt64(message, &field, i));
    if (InRange(option, value)) continue;
    return Refused(absl::StrCat(option.name, "[", i, "]"), BoundText(option, value),
                   RangeText(option));
  }
  return absl::OkStatus();
}

absl::Status CheckMap(const TableOption& option, const v1::TableSpec& spec) {
  for (const auto& [name, value] : ParametersOf(spec)) {
    if (FiniteAsF32(value)) continue;
    return Refused(absl::StrCat(option.name, "[", Quoted(name), "]"), Number(value),
                   RangeText(option));
  }
  return absl::OkStatus();
}

absl::Status CheckValue(const TableOption& option, const v1::TableSpec& spec) {
  const FieldDescriptor& field = FieldOf(option);
  if (field.is_map()) return CheckMap(option, spec);
  if (field.is_repeated()) return CheckList(option, spec);
  const Message& message = MessageOf(option, spec);
  const Reflection& r = *message.GetReflection();
  double value = 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM:
      return CheckEnum(option, spec);
    case FieldDescriptor::CPPTYPE_BOOL:
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_STRING:
      if (Follows(option, StringOf(option, spec))) return absl::OkStatus();
      return Refused(option.name, ValueText(option, spec), TextRuleText(option));
    case FieldDescriptor::CPPTYPE_UINT32:
      value = r.GetUInt32(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      value = static_cast<double>(r.GetUInt64(message, &field));
      break;
    default:
      value = r.GetDouble(message, &field);
  }
  const bool multiple = option.multiple_of == 1 || std::fmod(value, option.multiple_of) == 0;
  if (InRange(option, value) && multiple) return absl::OkStatus();
  return Refused(option.name, ValueText(option, spec),
                 absl::StrCat(RangeText(option), AsText(option, spec)));
}

void FillDefault(const TableOption& option, v1::TableSpec* spec) {
  if (IsSet(option, *spec)) return;
  const FieldDescriptor& field = FieldOf(option);
  Message* message = MutableMessageOf(option, spec);
  const Reflection& r = *message->GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM:
      return r.SetEnumValue(message, &field, static_cast<int>(option.default_value));
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.SetUInt32(message, &field, static_cast<uint32_t>(option.default_value));
    case FieldDescriptor::CPPTYPE_UINT64:
      // Lists have no defaults.
      if (field.is_repeated()) return;
      return r.SetUInt64(message, &field, static_cast<uint64_t>(option.default_value));
    case FieldDescriptor::CPPTYPE_STRING:
      return r.SetString(message, &field, option.default_text);
    default:
      return;
  }
}

absl::Status NormalizeOption(const TableOption& option, v1::TableSpec* spec) {
  if (Applies(option, *spec)) {
    FillDefault(option, spec);
    return CheckValue(option, *spec);
  }
  if (!option.ignored_elsewhere && !HasDefault(option, *spec)) {
    return Refused(option.name, ValueText(option, *spec), ElsewhereText(option, *spec));
  }
  if (!IsSet(option, *spec)) return absl::OkStatus();
  Message* message = MutableMessageOf(option, spec);
  message->GetReflection()->ClearField(message, &FieldOf(option));
  return absl::OkStatus();
}

// Equal tables have equal messages: a group that has only defaults is not there.
void ClearDefaultGroups(const std::string& prefix, v1::TableSpec* spec) {
  for (const TableOptionGroup& group : TableOptionGroups()) {
    if (!group.optional || !absl::StartsWith(group.name, prefix)) continue;
    const TableOption* last = nullptr;
    bool plain = true;
    for (const TableOption& option : TableOptions()) {
      if (GroupOf(option) != group.name) continue;
      plain = plain && HasDefault(option, *spec);
      last = &option;
    }
    if (plain) ClearGroupOf(*last, spec);
  }
}

bool Same(const TableOption& option, const v1::TableSpec& first, const v1::TableSpec& second) {
  // The text form of a long string is cut.
  return FieldOf(option).cpp_type() == FieldDescriptor::CPPTYPE_STRING
             ? StringOf(option, first) == StringOf(option, second)
             : OptionText(option, first) == OptionText(option, second);
}

std::string ParameterText(const std::map<std::string, double>& parameters,
                          const std::string& name) {
  const auto it = parameters.find(name);
  return it == parameters.end() ? "not set" : Number(it->second);
}

std::optional<FieldDifference> ParameterDifference(const TableOption& option,
                                                   const v1::TableSpec& first,
                                                   const v1::TableSpec& second) {
  const std::map<std::string, double> a = ParametersOf(first);
  const std::map<std::string, double> b = ParametersOf(second);
  std::map<std::string, double> all = a;
  all.insert(b.begin(), b.end());
  for (const auto& [name, value] : all) {
    const FieldDifference difference = {absl::StrCat(option.name, "[", Quoted(name), "]"),
                                        ParameterText(a, name), ParameterText(b, name)};
    if (difference.first != difference.second) return difference;
  }
  return std::nullopt;
}

// Without the values that SetOptimizer may change.
v1::TableSpec WithoutValues(v1::TableSpec spec) {
  v1::Optimizer& optimizer = *spec.mutable_optimizer();
  optimizer.clear_changed();
  optimizer.clear_parameters();
  if (optimizer.schedule().kind() != v1::Schedule::PIECEWISE) optimizer.clear_rate();
  if (optimizer.clip_value() > 0) optimizer.set_clip_value(1);
  if (optimizer.clip_chunk_norm() > 0) optimizer.set_clip_chunk_norm(1);
  return spec;
}

}  // namespace

absl::Status NormalizeOptions(const std::string& prefix, v1::TableSpec* spec) {
  for (const TableOption& option : TableOptions()) {
    if (!absl::StartsWith(option.name, prefix)) continue;
    if (absl::Status status = NormalizeOption(option, spec); !status.ok()) return status;
  }
  ClearDefaultGroups(prefix, spec);
  return absl::OkStatus();
}

std::optional<FieldDifference> FirstDifference(const v1::TableSpec& first,
                                               const v1::TableSpec& second) {
  // The other one has the values from before.
  if (first.optimizer().changed() || second.optimizer().changed()) {
    return FirstDifference(WithoutValues(first), WithoutValues(second));
  }
  for (const TableOption& option : TableOptions()) {
    if (FieldOf(option).is_map()) {
      if (auto difference = ParameterDifference(option, first, second)) return difference;
      continue;
    }
    if (Same(option, first, second)) continue;
    return FieldDifference{option.name, OptionText(option, first), OptionText(option, second)};
  }
  return std::nullopt;
}

std::string AllowedText(const TableOption& option, TableKind kind) {
  const FieldDescriptor& field = FieldOf(option);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::StrJoin(EnumValues(option, kind), ", ", [&](std::string* out, int number) {
        absl::StrAppend(out, EnumText(option, number));
      });
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true, false";
    case FieldDescriptor::CPPTYPE_STRING:
      return TextRuleText(option);
    default:
      return RangeText(option);
  }
}

}  // namespace verbena
