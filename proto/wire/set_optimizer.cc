// New values of a table's optimizer.
#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/invalid_field.h"
#include "proto/wire/operations.h"
#include "proto/wire/record_check.h"

namespace verbena::wire {

absl::Status ValidateSetOptimizer(const RecordHeader& header, absl::Span<const Group> groups) {
  if (groups.size() > kMaxSetOptimizerGroups) {
    return InvalidField(
        kRecord, "group_count", groups.size(),
        absl::StrCat("1..", kMaxSetOptimizerGroups, " for a change of the optimizer"));
  }
  if (header.payload_bytes % sizeof(NamedValue) != 0 ||
      header.payload_bytes / sizeof(NamedValue) > kMaxNamedValues) {
    return InvalidField(
        kRecord, "payload_bytes", header.payload_bytes,
        absl::StrCat(sizeof(NamedValue), " for each of at most ", kMaxNamedValues, " values"));
  }
  return absl::OkStatus();
}

}  // namespace verbena::wire

namespace verbena {
namespace {

bool IsName(const char* name) {
  constexpr size_t kBytes = sizeof(NamedValue::name);
  const auto of_name = [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '_';
  };
  const char* end = std::find_if_not(name, name + kBytes, of_name);
  return end != name && std::all_of(end, name + kBytes, [](char c) { return c == '\0'; });
}

}  // namespace

absl::Status CopyNamedValues(absl::Span<const std::byte> payload, std::vector<NamedValue>* values) {
  values->resize(payload.size() / sizeof(NamedValue));
  if (values->empty()) return absl::OkStatus();
  std::memcpy(values->data(), payload.data(), values->size() * sizeof(NamedValue));
  wire::CopiedOut(values->data());
  // Zeros to a multiple of kRecordAlignment.
  constexpr NamedValue kZeros = {};
  if (values->size() % 2 == 0 && std::memcmp(&values->back(), &kZeros, sizeof(kZeros)) == 0) {
    values->pop_back();
  }
  for (size_t i = 0; i < values->size(); ++i) {
    if (IsName((*values)[i].name)) continue;
    return wire::InvalidField(wire::kRecord, absl::StrCat("values[", i, "].name"), "no name",
                              "lower-case letters, digits and '_', then zeros");
  }
  return absl::OkStatus();
}

}  // namespace verbena
