// Descriptors of a table's options: one for each field of verbena.v1.TableSpec and its messages.
// Validation, comparison, reports, the trainer's --table-option, the C struct's mapping and the
// reference page (`verbena table options`) follow from them.
//
// To add an option: the field in table.proto, its descriptor in table_options.cc, the member in
// verbena.h and its line in client/c/table_spec.cc.
//
// **Thread safety**: constants.
//
// Invariants:
//  1. Every field has one descriptor, but optimizer.changed, which restores set
//     (tests/proto/table_options_test.cc). Order: of checks, reports and differences. An option
//     comes after those that its `when` names.
#ifndef VERBENA_PROTO_SPEC_TABLE_OPTIONS_H_
#define VERBENA_PROTO_SPEC_TABLE_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "absl/types/span.h"

namespace verbena {

enum class TableKind : uint8_t { kAny, kDense, kEmbedding };

// Allowed bytes of a text.
enum class TextRule : uint8_t {
  kAny,    // a name that a registry has: a later check
  kName,   // required: [A-Za-z0-9_./-]
  kLabel,  // required: no control characters
  kText    // UTF-8 without control characters; may be empty
};

// A set of enum values by number.
constexpr uint32_t Values(auto... numbers) {
  return ((uint32_t{1} << static_cast<uint32_t>(numbers)) | ...);
}

// Type and name of an option are those of its field in TableSpec.
struct TableOption {
  const char* name;                  // path of the field: "dim", "eviction.max_rows"
  const char* doc;                   // Markdown sentences for the reference page
  const char* unit = "";             // of a number: "bytes", "rows"
  TableKind kind = TableKind::kAny;  // kind of table that it applies to
  // Applies only while the enum option `when` has one of `when_values`; nullptr: always.
  const char* when = nullptr;
  uint32_t when_values = 0;
  // Where it does not apply, a value is ignored rather than refused.
  bool ignored_elsewhere = false;
  // Value of an option that is not set. Texts: default_text.
  double default_value = 0;
  const char* default_text = "";
  // Numbers: inclusive range; `above_min`, `below_max` exclude an end. Lists: the range of each
  // element.
  double min = 0;
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;
  bool below_max = false;
  uint32_t multiple_of = 1;
  const char* zero = nullptr;  // meaning of 0, which is allowed outside the range, too
  // Enums: allowed values in dense and in embedding tables; 0: all that exist.
  uint32_t dense_values = 0;
  uint32_t embedding_values = 0;
  const char* reason = "";  // of these sets, for errors
  // Texts.
  TextRule text = TextRule::kAny;
  size_t max_bytes = 0;  // 0: no limit
};

// A message in TableSpec whose fields are options.
struct TableOptionGroup {
  const char* name;  // "eviction", "optimizer.schedule"; "" for the fields of TableSpec itself
  const char* doc;
  bool optional;  // cleared by normalization if all its options have their defaults
};

absl::Span<const TableOption> TableOptions();
absl::Span<const TableOptionGroup> TableOptionGroups();

// nullptr: there is none of this name.
const TableOption* FindTableOption(std::string_view name);

// "eviction" of "eviction.max_rows"; "" of "dim".
std::string_view GroupOf(const TableOption& option);

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_TABLE_OPTIONS_H_
