// Planned moves of partitions: `verbena migrate` names the server that is to be a partition's
// primary, `verbena drain` a server that is to keep nothing; rebalancing moves primaries and
// followers.
//
//   partition                          | on                                | to
//   -----------------------------------+-----------------------------------+-------------------------
//   is to be moved, target no replica  | fewer than kMovesAtOnce copied    | target is a learner
//   (configurations.h)                 | ADMIT                             | target is a follower
//   target is a follower, enough stay  | HAND_OVER by the primary, which   | target is primary, the
//                                      | has stopped and sent everything   | old place is gone
//   a follower is to be moved          | ADMIT of the target               | target is a follower,
//                                      |                                   | the old one is
//                                      unwanted
//   follower on a server that drains,  | DROP_REPLICA by the primary, when | without it
//   or an unwanted one after a move    | enough stay                       |
//
// A move ends without effect when its target or its primary is silent or gone, when the target has
// no memory for it, or when it is cancelled. Then the old primary goes on. The state of moves is a
// part of the view: it survives the coordinator.
//
// **Thread safety**: functions without state of their own, on a view.
//
// Invariants:
//  1. A partition that is moved has a target that is alive and is not drained.
//  2. Every end of a move, and every change of a server's draining, grows the configurations that
//     it concerns: a primary that has stopped for a hand-over goes on in a new configuration only.
#ifndef VERBENA_SERVER_COORDINATOR_MOVES_H_
#define VERBENA_SERVER_COORDINATOR_MOVES_H_

#include "absl/status/statusor.h"
#include "server/coordinator/commands.h"
#include "server/coordinator/view_editor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// Begins or cancels moves. NOT_FOUND: there is no such server or table. INVALID_ARGUMENT: a
// partition does not exist. FAILED_PRECONDITION: the server is silent or drained. Partitions that
// are there already, or whose moves are not there to be cancelled, are not in the response.
absl::StatusOr<Effect> MovePartitions(const v1::MovePartitionsRequest& request, ViewEditor* view,
                                      v1::MovePartitionsResponse* response);

// Begins or cancels the draining of a server. NOT_FOUND: there is no such server.
// FAILED_PRECONDITION: the servers that stay are fewer than `replicas`.
absl::StatusOr<Effect> DrainServer(const v1::DrainServerRequest& request, ViewEditor* view);

// Ends moves that cannot go on, and drops learners on servers that are drained. Followers are
// dropped by their primaries: it may be gone already, and they have everything.
void FollowMoves(ViewEditor* view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_MOVES_H_
