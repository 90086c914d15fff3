// What a verbenad needs of its process's limits, and says before it starts.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_SERVER_NODE_LIMITS_H_
#define VERBENA_SERVER_NODE_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "server/node_options.h"

namespace verbena::server {

// RESOURCE_EXHAUSTED: the descriptors or the threads that a server with these options and gRPC need
// cannot be had; names the limit. Logs a limit of the size of files.
absl::Status CheckLimits(const NodeOptions& options);

// Logs what --pin asks for and this process cannot have.
void WarnOfPinning(uint32_t shards, size_t processors);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_NODE_LIMITS_H_
