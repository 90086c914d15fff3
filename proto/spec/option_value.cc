#include "proto/spec/option_value.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/spec/spec_text.h"

namespace verbena {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// From TableSpec to the option's field.
using Path = std::vector<const FieldDescriptor*>;

std::vector<Path> Resolve() {
  std::vector<Path> paths;
  for (const TableOption& option : TableOptions()) {
    Path path;
    const Descriptor* type = v1::TableSpec::descriptor();
    for (const auto part : absl::StrSplit(option.name, '.')) {
      path.push_back(type->FindFieldByName(std::string(part)));
      type = path.back()->message_type();
    }
    paths.push_back(std::move(path));
  }
  return paths;
}

const Path& PathOf(const TableOption& option) {
  static const auto& paths = *new std::vector<Path>(Resolve());
  return paths[static_cast<size_t>(&option - TableOptions().data())];
}

// The message that has the last of the first `depth` fields of the path.
Message* MutableAt(const Path& path, size_t depth, v1::TableSpec* spec) {
  Message* message = spec;
  for (size_t i = 0; i + 1 < depth; ++i) {
    message = message->GetReflection()->MutableMessage(message, path[i]);
  }
  return message;
}

uint32_t ValuesIn(const TableOption& option, TableKind kind) {
  if (kind == TableKind::kAny) return 0;
  return kind == TableKind::kDense ? option.dense_values : option.embedding_values;
}

std::string NumberText(const FieldDescriptor& field, const Message& message) {
  const Reflection& r = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(r.GetUInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(r.GetUInt64(message, &field));
    default:
      return Number(r.GetDouble(message, &field));
  }
}

absl::Status Wrong(const TableOption& option, const std::string& text, const std::string& allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(option.name, " is ", Quoted(text), "; allowed: ", allowed));
}

// Sets the field, or adds to the list, a number.
bool PutNumber(const FieldDescriptor& field, const std::string& text, Message* message) {
  const Reflection& r = *message->GetReflection();
  uint32_t u32 = 0;
  uint64_t u64 = 0;
  double real = 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      if (!absl::SimpleAtoi(text, &u32)) return false;
      r.SetUInt32(message, &field, u32);
      return true;
    case FieldDescriptor::CPPTYPE_UINT64:
      if (!absl::SimpleAtoi(text, &u64)) return false;
      field.is_repeated() ? r.AddUInt64(message, &field, u64) : r.SetUInt64(message, &field, u64);
      return true;
    default:
      if (!absl::SimpleAtod(text, &real)) return false;
      field.is_repeated() ? r.AddDouble(message, &field, real) : r.SetDouble(message, &field, real);
      return true;
  }
}

absl::Status PutList(const TableOption& option, const std::string& text, Message* message) {
  const FieldDescriptor& field = FieldOf(option);
  message->GetReflection()->ClearField(message, &field);
  if (text.empty()) return absl::OkStatus();
  for (const auto part : absl::StrSplit(text, ',')) {
    if (!PutNumber(field, std::string(part), message)) {
      return Wrong(option, text, "numbers with commas between them");
    }
  }
  return absl::OkStatus();
}

absl::Status PutMap(const TableOption& option, const std::string& text, v1::TableSpec* spec) {
  auto& map = *spec->mutable_optimizer()->mutable_parameters();
  for (const auto part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    double value = 0;
    if (pair.first.empty() || !absl::SimpleAtod(pair.second, &value)) {
      return Wrong(option, text, "NAME=NUMBER, several with commas between them");
    }
    map[pair.first] = value;
  }
  return absl::OkStatus();
}

absl::Status PutEnum(const TableOption& option, const std::string& text, Message* message) {
  const FieldDescriptor& field = FieldOf(option);
  for (const int number : EnumValues(option, TableKind::kAny)) {
    if (text != EnumWord(*field.enum_type(), number)) continue;
    message->GetReflection()->SetEnumValue(message, &field, number);
    return absl::OkStatus();
  }
  return Wrong(option, text, absl::StrJoin(EnumWords(option), ", "));
}

}  // namespace

const FieldDescriptor& FieldOf(const TableOption& option) { return *PathOf(option).back(); }

const Message& MessageOf(const TableOption& option, const v1::TableSpec& spec) {
  const Path& path = PathOf(option);
  const Message* message = &spec;
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    message = &message->GetReflection()->GetMessage(*message, path[i]);
  }
  return *message;
}

Message* MutableMessageOf(const TableOption& option, v1::TableSpec* spec) {
  return MutableAt(PathOf(option), PathOf(option).size(), spec);
}

void ClearGroupOf(const TableOption& option, v1::TableSpec* spec) {
  const Path& path = PathOf(option);
  Message* parent = MutableAt(path, path.size() - 1, spec);
  parent->GetReflection()->ClearField(parent, path[path.size() - 2]);
}

bool IsSet(const TableOption& option, const v1::TableSpec& spec) {
  const Message& message = MessageOf(option, spec);
  const FieldDescriptor& field = FieldOf(option);
  const Reflection& r = *message.GetReflection();
  // A proto3 field without presence is "there" if it is not zero.
  return field.is_repeated() ? r.FieldSize(message, &field) > 0 : r.HasField(message, &field);
}

