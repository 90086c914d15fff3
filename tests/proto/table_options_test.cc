// Descriptors of table options: they cover the specification, and the checks, defaults and parsers
// derived from them.
#include "proto/spec/table_options.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "proto/spec/option_check.h"
#include "proto/spec/option_value.h"
#include "tests/proto/table_spec_fixture.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

void AddFields(const Descriptor& message, const std::string& prefix, std::set<std::string>* all) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string name = prefix + field.name();
    if (field.message_type() != nullptr && !field.is_map()) {
      AddFields(*field.message_type(), name + ".", all);
    } else {
      all->insert(name);
    }
  }
}

TEST_CASE("every field of a specification has one descriptor, with a sentence") {
  std::set<std::string> fields, options, groups;
  AddFields(*v1::TableSpec::descriptor(), "", &fields);
  CHECK(fields.erase("optimizer.changed") == 1);  // not an option: restores set it
  for (const TableOptionGroup& group : TableOptionGroups()) groups.insert(group.name);
  for (const TableOption& option : TableOptions()) {
    INFO(option.name);
    CHECK(options.insert(option.name).second);
    CHECK(std::string(option.doc).back() == '.');
    CHECK(groups.contains(std::string(GroupOf(option))));
  }
  CHECK(options == fields);
}

TEST_CASE("a condition refers to an earlier option and to values of that option") {
  std::set<std::string> before;
  for (const TableOption& option : TableOptions()) {
    INFO(option.name);
    if (option.when != nullptr) {
      REQUIRE(before.contains(option.when));
      uint32_t known = 0;
      for (const int number : EnumValues(*FindTableOption(option.when), TableKind::kAny)) {
        known |= uint32_t{1} << number;
      }
      CHECK(option.when_values != 0);
      CHECK((option.when_values & ~known) == 0);
    }
    before.insert(option.name);
  }
}

bool IsNumber(const TableOption& option) {
  const auto type = FieldOf(option).cpp_type();
  const bool integral =
      type == FieldDescriptor::CPPTYPE_UINT32 || type == FieldDescriptor::CPPTYPE_UINT64;
  return !FieldOf(option).is_repeated() && (integral || IsReal(option));
}

// Gives the numbers of the same group that must be set an allowed value.
void SetRequired(const TableOption& option, v1::TableSpec* spec) {
  for (const TableOption& other : TableOptions()) {
    const bool needed = other.above_min || (other.min > 0 && other.zero == nullptr);
    if (GroupOf(other) != GroupOf(option) || other.when == nullptr || !needed) continue;
    if (!IsNumber(other) || !Applies(other, *spec)) continue;
    const double value = other.above_min ? 0.5 : other.min;
    REQUIRE(SetOption(other, BoundText(other, value), spec).ok());
  }
}

// A specification in which the option applies.
v1::TableSpec SpecFor(const TableOption& option) {
  v1::TableSpec spec = Spec();
  if (option.kind == TableKind::kEmbedding) {
    spec.clear_shape();
    spec.set_dim(8);
  }
  if (option.when == nullptr) return spec;
  const TableOption& when = *FindTableOption(option.when);
  for (const int number : EnumValues(when, TableKind::kAny)) {
    if ((option.when_values >> number & 1) == 0) continue;
    auto* message = MutableMessageOf(when, &spec);
    message->GetReflection()->SetEnumValue(message, &FieldOf(when), number);
    break;
  }
  SetRequired(option, &spec);
  return spec;
}

std::string Error(const v1::TableSpec& spec) {
  v1::TableSpec normal = spec;
  return std::string(NormalizeOptions("", &normal).message());
}

TEST_CASE("a number outside its range is refused with its name, value and range") {
  int checked = 0;
  for (const TableOption& option : TableOptions()) {
    if (!IsNumber(option)) continue;
    const bool integral = !IsReal(option);
    const double most = option.below_max ? option.max : option.max + (integral ? 1 : 0.5);
    std::vector<std::string> bad;
    if (option.max < 1e12) bad.push_back(BoundText(option, most));
    if (IsReal(option)) bad.push_back("1e39");
    if (integral && option.min > 1) bad.push_back(BoundText(option, option.min - 1));
    for (const std::string& text : bad) {
      v1::TableSpec spec = SpecFor(option);
      REQUIRE(SetOption(option, text, &spec).ok());
      if (std::string(option.name) == "dim") spec.clear_shape();
      INFO(option.name << " " << text);
      CHECK_THAT(Error(spec), Contains(std::string(option.name) + " is ") &&
                                  Contains("; allowed: " + AllowedText(option, TableKind::kAny)));
      ++checked;
    }
  }
  CHECK(checked > 20);
}

TEST_CASE("an unknown enum value is refused with the allowed ones") {
  for (const TableOption& option : TableOptions()) {
    if (FieldOf(option).cpp_type() != FieldDescriptor::CPPTYPE_ENUM) continue;
    v1::TableSpec spec = SpecFor(option);
    auto* message = MutableMessageOf(option, &spec);
    message->GetReflection()->SetEnumValue(message, &FieldOf(option), 31);
    INFO(option.name);
    CHECK_THAT(Error(spec), Contains(std::string(option.name) + " is 31; allowed: 1 ("));
  }
}

