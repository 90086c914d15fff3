// libfabric, found at run time by the first that asks for ofi: programs start without it where data
// travels otherwise. (Debian's brings libinfinipath, which when it is loaded measures the
// processor's clock for 0.2 s and takes signals.)
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

// Loads libfabric.so.1, or the file that VERBENA_LIBFABRIC names, once; it stays for as long as the
// process, and takes no signal of it. UNAVAILABLE: there is none, or it is older than 1.17; the
// text says what to install.
absl::Status LoadFabric();

// After LoadFabric() has succeeded.
const FabricApi& Fabric();

// The same, of this file.
absl::StatusOr<FabricApi> LoadFabricFrom(const std::string& path);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_OFI_FABRIC_LIBRARY_H_
