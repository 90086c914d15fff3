#include "client/c/table_spec.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/c/handles.h"
#include "proto/spec/option_text.h"
#include "proto/spec/option_value.h"
#include "proto/spec/table_spec.h"

namespace verbena::c_api {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr char kCall[] = "verbena_table_create";
constexpr char kCallWith[] = "verbena_table_create_with";
// A nonsensical count must be refused before its elements are read.
constexpr size_t kMostDimensions = 8;
constexpr size_t kMostElements = 1024;

template <typename T>
constexpr MemberType TypeOf() {
  if (std::is_same_v<T, int32_t>) return MemberType::kInt32;
  if (std::is_same_v<T, uint32_t>) return MemberType::kUint32;
  if (std::is_same_v<T, uint64_t>) return MemberType::kUint64;
  if (std::is_same_v<T, double>) return MemberType::kDouble;
  return std::is_same_v<T, const char*> ? MemberType::kText : MemberType::kList;
}

#define MEMBER(type, option, member) \
  { option, TypeOf<decltype(type::member)>(), offsetof(type, member), 0, 0, #member, "" }
#define LIST(type, option, member, count, most)                                              \
  {                                                                                          \
    option, MemberType::kList, offsetof(type, member), offsetof(type, count), most, #member, \
        #count                                                                               \
  }
#define SPEC(option, member) MEMBER(verbena_table_spec, option, member)
#define SPEC_LIST(option, member, count, most) LIST(verbena_table_spec, option, member, count, most)
#define INFO(option, member) MEMBER(verbena_table_info, option, member)

constexpr OptionMember kSpecMembers[] = {
    SPEC("name", name),
    SPEC("job", job),
    SPEC("description", description),
    SPEC_LIST("shape", shape, dimensions, kMostDimensions),
    SPEC("dim", dim),
    SPEC("dtype", dtype),
    SPEC("gradient_dtype", gradient_dtype),
    SPEC("push_codec", push_codec),
    SPEC("pull_codec", pull_codec),
    SPEC("row_dtype", row_dtype),
    SPEC("stochastic_rounding", stochastic_rounding),
    SPEC("consistency", consistency),
    SPEC("staleness", staleness),
    SPEC("reduction", reduction),
    SPEC("non_finite", non_finite),
    SPEC("initializer.kind", initializer),
    SPEC("initializer.a", initializer_a),
    SPEC("initializer.b", initializer_b),
    SPEC("initializer.seed", initializer_seed),
    SPEC("optimizer.name", optimizer),
    SPEC("optimizer.rate", rate),
    SPEC_LIST("optimizer.parameters", parameters, parameter_count, kMostElements),
    SPEC("optimizer.schedule.kind", schedule),
    SPEC("optimizer.schedule.warmup_steps", schedule_warmup_steps),
    SPEC("optimizer.schedule.period", schedule_period),
    SPEC("optimizer.schedule.factor", schedule_factor),
    SPEC("optimizer.schedule.floor", schedule_floor),
    SPEC_LIST("optimizer.schedule.boundaries", schedule_boundaries, schedule_boundary_count,
              kMostElements),
    SPEC_LIST("optimizer.schedule.rates", schedule_rates, schedule_rate_count, kMostElements),
    SPEC("optimizer.clip_value", clip_value),
    SPEC("optimizer.clip_chunk_norm", clip_chunk_norm),
    SPEC("optimizer.clip_global_norm", clip_global_norm),
    SPEC("admission.kind", admission),
    SPEC("admission.min_count", admission_min_count),
    SPEC("admission.probability", admission_probability),
    SPEC("admission.sketch_bytes", admission_sketch_bytes),
    SPEC("admission.seed", admission_seed),
    SPEC("eviction.kind", eviction),
    SPEC("eviction.ttl", eviction_ttl),
    SPEC("eviction.max_rows", eviction_max_rows),
    SPEC("eviction.max_bytes", eviction_max_bytes),
    SPEC("cold_tier.hot_bytes", hot_bytes),
    SPEC("chunk_bytes", chunk_bytes),
};

constexpr OptionMember kInfoMembers[] = {
    INFO("name", name),
    INFO("job", job),
    INFO("description", description),
    INFO("optimizer.name", optimizer),
    INFO("optimizer.rate", rate),
    LIST(verbena_table_info, "shape", shape, dimensions, kMostDimensions),
    INFO("dim", dim),
    INFO("dtype", dtype),
    INFO("gradient_dtype", gradient_dtype),
    INFO("push_codec", push_codec),
    INFO("pull_codec", pull_codec),
    INFO("consistency", consistency),
    INFO("staleness", staleness),
    INFO("reduction", reduction),
    INFO("non_finite", non_finite),
};

#undef INFO
#undef SPEC_LIST
#undef SPEC
#undef LIST
#undef MEMBER

template <typename T>
T Get(const void* base, size_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + offset, sizeof(value));
  return value;
}

template <typename T>
void Put(T value, size_t offset, void* base) {
  std::memcpy(static_cast<char*>(base) + offset, &value, sizeof(value));
}

absl::Status ReadList(const OptionMember& member, const verbena_table_spec& from,
                      v1::TableSpec* to) {
  const size_t count = Get<size_t>(&from, member.count_offset);
  if (count == 0) return absl::OkStatus();
  const void* data = Get<const void*>(&from, member.offset);
  if (data == nullptr) return NullArgument(kCall, absl::StrCat("spec->", member.name).c_str());
  if (count > member.most) {
    return absl::InvalidArgumentError(absl::StrCat(kCall, ": spec->", member.count_name, " is ",
                                                   count, "; allowed: at most ", member.most));
  }
  const TableOption& option = *FindTableOption(member.option);
  const FieldDescriptor& field = FieldOf(option);
  Message* message = MutableMessageOf(option, to);
  const Reflection& r = *message->GetReflection();
  for (size_t i = 0; i < count; ++i) {
    if (field.is_map()) {
      const auto parameter = Get<verbena_parameter>(data, i * sizeof(verbena_parameter));
      if (parameter.name == nullptr) {
        return NullArgument(kCall, absl::StrCat("spec->parameters[", i, "].name").c_str());
      }
      auto& parameters = *to->mutable_optimizer()->mutable_parameters();
      if (parameters.contains(parameter.name)) {
        return NamedTwice(kCall, "spec->parameters", from.parameters, i);
      }
      parameters[parameter.name] = parameter.value;
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
      r.AddUInt64(message, &field, Get<uint64_t>(data, i * sizeof(uint64_t)));
    } else {
      r.AddDouble(message, &field, Get<double>(data, i * sizeof(double)));
    }
  }
  return absl::OkStatus();
}

// An enum value that nobody knows stays as it is, to be refused with its number.
void ReadInt32(const TableOption& option, int32_t value, v1::TableSpec* to) {
  if (value == 0) return;
  const FieldDescriptor& field = FieldOf(option);
  Message* message = MutableMessageOf(option, to);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    message->GetReflection()->SetBool(message, &field, true);
  } else {
    message->GetReflection()->SetEnumValue(message, &field, value);
  }
}

