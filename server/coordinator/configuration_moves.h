// Changes of a partition's configuration for planned moves. The states are in moves.h.
//
// **Thread safety**: functions without state of their own, on a view. Each that changes a partition
// grows its configuration.
#ifndef VERBENA_SERVER_COORDINATOR_CONFIGURATION_MOVES_H_
#define VERBENA_SERVER_COORDINATOR_CONFIGURATION_MOVES_H_

#include <cstdint>

#include "server/coordinator/view_editor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

void Grow(v1::Partition* partition);
bool HasFollower(const v1::Partition& partition, uint64_t server);

// Begins a move of the partition to that server: of its primary, or of its follower on `from` (0:
// of the primary).
void BeginMove(uint64_t target, uint64_t from, uint32_t partition, ViewEditor* view);
// Ends a move without effect: its learner goes.
void EndMove(v1::MoveEnd why, uint32_t partition, ViewEditor* view);
// Its follower that came last is to be dropped by the primary.
void MarkNewestUnwanted(uint32_t partition, ViewEditor* view);
// Its unwanted follower is to stay after all.
void KeepUnwanted(uint32_t partition, ViewEditor* view);
void GrowConfiguration(uint32_t partition, ViewEditor* view);
void DropLearner(uint32_t partition, ViewEditor* view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_CONFIGURATION_MOVES_H_