TEST_CASE("an option that does not apply is refused, ignored, or set to its default") {
  for (const TableOption& option : TableOptions()) {
    const bool dense_only = option.kind == TableKind::kDense;
    if (option.when == nullptr && option.kind == TableKind::kAny) continue;
    v1::TableSpec spec = Spec();
    if (dense_only) spec.set_dim(8);
    const auto type = FieldOf(option).cpp_type();
    std::string value = "3";
    if (type == FieldDescriptor::CPPTYPE_BOOL) value = "true";
    if (type == FieldDescriptor::CPPTYPE_ENUM) value = EnumWords(option).back();
    REQUIRE(SetOption(option, value, &spec).ok());
    INFO(option.name);
    if (option.ignored_elsewhere) {
      CHECK(Error(spec).empty());
      REQUIRE(NormalizeOptions("", &spec).ok());
      CHECK_FALSE(IsSet(option, spec));
      continue;
    }
    CHECK_THAT(Error(spec), Contains(std::string(option.name) + " is ") &&
                                (Contains(" for a dense table") || Contains(", unless ") ||
                                 Contains(" for an embedding table, as dim is 8")));
    if (type == FieldDescriptor::CPPTYPE_ENUM) {
      REQUIRE(SetOption(option, OptionText(option, Spec()), &spec).ok());
      CHECK(Error(spec).empty());
    }
  }
}

TEST_CASE("a value from a command line is set, shown and compared") {
  for (const TableOption& option : TableOptions()) {
    v1::TableSpec spec;
    const FieldDescriptor& field = FieldOf(option);
    std::string value = "7";
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) value = "true";
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) value = EnumWords(option).back();
    if (field.is_map()) value = "beta1=0.5,beta2=0.75";
    if (field.is_repeated() && !field.is_map()) value = "3,4";
    INFO(option.name);
    REQUIRE(SetOption(option, value, &spec).ok());
    CHECK(IsSet(option, spec));
    std::string shown = value;
    if (field.is_repeated()) shown = "[3, 4]";
    if (field.is_map()) shown = "{beta1: 0.5, beta2: 0.75}";
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) shown = "\"7\"";
    CHECK(OptionText(option, spec) == shown);
    if (HasDefault(option, spec)) continue;
    const auto difference = FirstDifference(v1::TableSpec(), spec);
    REQUIRE(difference);
    CHECK_THAT(difference->field, Contains(option.name));
  }
}

TEST_CASE("a value of the wrong form is refused with the forms that are allowed") {
  const auto error = [](const char* name, const char* text) {
    v1::TableSpec spec;
    return std::string(SetOption(*FindTableOption(name), text, &spec).message());
  };
  CHECK_THAT(error("push_codec", "gzip"),
             Equals("push_codec is \"gzip\"; allowed: none, bf16, f16, int8, fp8_e4m3, fp8_e5m2, "
                    "sign, top_k"));
  CHECK_THAT(error("dim", "-1"), Contains("dim is \"-1\"; allowed: a number"));
  CHECK_THAT(error("dim", "4294967296"), Contains("a number"));
  CHECK_THAT(error("optimizer.rate", "fast"), Contains("a number"));
  CHECK_THAT(error("stochastic_rounding", "1"), Contains("true, false"));
  CHECK_THAT(error("shape", "1,x"), Contains("numbers with commas between them"));
  CHECK_THAT(error("optimizer.parameters", "beta1"), Contains("NAME=NUMBER"));
  CHECK(FindTableOption("colour") == nullptr);
}

TEST_CASE(
    "a description is a line of UTF-8 of at most 512 bytes, and tables with other ones differ") {
  const auto described = [](const std::string& text) {
    return Refused([&](auto* s) { s->set_description(text); });
  };
  const std::string allowed = "; allowed: at most 512 bytes of UTF-8, no control characters";
  CHECK_THAT(described("Embeddings of items, \xc3\xa4nderbar nur neu"), Equals("accepted"));
  CHECK_THAT(described(std::string(512, 'x')), Equals("accepted"));
  CHECK_THAT(described(std::string(513, 'x')), Contains("description is \"x") && Contains(allowed));
  CHECK_THAT(described("two\nlines"),
             Equals("table \"emb\": description is \"two\\nlines\"" + allowed));
  CHECK_THAT(described("\xff"), Contains("description is \"\\xff\"" + allowed));
  v1::TableSpec a = Spec();
  a.set_description(std::string(200, 'x') + "a");
  v1::TableSpec b = Spec();
  b.set_description(std::string(200, 'x') + "b");
  CHECK_THAT(std::string(CheckSameSpec(a, b).message()), Contains("description is "));
  CHECK(CheckSameSpec(a, a).ok());
}

}  // namespace
}  // namespace verbena::test