bool HasDefault(const TableOption& option, const v1::TableSpec& spec) {
  if (!IsSet(option, spec)) return true;
  const Message& message = MessageOf(option, spec);
  const FieldDescriptor& field = FieldOf(option);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    return EnumOf(option, spec) == static_cast<int>(option.default_value);
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    return StringOf(option, spec) == option.default_text;
  }
  if (field.is_repeated() || field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) return false;
  return NumberText(field, message) == BoundText(option, option.default_value);
}

bool Applies(const TableOption& option, const v1::TableSpec& spec) {
  const TableKind kind = spec.dim() > 0 ? TableKind::kEmbedding : TableKind::kDense;
  if (option.kind != TableKind::kAny && option.kind != kind) return false;
  if (option.when == nullptr) return true;
  const int number = EnumOf(*FindTableOption(option.when), spec);
  return number >= 0 && number < 32 && (option.when_values >> number & 1) != 0;
}

int EnumOf(const TableOption& option, const v1::TableSpec& spec) {
  const Message& message = MessageOf(option, spec);
  const int number = message.GetReflection()->GetEnumValue(message, &FieldOf(option));
  return number == 0 ? static_cast<int>(option.default_value) : number;
}

std::string EnumWord(const EnumDescriptor& type, int number) {
  const auto* value = type.FindValueByNumber(number);
  if (value == nullptr) return absl::StrCat(number);
  // DTYPE_UNSPECIFIED gives the prefix of the type's other values, if they have one.
  const std::string unset = type.FindValueByNumber(0)->name();
  const absl::string_view prefix = absl::StripSuffix(unset, "UNSPECIFIED");
  return absl::AsciiStrToLower(absl::StripPrefix(value->name(), prefix));
}

std::vector<int> EnumValues(const TableOption& option, TableKind kind) {
  const uint32_t allowed = ValuesIn(option, kind);
  const EnumDescriptor& type = *FieldOf(option).enum_type();
  std::vector<int> numbers;
  for (int i = 0; i < type.value_count(); ++i) {
    const int number = type.value(i)->number();
    if (number != 0 && (allowed == 0 || (allowed >> number & 1) != 0)) numbers.push_back(number);
  }
  return numbers;
}

std::vector<std::string> EnumWords(const TableOption& option, TableKind kind) {
  std::vector<std::string> words;
  for (const int number : EnumValues(option, kind)) {
    words.push_back(EnumWord(*FieldOf(option).enum_type(), number));
  }
  return words;
}

std::vector<std::string> ListTexts(const TableOption& option, const v1::TableSpec& spec) {
  const Message& message = MessageOf(option, spec);
  const FieldDescriptor& field = FieldOf(option);
  const Reflection& r = *message.GetReflection();
  std::vector<std::string> texts;
  for (int i = 0; i < r.FieldSize(message, &field); ++i) {
    texts.push_back(field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64
                        ? absl::StrCat(r.GetRepeatedUInt64(message, &field, i))
                        : Number(r.GetRepeatedDouble(message, &field, i)));
  }
  return texts;
}

std::map<std::string, double> ParametersOf(const v1::TableSpec& spec) {
  return {spec.optimizer().parameters().begin(), spec.optimizer().parameters().end()};
}

std::string StringOf(const TableOption& option, const v1::TableSpec& spec) {
  const Message& message = MessageOf(option, spec);
  std::string text = message.GetReflection()->GetString(message, &FieldOf(option));
  return text.empty() ? option.default_text : text;
}

bool IsReal(const TableOption& option) {
  return FieldOf(option).is_map() || FieldOf(option).cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
}

std::string BoundText(const TableOption& option, double bound) {
  return IsReal(option) ? Number(bound) : absl::StrCat(static_cast<uint64_t>(bound));
}

std::string OptionText(const TableOption& option, const v1::TableSpec& spec) {
  const Message& message = MessageOf(option, spec);
  const FieldDescriptor& field = FieldOf(option);
  if (field.is_map()) {
    return absl::StrCat("{",
                        absl::StrJoin(ParametersOf(spec), ", ",
                                      [](auto* out, auto& entry) {
                                        absl::StrAppend(out, entry.first, ": ",
                                                        Number(entry.second));
                                      }),
                        "}");
  }
  if (field.is_repeated()) {
    return absl::StrCat("[", absl::StrJoin(ListTexts(option, spec), ", "), "]");
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumWord(*field.enum_type(), EnumOf(option, spec));
    case FieldDescriptor::CPPTYPE_BOOL:
      return message.GetReflection()->GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_STRING:
      return Quoted(StringOf(option, spec));
    default:
      return IsSet(option, spec) ? NumberText(field, message)
                                 : BoundText(option, option.default_value);
  }
}

absl::Status SetOption(const TableOption& option, const std::string& text, v1::TableSpec* spec) {
  const FieldDescriptor& field = FieldOf(option);
  if (field.is_map()) return PutMap(option, text, spec);
  Message* message = MutableMessageOf(option, spec);
  if (field.is_repeated()) return PutList(option, text, message);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM:
      return PutEnum(option, text, message);
    case FieldDescriptor::CPPTYPE_STRING:
      message->GetReflection()->SetString(message, &field, text);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_BOOL:
      if (text != "true" && text != "false") return Wrong(option, text, "true, false");
      message->GetReflection()->SetBool(message, &field, text == "true");
      return absl::OkStatus();
    default:
      if (PutNumber(field, text, message)) return absl::OkStatus();
      return Wrong(option, text, "a number");
  }
}

}  // namespace verbena
