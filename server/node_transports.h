// Selects the processor and the transports of a shard of a node.
//
// **Thread safety**: free functions, of any thread.
#ifndef VERBENA_SERVER_NODE_TRANSPORTS_H_
#define VERBENA_SERVER_NODE_TRANSPORTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "rdma/selection/transports.h"
#include "server/node_options.h"

namespace verbena::server {

// Processors this process may run on.
std::vector<int> AllowedProcessors();

// A shard's own endpoints: its own completion queues, on the device nearest to its thread, which
// runs on processor `cpu`; -1: on any.
absl::StatusOr<rdma::Transports> MakeShardTransports(const NodeOptions& options, uint32_t shard,
                                                     int cpu);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_NODE_TRANSPORTS_H_
