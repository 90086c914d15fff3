// Conversion between the C structs of a table and verbena.v1.TableSpec by tables of members: a new
// option adds a line to them in table_spec.cc.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_CLIENT_C_TABLE_SPEC_H_
#define VERBENA_CLIENT_C_TABLE_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/spec/table_options.h"
#include "verbena/v1/table.pb.h"
#include "verbena/verbena.h"

namespace verbena::c_api {

// The sizes of the structs in release 0.1, which ended with these fields.
inline constexpr size_t kTableSpecFirst =
    offsetof(verbena_table_spec, parameter_count) + sizeof(size_t);
inline constexpr size_t kTableInfoFirst =
    offsetof(verbena_table_info, non_finite) + sizeof(int32_t);

enum class MemberType : uint8_t { kInt32, kUint32, kUint64, kDouble, kText, kList };

// A member of a C struct that has the value of a table option.
struct OptionMember {
  const char* option;  // as in proto/spec/table_options.h
  MemberType type;
  size_t offset;           // of the value, or of the pointer to it
  size_t count_offset;     // kList: of the number of elements
  size_t most;             // kList: elements that are read
  const char* name;        // of the member
  const char* count_name;  // kList: of the member with the number
};

absl::Span<const OptionMember> TableSpecMembers();
absl::Span<const OptionMember> TableInfoMembers();

// INVALID_ARGUMENT: a size that does not fit, a pointer that is NULL, too many elements. Values are
// checked with every specification.
absl::Status ReadTableSpec(const verbena_table_spec& given, v1::TableSpec* to);

// INVALID_ARGUMENT: a NULL, an unknown option, or a value of another type.
absl::Status ReadSettings(const verbena_setting* settings, size_t count, v1::TableSpec* to);

// An option with its texts, for verbena_table_list_options().
struct OptionDescription {
  const TableOption* option;
  const char* member;
  std::string type, allowed, default_value, applies_to;
};
std::vector<OptionDescription> DescribeOptions();

// Points into `spec`, which is normalized.
verbena_table_info TableInfoOf(uint32_t id, const v1::TableSpec& spec);

}  // namespace verbena::c_api

#endif  // VERBENA_CLIENT_C_TABLE_SPEC_H_
