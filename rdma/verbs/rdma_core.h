// Loads libibverbs and librdmacm (rdma-core) at run time, when verbs is first requested. So
// programs start on machines without them, and always use the machine's own: its libibverbs loads
// the providers of its devices.
//
// rdma_core.cc defines the functions of both libraries that Verbena uses, under their own names. A
// definition that is linked or preloaded comes before them.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_RDMA_VERBS_RDMA_CORE_H_
#define VERBENA_RDMA_VERBS_RDMA_CORE_H_

#include <string>

#include "absl/status/status.h"

namespace verbena::rdma {

// Loads both libraries, once. They stay loaded until the process ends. UNAVAILABLE: one is missing,
// or too old; the message has the packages to install. Until this succeeds, their functions fail
// with ENOSYS.
absl::Status LoadRdmaCore();

// Tries these files, with the same errors. No function uses them afterwards.
absl::Status CheckRdmaCore(const std::string& verbs, const std::string& connections);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_RDMA_CORE_H_
