// Asking for a lane: what a request says of this side, and what its answer grants.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_RDMA_LANE_LANE_REQUEST_H_
#define VERBENA_RDMA_LANE_LANE_REQUEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/verbena/v1/shard.pb.h"
#include "rdma/choice/transports.h"
#include "rdma/lane/worker_lane.h"

namespace verbena::rdma {

// By `incarnation`, which has this view, of a lane to shard `shard` of `server`; without offers
// yet.
v1::OpenLaneRequest NewLaneRequest(uint64_t incarnation, uint64_t server, uint32_t shard,
                                   const v1::ClusterView& view);
// Of a transport that there is. `host`: MadeTransport's.
void AddOffer(std::string_view transport, const std::string& host, v1::OpenLaneRequest* request);
// Of those that there are not, and why.
void AddMissing(const std::vector<MissingTransport>& missing, v1::OpenLaneRequest* request);

// To open the granted lane with. INTERNAL, INVALID_ARGUMENT: no server should answer so.
absl::StatusOr<LaneTicket> TicketOf(const v1::OpenLaneResponse& response, uint64_t incarnation);

// Gives back the lane, or the grant that was not taken up.
v1::CloseLaneRequest CloseRequest(const LaneTicket& ticket, uint32_t shard);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_LANE_REQUEST_H_