void ReadMember(const OptionMember& member, const verbena_table_spec& from, v1::TableSpec* to) {
  const TableOption& option = *FindTableOption(member.option);
  const FieldDescriptor& field = FieldOf(option);
  if (member.type == MemberType::kInt32) {
    return ReadInt32(option, Get<int32_t>(&from, member.offset), to);
  }
  Message* message = MutableMessageOf(option, to);
  const Reflection& r = *message->GetReflection();
  switch (member.type) {
    case MemberType::kUint32:
      return r.SetUInt32(message, &field, Get<uint32_t>(&from, member.offset));
    case MemberType::kUint64:
      return r.SetUInt64(message, &field, Get<uint64_t>(&from, member.offset));
    case MemberType::kDouble:
      return r.SetDouble(message, &field, Get<double>(&from, member.offset));
    default:
      if (const char* text = Get<const char*>(&from, member.offset); text != nullptr) {
        r.SetString(message, &field, text);
      }
  }
}

void WriteMember(const OptionMember& member, const v1::TableSpec& from, verbena_table_info* to) {
  const TableOption& option = *FindTableOption(member.option);
  const FieldDescriptor& field = FieldOf(option);
  const Message& message = MessageOf(option, from);
  const Reflection& r = *message.GetReflection();
  std::string unused;
  switch (member.type) {
    case MemberType::kInt32:
      return Put<int32_t>(EnumOf(option, from), member.offset, to);
    case MemberType::kUint32:
      return Put(r.GetUInt32(message, &field), member.offset, to);
    case MemberType::kDouble:
      return Put(r.GetDouble(message, &field), member.offset, to);
    case MemberType::kText:
      return Put(r.GetStringReference(message, &field, &unused).c_str(), member.offset, to);
    case MemberType::kList:
      Put(from.shape().data(), member.offset, to);
      return Put(static_cast<size_t>(from.shape_size()), member.count_offset, to);
    case MemberType::kUint64:
      return Put(r.GetUInt64(message, &field), member.offset, to);
  }
}

}  // namespace

