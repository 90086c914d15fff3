// Planned moves of a partition: which of its followers is to become the primary.
//
// The coordinator and the partition's primary decide this by the same function of the view.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_CONTROL_PLANNED_MOVES_H_
#define VERBENA_PROTO_CONTROL_PLANNED_MOVES_H_

#include <cstdint>

#include "verbena/v1/cluster.pb.h"

namespace verbena {

// Whether the server is to keep no replica (Server.draining).
bool IsDraining(uint64_t server, const v1::ClusterView& view);

// Whether the primary is to give up its place: the partition is moved, or its server is drained.
bool PrimaryLeaves(const v1::Partition& partition, const v1::ClusterView& view);

// The target of a move, where it is no follower yet; 0: none.
uint64_t MissingTarget(const v1::Partition& partition);

// Whether the partition has a learner although it has all of its replicas: nothing is at risk while
// it catches up.
bool LearnerOfMove(const v1::Partition& partition, const v1::ClusterView& view);

// The number of replicas that stay when it has: on servers that are not drained, whether these are
// alive or not, and without learners.
uint32_t StayingReplicas(const v1::Partition& partition, const v1::ClusterView& view);

// The follower to which the primary is to hand over now. Null: none, or not yet, because fewer
// replicas would be left than the cluster wants and has servers for.
const v1::Replica* PlannedHeir(const v1::Partition& partition, const v1::ClusterView& view);

// A follower that the primary is to drop: its server is drained, it was made for a move that has
// ended without effect, or a move has replaced it, and enough replicas stay. Null: none.
const v1::Replica* SurplusFollower(const v1::Partition& partition, const v1::ClusterView& view);

// Whether as many replicas on servers that are alive and not drained are left without the others as
// the cluster wants and has servers for.
bool EnoughStay(const v1::Partition& partition, const v1::ClusterView& view);

}  // namespace verbena

#endif  // VERBENA_PROTO_CONTROL_PLANNED_MOVES_H_
