// The C structs of a table cover its options, and values pass through unchanged.
#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "client/c/table_spec.h"
#include "proto/spec/option_value.h"
#include "proto/spec/table_options.h"

namespace verbena::c_api {
namespace {

template <typename T>
void Put(T value, size_t offset, void* base) {
  std::memcpy(static_cast<char*>(base) + offset, &value, sizeof(value));
}

verbena_table_spec Spec() {
  verbena_table_spec spec;
  verbena_table_spec_init(&spec, sizeof(spec));
  spec.name = "t";
  spec.dim = 3;
  return spec;
}

TEST_CASE("every table option has a member in verbena_table_spec") {
  std::set<std::string> members, options;
  for (const OptionMember& member : TableSpecMembers()) {
    INFO(member.option);
    CHECK(members.insert(member.option).second);
  }
  for (const TableOption& option : TableOptions()) options.insert(option.name);
  CHECK(members == options);
  for (const OptionMember& member : TableInfoMembers()) {
    INFO(member.option);
    CHECK(options.contains(member.option));
  }
}

TEST_CASE("no two members of a struct overlap") {
  for (const auto& members : {TableSpecMembers(), TableInfoMembers()}) {
    std::set<size_t> offsets = {0};  // struct_size
    for (const OptionMember& member : members) {
      INFO(member.name);
      CHECK(offsets.insert(member.offset).second);
      if (member.type == MemberType::kList) CHECK(offsets.insert(member.count_offset).second);
    }
  }
}

const uint64_t kInts[] = {3, 4};
const double kReals[] = {3, 4};
const verbena_parameter kParameters[] = {{"a", 3}, {"b", 4}};

// Sets a member to 3, or to two elements.
void SetMember(const OptionMember& member, verbena_table_spec* spec) {
  switch (member.type) {
    case MemberType::kInt32:
      return Put<int32_t>(3, member.offset, spec);
    case MemberType::kUint32:
      return Put<uint32_t>(3, member.offset, spec);
    case MemberType::kUint64:
      return Put<uint64_t>(3, member.offset, spec);
    case MemberType::kDouble:
      return Put<double>(3, member.offset, spec);
    case MemberType::kText:
      return Put<const char*>("3", member.offset, spec);
    case MemberType::kList: {
      const auto& field = FieldOf(*FindTableOption(member.option));
      const void* data =
          IsReal(*FindTableOption(member.option)) ? static_cast<const void*>(kReals) : kInts;
      Put<const void*>(field.is_map() ? kParameters : data, member.offset, spec);
      return Put<size_t>(2, member.count_offset, spec);
    }
  }
}

TEST_CASE("each value in C sets its own option of the specification, and no other") {
  v1::TableSpec plain;
  REQUIRE(ReadTableSpec(Spec(), &plain).ok());
  for (const OptionMember& member : TableSpecMembers()) {
    INFO(member.option);
    verbena_table_spec spec = Spec();
    SetMember(member, &spec);
    v1::TableSpec read;
    REQUIRE(ReadTableSpec(spec, &read).ok());
    const TableOption& option = *FindTableOption(member.option);
    const auto& field = FieldOf(option);
    std::string shown = "3";
    if (field.is_repeated()) shown = field.is_map() ? "{a: 3, b: 4}" : "[3, 4]";
    if (member.type == MemberType::kText) shown = "\"3\"";
    if (field.enum_type() != nullptr) shown = EnumWord(*field.enum_type(), 3);
    if (member.type == MemberType::kInt32 && field.enum_type() == nullptr) shown = "true";
    CHECK(OptionText(option, read) == shown);
    for (const TableOption& other : TableOptions()) {
      if (&other != &option) CHECK(OptionText(other, read) == OptionText(other, plain));
    }
  }
}

TEST_CASE("options as texts give the specification, and a wrong one names itself") {
  const std::vector<verbena_setting> settings = {{"name", "t"},
                                                 {"shape", "3,4"},
                                                 {"optimizer.rate", "0.5"},
                                                 {"optimizer.parameters", "beta1=0.9"},
                                                 {"consistency", "async"}};
  v1::TableSpec read;
  REQUIRE(ReadSettings(settings.data(), settings.size(), &read).ok());
  CHECK(read.shape_size() == 2);
  CHECK(read.optimizer().rate() == 0.5);
  CHECK(read.optimizer().parameters().at("beta1") == 0.9);
  CHECK(read.consistency() == v1::CONSISTENCY_ASYNC);
  const verbena_setting unknown = {"optimiser.rate", "1"}, wrong = {"consistency", "eventual"};
  CHECK(ReadSettings(&unknown, 1, &read).message() ==
        "verbena_table_create_with: there is no table option 'optimiser.rate'; 'verbena table "
        "options' lists them");
  CHECK(std::string(ReadSettings(&wrong, 1, &read).message())
            .find("verbena_table_create_with: consistency: ") == 0);
}

TEST_CASE("every option is described, with its member of verbena_table_spec") {
  std::set<std::string> described;
  const verbena_status status = verbena_table_list_options(
      [](const verbena_table_option* option, void* user) {
        CHECK(option->struct_size == sizeof(*option));
        for (const char* text : {option->member, option->type, option->allowed,
                                 option->default_value, option->meaning}) {
          CHECK_FALSE(std::string(text).empty());
        }
        static_cast<std::set<std::string>*>(user)->insert(option->name);
      },
      &described);
  CHECK(status == VERBENA_OK);
  CHECK(described.size() == TableOptions().size());
}

TEST_CASE("a specification's values are those of verbena_table_info") {
  v1::TableSpec spec;
  for (const OptionMember& member : TableInfoMembers()) {
    const auto& field = FieldOf(*FindTableOption(member.option));
    const std::string value = field.enum_type() != nullptr ? EnumWord(*field.enum_type(), 2) : "3";
    REQUIRE(SetOption(*FindTableOption(member.option), value, &spec).ok());
  }
  spec.set_chunk_bytes(256);
  const verbena_table_info info = TableInfoOf(9, spec);
  CHECK(info.id == 9);
  CHECK(info.struct_size == sizeof(info));
  for (const char* text : {info.name, info.job, info.description, info.optimizer}) {
    CHECK(std::string(text) == "3");
  }
  REQUIRE(info.dimensions == 1);
  CHECK(info.shape[0] == 3);
  CHECK(info.rate == 3);
  CHECK(info.dim == 3);
  CHECK(info.staleness == 3);
  for (const int32_t number : {info.dtype, info.gradient_dtype, info.push_codec, info.pull_codec,
                               info.consistency, info.reduction, info.non_finite}) {
    CHECK(number == 2);
  }
  v1::TableSpec unset;
  unset.set_chunk_bytes(256);
  CHECK(TableInfoOf(1, unset).dtype == VERBENA_DTYPE_F32);
  CHECK(TableInfoOf(1, unset).push_codec == VERBENA_CODEC_NONE);
  CHECK(std::string(TableInfoOf(1, unset).description).empty());
}

TEST_CASE("a list with a NULL address or too many elements is refused with its member's name") {
  verbena_table_spec spec = Spec();
  v1::TableSpec read;
  spec.schedule_boundary_count = 1;
  CHECK(ReadTableSpec(spec, &read).message() ==
        "verbena_table_create: spec->schedule_boundaries is NULL");
  spec.schedule_boundaries = kInts;
  spec.schedule_boundary_count = 1025;
  CHECK(ReadTableSpec(spec, &read).message() ==
        "verbena_table_create: spec->schedule_boundary_count is 1025; allowed: at most 1024");
  spec.schedule_boundary_count = 0;
  spec.schedule_rate_count = 1;
  CHECK(ReadTableSpec(spec, &read).message() ==
        "verbena_table_create: spec->schedule_rates is NULL");
}

}  // namespace
}  // namespace verbena::c_api