absl::Span<const OptionMember> TableSpecMembers() { return kSpecMembers; }
absl::Span<const OptionMember> TableInfoMembers() { return kInfoMembers; }

absl::Status ReadTableSpec(const verbena_table_spec& given, v1::TableSpec* to) {
  verbena_table_spec from = {};
  absl::Status status = ReadSized(kCall, "verbena_table_spec", given, kTableSpecFirst, &from);
  if (!status.ok()) return status;
  if (from.name == nullptr) return NullArgument(kCall, "spec->name");
  if (from.shape == nullptr && from.dim == 0) return NullArgument(kCall, "spec->shape");
  for (const OptionMember& member : kSpecMembers) {
    if (member.type != MemberType::kList) {
      ReadMember(member, from, to);
      continue;
    }
    if (status = ReadList(member, from, to); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadSettings(const verbena_setting* settings, size_t count, v1::TableSpec* to) {
  for (size_t i = 0; i < count; ++i) {
    const auto& [name, value] = settings[i];
    const std::string place = absl::StrCat("settings[", i, "]");
    if (name == nullptr) return NullArgument(kCallWith, absl::StrCat(place, ".name").c_str());
    if (value == nullptr) return NullArgument(kCallWith, absl::StrCat(place, ".value").c_str());
    const TableOption* option = FindTableOption(name);
    if (option == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(kCallWith, ": there is no table option '",
                                                     absl::CHexEscape(name),
                                                     "'; 'verbena table options' lists them"));
    }
    if (absl::Status s = SetOption(*option, value, to); !s.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kCallWith, ": ", name, ": ", std::string(s.message())));
    }
  }
  return absl::OkStatus();
}

std::vector<OptionDescription> DescribeOptions() {
  std::vector<OptionDescription> found;
  for (const TableOption& option : TableOptions()) {
    const auto* const member = std::find_if(
        std::begin(kSpecMembers), std::end(kSpecMembers),
        [&option](const OptionMember& m) { return m.option == std::string_view(option.name); });
    found.push_back({&option, member->name, OptionType(option), OptionAllowed(option),
                     OptionDefault(option), OptionApplies(option)});
  }
  return found;
}

verbena_table_info TableInfoOf(uint32_t id, const v1::TableSpec& spec) {
  const DenseLayout layout = LayoutOf(spec);
  verbena_table_info info = {};
  info.struct_size = sizeof(info);
  info.id = id;
  info.elements = layout.elements;
  info.bytes = layout.elements * layout.parameter_bytes;
  info.gradient_bytes = layout.elements * layout.gradient_bytes;
  info.chunk_elements = spec.dim() > 0 ? 0 : layout.chunk_elements;
  for (const OptionMember& member : kInfoMembers) WriteMember(member, spec, &info);
  return info;
}

}  // namespace verbena::c_api
