// Transport selection: creates the endpoints of client and server for every available transport,
// and records why the others are missing.
//
// A transport has an endpoint for each of its *rails*: devices or addresses that carry data in
// parallel. Rail i of a worker connects to rail i of a server.
//
// **Thread safety**: pure functions; the caller owns the endpoints.
#ifndef VERBENA_RDMA_SELECTION_TRANSPORTS_H_
#define VERBENA_RDMA_SELECTION_TRANSPORTS_H_

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
  // "auto": every transport that works here; each lane uses the best that both sides have. With a
  // named transport there is no fallback.
  std::string transport = "auto";
  // `device` and `address` may be lists with an entry per rail, "mlx5_0,mlx5_1". So may ofi's
  // `address`.
  VerbsOptions verbs;
  OfiOptions ofi;
};

// The options of each rail. INVALID_ARGUMENT: an entry is empty or duplicate, or device and address
// have different numbers of entries.
absl::StatusOr<std::vector<VerbsOptions>> VerbsRails(const VerbsOptions& options);
absl::StatusOr<std::vector<OfiOptions>> OfiRails(const OfiOptions& options);

struct MadeTransport {
  std::unique_ptr<Endpoint> endpoint;
  // Must be equal on both sides of a connection; empty: no such requirement.
  std::string host;
  uint32_t rail = 0;  // rails of one transport are numbered from 0
};

struct MissingTransport {
  std::string transport;
  std::string reason;
};

struct Transports {
  std::vector<MadeTransport> made;  // best first
  std::vector<MissingTransport> missing;
};

// OK for the allowed values of TransportSettings::transport. INVALID_ARGUMENT has the value and the
// allowed ones.
absl::Status CheckTransport(std::string_view transport);

// Rank for the selection among common transports: 0 is the best. Unknown ones come last.
int TransportRank(std::string_view transport);

// If a named transport is not available, returns an error with the reason. A transport is available
// only if all of its rails are. "auto": UNAVAILABLE with every reason if no transport is available;
// INVALID_ARGUMENT if an option is wrong.
absl::StatusOr<Transports> MakeTransports(const TransportSettings& settings);

// "shm, verbs (mlx5_0:1)", or "shm; not verbs: no RDMA device ...".
std::string DescribeTransports(const Transports& transports);

// The selection rule of MakeTransports(), for tests: `makers` in descending preference.
struct TransportMaker {
  std::string transport;
  std::function<absl::StatusOr<std::vector<MadeTransport>>()> make;  // its rails, in order
};
absl::StatusOr<Transports> MakeTransports(const std::string& wanted,
                                          const std::vector<TransportMaker>& makers);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SELECTION_TRANSPORTS_H_
