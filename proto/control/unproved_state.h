// The coordinator's refusal of changes while its loaded state may be outdated.
//
// The refusal ends by itself after at most one lease of the coordinator. So every caller repeats
// the same request until then, regardless of its other reasons to stop.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_CONTROL_UNPROVED_STATE_H_
#define VERBENA_PROTO_CONTROL_UNPROVED_STATE_H_

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace verbena {

inline constexpr absl::string_view kUnprovedState =
    "coordinator state: it may be an old one, so nothing is changed yet";

// UNAVAILABLE, because clients repeat such calls anyway.
inline absl::Status UnprovedState(absl::string_view detail) {
  return absl::UnavailableError(absl::StrCat(kUnprovedState, " (", detail, ")"));
}

// Channels put an address before the coordinator's message.
inline bool IsUnprovedState(const absl::Status& status) {
  return absl::IsUnavailable(status) && absl::StrContains(status.message(), kUnprovedState);
}

}  // namespace verbena

#endif  // VERBENA_PROTO_CONTROL_UNPROVED_STATE_H_
