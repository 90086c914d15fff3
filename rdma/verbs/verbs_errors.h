// Error texts for verbs: the failed operation, its numbers, and a hint.
//
// **Thread safety**: functions without state.
#ifndef VERBENA_RDMA_VERBS_VERBS_ERRORS_H_
#define VERBENA_RDMA_VERBS_VERBS_ERRORS_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace verbena::rdma {

// "CALL: TEXT (errno N)", with the status code that matches the errno; `what` is CALL.
absl::Status ErrnoStatus(std::string_view what, int error);

// A registration that the system refused: RESOURCE_EXHAUSTED with size, device, the RLIMIT_MEMLOCK
// in force and the fix (ibv_reg_mr(3)).
absl::Status RegistrationError(size_t bytes, std::string_view device, int error);

// The corresponding error for GPU memory; `route` is "dma-buf" or "peer memory".
absl::Status DeviceRegistrationError(size_t bytes, std::string_view gpu, std::string_view route,
                                     std::string_view device, int error);

// Hint for an operator about a work completion with this status; empty: none.
std::string_view CompletionHint(ibv_wc_status status);

// "::ffff:10.0.0.1" as text.
std::string GidText(const ibv_gid& gid);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_ERRORS_H_
