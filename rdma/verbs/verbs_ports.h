// Choosing a device, port and address for a verbs endpoint.
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

// INVALID_ARGUMENT naming the option, its value and what is allowed.
absl::Status ValidateVerbsOptions(const VerbsOptions& options);

// The first of ListVerbsPorts() that fits device and address. UNAVAILABLE lists what there is.
absl::StatusOr<VerbsPort> ChooseVerbsPort(const VerbsOptions& options);

std::string IpText(const sockaddr& address);  // without a port

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_PORTS_H_
