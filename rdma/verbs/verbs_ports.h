// Selection of device, port and address for a verbs endpoint.
//
// **Thread safety**: functions without state.
#ifndef VERBENA_RDMA_VERBS_VERBS_PORTS_H_
#define VERBENA_RDMA_VERBS_VERBS_PORTS_H_

#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/verbs/verbs_endpoint.h"

namespace verbena::rdma {

// INVALID_ARGUMENT has the option, its value and the allowed values.
absl::Status ValidateVerbsOptions(const VerbsOptions& options);

// The first port of ListVerbsPorts() that matches device and address. UNAVAILABLE lists the
// available ports.
absl::StatusOr<VerbsPort> ChooseVerbsPort(const VerbsOptions& options);

struct SocketAddress {
  sockaddr_storage storage = {};
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};
// Parses "10.0.0.1:7000" or "[fd00::1]:7000"; only numeric, so that no call waits for a resolver.
// The text comes from a peer: INVALID_ARGUMENT for anything else.
absl::StatusOr<SocketAddress> ParseVerbsAddress(const std::string& text);

std::string IpText(const sockaddr& address);  // without a port

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_PORTS_H_
