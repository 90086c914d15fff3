// The coordinator's refusal of changes while the state that it loaded may be an old one.
//
// It ends by itself, after a lease of the coordinator at most, so every caller repeats the same
// request until then, whatever else ends its calls early.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_UNPROVED_STATE_H_
#define VERBENA_PROTO_UNPROVED_STATE_H_

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace verbena {

inline constexpr absl::string_view kUnprovedState =
    "coordinator state: it may be an old one, so nothing is changed yet";

// UNAVAILABLE, as clients repeat such calls in any case.
inline absl::Status UnprovedState(absl::string_view detail) {
  return absl::UnavailableError(absl::StrCat(kUnprovedState, " (", detail, ")"));
}

// Channels put an address before what the coordinator says.
inline bool IsUnprovedState(const absl::Status& status) {
  return absl::IsUnavailable(status) && absl::StrContains(status.message(), kUnprovedState);
}

}  // namespace verbena

#endif  // VERBENA_PROTO_UNPROVED_STATE_H_
