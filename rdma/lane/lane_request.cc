#include "rdma/lane/lane_request.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/control/cluster_history.h"
#include "proto/protocol_version.h"

namespace verbena::rdma {

v1::OpenLaneRequest NewLaneRequest(uint64_t incarnation, uint64_t server, uint32_t shard,
                                   const v1::ClusterView& view) {
  v1::OpenLaneRequest request;
  request.set_incarnation(incarnation);
  request.set_server_incarnation(server);
  request.set_shard(shard);
  const Protocols spoken = SpokenProtocols();
  request.set_oldest_protocol(spoken.oldest);
  request.set_newest_protocol(spoken.newest);
  request.set_revision(view.revision());
  *request.mutable_seen() = SeenOf(view);
  *request.mutable_terms() = view.terms();
  return request;
}

void AddOffer(std::string_view transport, const std::string& host, v1::OpenLaneRequest* request) {
  v1::TransportOffer* offer = request->add_offers();
  offer->set_transport(std::string(transport));
  offer->set_host(host);
}

void AddMissing(const std::vector<MissingTransport>& missing, v1::OpenLaneRequest* request) {
  for (const MissingTransport& one : missing) {
    v1::MissingTransport* said = request->add_missing();
    said->set_transport(one.transport);
    said->set_reason(one.reason);
  }
}

absl::StatusOr<LaneTicket> TicketOf(const v1::OpenLaneResponse& response, uint64_t incarnation) {
  LaneTicket ticket;
  ticket.lane = response.lane();
  ticket.generation = response.generation();
  ticket.incarnation = incarnation;
  if (response.token().size() != sizeof(ticket.token)) {
    return absl::InternalError(absl::StrCat("lane token of ", response.token().size(), " bytes; ",
                                            sizeof(ticket.token), " expected"));
  }
  std::memcpy(ticket.token, response.token().data(), sizeof(ticket.token));
  ticket.address = response.address();
  if (const Protocols spoken = SpokenProtocols(); !spoken.Includes(response.protocol())) {
    return absl::InternalError(absl::StrCat("lane of protocol version ", response.protocol(), "; ",
                                            DescribeProtocols(spoken), " offered"));
  }
  ticket.protocol = response.protocol();
  ticket.config.small_slots = response.small_slots();
  ticket.config.small_slot_bytes = response.small_slot_bytes();
  ticket.config.large_slots = response.large_slots();
  ticket.config.large_slot_bytes = response.large_slot_bytes();
  ticket.config.operations = response.operations();
  if (absl::Status s = ticket.config.Validate(); !s.ok()) return s;
  return ticket;
}

v1::CloseLaneRequest CloseRequest(const LaneTicket& ticket, uint32_t shard) {
  v1::CloseLaneRequest request;
  request.set_incarnation(ticket.incarnation);
  request.set_shard(shard);
  request.set_lane(ticket.lane);
  request.set_generation(ticket.generation);
  return request;
}

}  // namespace verbena::rdma
