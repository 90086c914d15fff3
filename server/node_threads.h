// How many threads a verbenad starts, and where they run.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_NODE_THREADS_H_
#define VERBENA_SERVER_NODE_THREADS_H_

#include <cstddef>
#include <cstdint>

#include "server/node_options.h"

namespace verbena::server {

// Logs what --pin asks for and this process cannot have.
void WarnOfPinning(uint32_t shards, size_t processors);

// Threads that a server with these options starts, beside gRPC's.
int ThreadsOf(const NodeOptions& options);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_NODE_THREADS_H_
