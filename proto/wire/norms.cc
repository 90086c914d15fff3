// The two phases of a step's global norm: norms requests partial norms, totals has their sums.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/wire/invalid_field.h"
#include "proto/wire/operations.h"
#include "proto/wire/record_check.h"

namespace verbena::wire {

// All groups have the same step and the same kind of norm.
absl::Status ValidateNorms(const RecordHeader&, absl::Span<const Group> groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].index >= kNormKinds) {
      return NotBelow(kRecord, absl::StrCat("groups[", i, "].index"), groups[i].index, kNormKinds);
    }
    if (groups[i].index != groups[0].index || groups[i].sequence != groups[0].sequence) {
      return InvalidField(
          kRecord, absl::StrCat("groups[", i, "]"),
          absl::StrCat("kind ", groups[i].index, " of step ", groups[i].sequence),
          absl::StrCat("that of group 0, kind ", groups[0].index, " of step ", groups[0].sequence));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateTotals(const RecordHeader& header, absl::Span<const Group> groups) {
  if (header.payload_bytes != sizeof(TotalsPayload)) {
    return InvalidField(kRecord, "payload_bytes", header.payload_bytes,
                        absl::StrCat(sizeof(TotalsPayload), " for totals"));
  }
  return ValidateNorms(header, groups);
}

}  // namespace verbena::wire

namespace verbena {

TotalsPayload CopyTotals(absl::Span<const std::byte> payload) {
  TotalsPayload totals;
  std::memcpy(&totals, payload.data(), sizeof(totals));
  wire::CopiedOut(&totals);
  return totals;
}

}  // namespace verbena
