// The conformance suite's list for the ofi transport: libfabric's tcp;ofi_rxm over loopback, or the
// provider and address of VERBENA_OFI_PROVIDER and VERBENA_OFI_ADDRESS.
#include "tests/rdma/ofi_fixture.h"

namespace verbena::rdma {

const std::vector<TransportUnderTest>& TransportsUnderTest() {
  static const auto* const list = new std::vector<TransportUnderTest>{
      {TestOfiOptions().provider, [] { return std::make_unique<OfiHarness>(); }}};
  return *list;
}

}  // namespace verbena::rdma
