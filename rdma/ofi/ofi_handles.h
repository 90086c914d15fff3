// Owning handles of libfabric's objects.
//
// **Thread safety**: plain values.
#ifndef VERBENA_RDMA_OFI_OFI_HANDLES_H_
#define VERBENA_RDMA_OFI_OFI_HANDLES_H_

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <memory>

#include "rdma/ofi/fabric_library.h"

namespace verbena::rdma {

struct FidCloser {
  template <typename T>
  void operator()(T* object) const {
    (void)fi_close(&object->fid);
  }
};
using FabricHandle = std::unique_ptr<fid_fabric, FidCloser>;
using FabricDomainHandle = std::unique_ptr<fid_domain, FidCloser>;
using FabricEpHandle = std::unique_ptr<fid_ep, FidCloser>;
using FabricCqHandle = std::unique_ptr<fid_cq, FidCloser>;
using FabricAvHandle = std::unique_ptr<fid_av, FidCloser>;
using FabricMrHandle = std::unique_ptr<fid_mr, FidCloser>;

struct InfoFreer {
  void operator()(fi_info* info) const { Fabric().freeinfo(info); }
};
using FabricInfo = std::unique_ptr<fi_info, InfoFreer>;

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_OFI_OFI_HANDLES_H_
