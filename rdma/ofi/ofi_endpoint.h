// The ofi transport: libfabric's reliable datagram endpoints, which work over any network.
//
// Each connection has its own libfabric endpoint (FI_EP_RDM). A write is one fi_writemsg() with
// remote completion data. Connections are set up over a separate TCP socket, which stays open: its
// end detects a dead peer, and it carries the names and keys that a peer needs.
//
// This transport adds checks that libfabric lacks. Such an endpoint accepts writes from any sender,
// and silently reconnects after it lost its connection. So each write, even without an immediate,
// carries a secret of its connection and the write's number in the upper half of its completion
// data. An unexpected number (a lost write, or one from another sender) ends the connection. Keys
// of exposed memory are random 64-bit numbers, checked in the domain given by
// `ConnectionLimits::domain`.
//
// One invariant of transport.h is weaker (6): only the receiver counts receives. So a write that
// finds no receive may have completed successfully; both sides still lose the connection.
//
// **Thread safety**: one owner thread, like every Endpoint.
#ifndef VERBENA_RDMA_OFI_OFI_ENDPOINT_H_
#define VERBENA_RDMA_OFI_OFI_ENDPOINT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdma/transport.h"

namespace verbena::rdma {

inline constexpr char kDefaultOfiProvider[] = "tcp;ofi_rxm";

struct OfiOptions {
  std::string provider = kDefaultOfiProvider;  // name as listed by fi_info(1)
  std::string address;                         // local IP address to use; empty: see `towards`
  // A host (name or address) of the cluster: without `address`, the local address of the route to
  // it is used. If this is empty too, the provider's first address is used.
  std::string towards;
  uint16_t port = 0;                                  // of the listening socket; 0: any free one
  absl::Duration connect_timeout = absl::Seconds(5);  // of a connection, from its first packet
  // A peer that acknowledges nothing for this long is considered gone (TCP_USER_TIMEOUT).
  absl::Duration silence = absl::Seconds(10);
  std::function<void(const std::string&)> log;  // receives the selection; may be empty
};

// INVALID_ARGUMENT: an option is invalid; the message has it. UNAVAILABLE: this build or machine
// has no such provider. FAILED_PRECONDITION: the provider lacks a required feature; the message has
// it.
absl::StatusOr<std::unique_ptr<Endpoint>> NewOfiEndpoint(const OfiOptions& options);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_OFI_OFI_ENDPOINT_H_
