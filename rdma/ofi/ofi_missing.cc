// The ofi transport in a build without libfabric: returns an error.
#include "rdma/ofi/ofi_endpoint.h"

namespace verbena::rdma {

absl::StatusOr<std::unique_ptr<Endpoint>> NewOfiEndpoint(const OfiOptions&) {
  return absl::UnavailableError(
      "this build has no libfabric (Debian: install libfabric-dev, then configure again)");
}

}  // namespace verbena::rdma
