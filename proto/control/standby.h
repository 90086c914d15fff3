// The answer of a coordinator that does not lead, and its form on the wire.
//
// Several coordinators may run (docs/operations.md), and one leads. Another one refuses each call
// with UNAVAILABLE, and its status has the leader's address in this payload. A control channel that
// knows several coordinators asks the leader then.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_CONTROL_STANDBY_H_
#define VERBENA_PROTO_CONTROL_STANDBY_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace verbena {

inline constexpr char kStandbyPayload[] = "verbena/standby";
// Begins the details of a gRPC status; the leader's address follows.
inline constexpr absl::string_view kStandbyDetails = "verbena/standby:";

// `leader`: its address; empty: none is known.
inline absl::Status StandbyError(const std::string& message, const std::string& leader) {
  absl::Status status = absl::UnavailableError(message);
  status.SetPayload(kStandbyPayload, absl::Cord(leader));
  return status;
}

// The details of the gRPC status for `status`; empty: it is not of a standby.
inline std::string StandbyDetails(const absl::Status& status) {
  const auto leader = status.GetPayload(kStandbyPayload);
  return leader ? std::string(kStandbyDetails) + std::string(*leader) : "";
}

// The leader's address in such details; none: they are not of a standby.
inline std::optional<std::string> LeaderOf(absl::string_view details) {
  if (details.substr(0, kStandbyDetails.size()) != kStandbyDetails) return std::nullopt;
  return std::string(details.substr(kStandbyDetails.size()));
}

}  // namespace verbena

#endif  // VERBENA_PROTO_CONTROL_STANDBY_H_
