// Which protocol versions may join a cluster, and when the version in force rises.
//
// **Thread safety**: pure functions.
//
// **Invariants**
//  1. The version in force is spoken by the coordinator and by every server of the view, silent
//  ones
//     included: a silent server may return.
//  2. It never falls, so what depends on it may stay: a server that does not speak it cannot join,
//     and a coordinator that does not speak it takes no office.
//  3. Workers do not hold it back: lanes negotiate their own version.
#ifndef VERBENA_SERVER_COORDINATOR_PROTOCOL_RULES_H_
#define VERBENA_SERVER_COORDINATOR_PROTOCOL_RULES_H_

#include "absl/status/status.h"
#include "server/coordinator/coordinator.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// FAILED_PRECONDITION: the coordinator's program does not speak the version in force in the state.
absl::Status CheckStateProtocol(const CoordinatorOptions& options, const v1::ClusterView& view);
// INVALID_ARGUMENT, with which a server ends: its program does not speak the version in force.
absl::Status CheckServerProtocol(const v1::JoinServerRequest& request, const v1::ClusterView& view);
// FAILED_PRECONDITION: the worker's program speaks no version from the coordinator's oldest to the
// one in force.
absl::Status CheckWorkerProtocol(const v1::JoinWorkerRequest& request,
                                 const CoordinatorOptions& options, const v1::ClusterView& view);

// The version that should be in force now: the newest that the coordinator and all servers speak,
// and at least the one of the view. Before `expected_servers` have joined it stays, so that the
// first server of a new cluster does not decide for the others.
uint32_t NextProtocolInForce(const CoordinatorOptions& options, const v1::ClusterView& view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_PROTOCOL_RULES_H_
