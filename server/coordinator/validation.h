// Checks of the coordinator's inputs: options, requests, and the state that a store loads.
//
// **Thread safety**: pure functions. Errors name the field, its value and the allowed values.
#ifndef VERBENA_SERVER_COORDINATOR_VALIDATION_H_
#define VERBENA_SERVER_COORDINATOR_VALIDATION_H_

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/store.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

inline constexpr size_t kRequestIdBytes = 16;
inline constexpr uint32_t kMaxPartitions = 65536;
inline constexpr uint32_t kMaxShards = 1024;  // of one server
inline constexpr size_t kMaxNameBytes = 128;

absl::Status CheckOptions(const CoordinatorOptions& options);
absl::Status CheckRequestId(const std::string& request_id);
// A name of a server, worker or job: not empty, at most kMaxNameBytes, no control characters.
absl::Status CheckName(const std::string& what, const std::string& name);
absl::Status CheckJoinServer(const v1::JoinServerRequest& request);

// DATA_LOSS when the state cannot have been written by a coordinator.
absl::Status CheckState(const CoordinatorState& state);

// Method and content: a request_id that is repeated with different ones is the caller's mistake.
std::string Fingerprint(const std::string& method, const google::protobuf::Message& request);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_VALIDATION_H_
