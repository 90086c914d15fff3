// Builds requests to open a lane and reads their responses.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_RDMA_LANE_LANE_REQUEST_H_
#define VERBENA_RDMA_LANE_LANE_REQUEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "rdma/lane/worker_lane.h"
#include "rdma/selection/transports.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::rdma {

// A request by `incarnation`, which has this view, for a lane to shard `shard` of `server`. It has
// no offers yet.
v1::OpenLaneRequest NewLaneRequest(uint64_t incarnation, uint64_t server, uint32_t shard,
                                   const v1::ClusterView& view);
// Adds an available transport. `host`: MadeTransport::host.
void AddOffer(std::string_view transport, const std::string& host, v1::OpenLaneRequest* request);
// Adds the unavailable transports with their reasons.
void AddMissing(const std::vector<MissingTransport>& missing, v1::OpenLaneRequest* request);

// The ticket that opens the granted lane. INTERNAL, INVALID_ARGUMENT: the response is invalid.
absl::StatusOr<LaneTicket> TicketOf(const v1::OpenLaneResponse& response, uint64_t incarnation);

// The request that closes the lane, or returns an unused grant.
v1::CloseLaneRequest CloseRequest(const LaneTicket& ticket, uint32_t shard);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_LANE_REQUEST_H_
