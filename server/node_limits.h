// The process limits that verbenad needs, checked and logged before it starts.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_SERVER_NODE_LIMITS_H_
#define VERBENA_SERVER_NODE_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "server/node_options.h"

namespace verbena::server {

// RESOURCE_EXHAUSTED: there are too few descriptors or threads for gRPC and a server with these
// options; names the limit. Logs a limit of the size of files.
absl::Status CheckLimits(const NodeOptions& options);

// Logs the parts of --pin that this process cannot have.
void WarnOfPinning(uint32_t shards, size_t processors);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_NODE_LIMITS_H_
