// The shm transport: two processes of one host, over sealed memfds and eventfds.
//
// A connection is set up over an abstract Unix socket (unix(7)). The initiator sends its private
// data, and its memfds as SCM_RIGHTS; the listener answers with its own. SO_PEERCRED gives the
// peer's uid, which is checked. Every foreign memfd must be sealed SHRINK|GROW|SEAL (F_GET_SEALS)
// and large enough (fstat) before it is mapped. Seals do not prevent hole punching; the SIGBUS
// guard (sigbus_guard.h) handles it. A write is a memcpy. Its immediate is one 8-byte entry
// {immediate, sequence} in a ring in the receiver's memory, published with release order.
//
// **Thread safety**: one owner thread, like every Endpoint.
#ifndef VERBENA_RDMA_SHM_SHM_ENDPOINT_H_
#define VERBENA_RDMA_SHM_SHM_ENDPOINT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdma/transport.h"

namespace verbena::rdma {

struct ShmOptions {
  absl::Duration connect_timeout = absl::Seconds(5);  // limit for a silent peer
};

absl::StatusOr<std::unique_ptr<Endpoint>> NewShmEndpoint(const ShmOptions& options = {});

// Equal in two processes if and only if they can connect over shm: boot id and network namespace.
std::string ShmHostIdentity();

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SHM_SHM_ENDPOINT_H_
