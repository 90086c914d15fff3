// Selection of a libfabric provider, and the reasons why one cannot be used.
//
// **Thread safety**: functions without state.
#ifndef VERBENA_RDMA_OFI_OFI_PROVIDER_H_
#define VERBENA_RDMA_OFI_OFI_PROVIDER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/ofi/ofi_endpoint.h"
#include "rdma/ofi/ofi_handles.h"

namespace verbena::rdma {

// FAILED_PRECONDITION has the property of transport.h that the provider lacks: ordered writes, 64
// bits of completion data, or keys selected by the user.
absl::Status CheckProvider(const fi_info& info);

// The provider in `options` at their address. Errors: those of NewOfiEndpoint().
absl::StatusOr<FabricInfo> ChooseProvider(const OfiOptions& options);

// The address in `info` as text; empty if it is not an IP address.
std::string SourceIp(const fi_info& info);

absl::Status FabricError(absl::StatusCode code, std::string_view what, long error);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_OFI_OFI_PROVIDER_H_
