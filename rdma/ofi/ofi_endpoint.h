// The ofi transport: reliable datagram endpoints of libfabric, which carries them over any network.
//
// Each connection has a libfabric endpoint (FI_EP_RDM) of its own; a write is one fi_writemsg()
// with remote completion data. Connections are set up over a TCP socket of ours, which stays: its
// end is how a dead peer is noticed, and the names and keys that a peer needs travel on it.
//
// What libfabric leaves open is closed here. An endpoint of this kind takes writes of anybody, and
// one that lost its connection makes another without a word: so each write, also one without an
// immediate, carries in the upper half of its completion data a secret of its connection and the
// write's number. A number out of turn (a write that was lost, or that comes from somebody else)
// ends the connection. Keys of exposed memory are random 64-bit numbers, checked in the domain that
// `ConnectionLimits::domain` names.
//
// Of transport.h's invariants, one is weaker: receives are counted by the receiver alone, so a
// write that finds none may have completed well (6); both sides lose the connection all the same.
//
// **Thread safety**: one owner thread, as every Endpoint.
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
  std::string provider = kDefaultOfiProvider;  // as fi_info(1) lists it
  std::string address;                         // local IP address to use; empty: see `towards`
  // A host (name or address) of the cluster: without `address`, the local address that leads there
  // is used. Empty, too: the provider's first.
  std::string towards;
  uint16_t port = 0;                                  // of the listening socket; 0: any free one
  absl::Duration connect_timeout = absl::Seconds(5);  // of a connection, from the first packet on
  // A peer that does not acknowledge anything for so long is gone (TCP_USER_TIMEOUT).
  absl::Duration silence = absl::Seconds(10);
  std::function<void(const std::string&)> log;  // what was chosen; may be empty
};

// INVALID_ARGUMENT: an option cannot be (names it). UNAVAILABLE: this build or this machine has no
// such provider. FAILED_PRECONDITION: the provider does not do what is needed; says what.
absl::StatusOr<std::unique_ptr<Endpoint>> NewOfiEndpoint(const OfiOptions& options);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_OFI_OFI_ENDPOINT_H_
