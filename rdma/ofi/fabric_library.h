// Loads libfabric at run time, when ofi is first requested. So programs that use other transports
// start without it. (Debian's libfabric loads libinfinipath, which measures the processor's clock
// for 0.2 s and installs signal handlers.)
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_RDMA_OFI_FABRIC_LIBRARY_H_
#define VERBENA_RDMA_OFI_FABRIC_LIBRARY_H_

#include <rdma/fabric.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::rdma {

// Its functions that are not inline: fi_getinfo(3), fi_fabric(3), fi_version(3), fi_errno(3).
struct FabricApi {
  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_version) version = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;
};

// Loads libfabric.so.1, or the file in VERBENA_LIBFABRIC, once. It stays loaded until the process
// ends, and its signal handlers are removed. UNAVAILABLE: it is missing, or older than 1.17; the
// message has the package to install.
absl::Status LoadFabric();

// Call only after LoadFabric() has succeeded.
const FabricApi& Fabric();

// Loads this file, with the same errors.
absl::StatusOr<FabricApi> LoadFabricFrom(const std::string& path);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_OFI_FABRIC_LIBRARY_H_
