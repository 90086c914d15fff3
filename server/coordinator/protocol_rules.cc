#include "server/coordinator/protocol_rules.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "proto/protocol_version.h"

namespace verbena::server {

absl::Status CheckStateProtocol(const CoordinatorOptions& options, const v1::ClusterView& view) {
  const Protocols& spoken = options.protocols;
  const uint32_t in_force = ProtocolInForce(view);
  if (spoken.Includes(in_force)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "coordinator state: protocol version ", in_force, " is in force in it, and this verbenad ",
      "speaks ", DescribeProtocols(spoken), "; ",
      in_force > spoken.newest
          ? "start the newer verbenad that the cluster was upgraded to"
          : "upgrade coordinator and servers to a version between first, which speaks both"));
}

absl::Status CheckServerProtocol(const v1::JoinServerRequest& request,
                                 const v1::ClusterView& view) {
  const Protocols spoken = ProtocolsOf(request.protocol());
  const uint32_t in_force = ProtocolInForce(view);
  if (spoken.Includes(in_force)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "server '", request.name(), "': its verbenad speaks protocol version ",
      DescribeProtocols(spoken), ", and version ", in_force, " is in force in this cluster; ",
      in_force > spoken.newest ? "upgrade this server's verbenad"
                               : "upgrade the coordinator and the other servers first"));
}

absl::Status CheckWorkerProtocol(const v1::JoinWorkerRequest& request,
                                 const CoordinatorOptions& options, const v1::ClusterView& view) {
  const Protocols spoken = ProtocolsOf(request.protocol());
  const Protocols cluster = {options.protocols.oldest, ProtocolInForce(view)};
  if (CommonProtocol(spoken, cluster) != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker: its libverbena speaks protocol version ", DescribeProtocols(spoken),
      ", and this cluster ", DescribeProtocols(cluster), "; ",
      spoken.newest < cluster.oldest ? "upgrade the worker's libverbena"
                                     : "upgrade the coordinator and the servers first"));
}

uint32_t NextProtocolInForce(const CoordinatorOptions& options, const v1::ClusterView& view) {
  const uint32_t in_force = ProtocolInForce(view);
  if (view.servers().empty() ||
      static_cast<uint32_t>(view.servers_size()) < options.expected_servers) {
    return in_force;
  }
  uint32_t newest = options.protocols.newest;
  for (const v1::Server& server : view.servers()) {
    newest = std::min(newest, ProtocolsOf(server.protocol()).newest);
  }
  return std::max(newest, in_force);
}

}  // namespace verbena::server
