// Which transports this process can use: the endpoints that client and server are made of, and why
// the other transports are missing.
//
// A transport has an endpoint for each of its *rails*: devices or addresses that carry data side by
// side. Rail i of a worker is connected with rail i of a server.
//
// **Thread safety**: pure functions; the endpoints belong to whoever takes them.
#ifndef VERBENA_RDMA_CHOICE_TRANSPORTS_H_
#define VERBENA_RDMA_CHOICE_TRANSPORTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/ofi/ofi_endpoint.h"
#include "rdma/transport.h"
#include "rdma/verbs/verbs_endpoint.h"

namespace verbena::rdma {

struct TransportSettings {
  // "auto": every one that works here, and each lane takes the best that both of its sides have.
  // A named one is the only one: it never falls back.
  std::string transport = "auto";
  // `device` and `address` may be lists, "mlx5_0,mlx5_1": an entry for each rail. So may ofi's
  // `address`.
  VerbsOptions verbs;
  OfiOptions ofi;
};

// What each rail is made with. INVALID_ARGUMENT: an entry is empty or there twice, or device and
// address have different numbers of entries.
absl::StatusOr<std::vector<VerbsOptions>> VerbsRails(const VerbsOptions& options);
absl::StatusOr<std::vector<OfiOptions>> OfiRails(const OfiOptions& options);

struct MadeTransport {
  std::unique_ptr<Endpoint> endpoint;
  // What both sides must say alike to reach each other; empty: nothing of the kind.
  std::string host;
  uint32_t rail = 0;  // those of one transport are numbered from 0
};

struct MissingTransport {
  std::string transport;
  std::string reason;
};

struct Transports {
  std::vector<MadeTransport> made;  // best first
  std::vector<MissingTransport> missing;
};

// OK for what TransportSettings::transport may be; INVALID_ARGUMENT names value and alternatives.
absl::Status CheckTransport(std::string_view transport);

// Preference where two sides have several in common: 0 is the best. Unknown ones come last.
int TransportRank(std::string_view transport);

// A named transport that cannot be made is an error with its reason. One of which a rail cannot be
// made cannot be made: there are never fewer rails than were named. "auto": UNAVAILABLE with every
// reason when there is none at all; INVALID_ARGUMENT when an option is wrong.
absl::StatusOr<Transports> MakeTransports(const TransportSettings& settings);

// "shm, verbs (mlx5_0:1)", or "shm; not verbs: no RDMA device ...".
std::string DescribeTransports(const Transports& transports);

// The rule behind MakeTransports(), for tests: `makers` best first.
struct TransportMaker {
  std::string transport;
  std::function<absl::StatusOr<std::vector<MadeTransport>>()> make;  // its rails, in order
};
absl::StatusOr<Transports> MakeTransports(const std::string& wanted,
                                          const std::vector<TransportMaker>& makers);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_CHOICE_TRANSPORTS_H_
