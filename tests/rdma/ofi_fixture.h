// Ofi endpoints for tests, on loopback.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_RDMA_OFI_FIXTURE_H_
#define VERBENA_TESTS_RDMA_OFI_FIXTURE_H_

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "rdma/ofi/ofi_endpoint.h"
#include "tests/rdma/transport_conformance.h"

namespace verbena::rdma {

// VERBENA_OFI_PROVIDER and VERBENA_OFI_ADDRESS, or tcp;ofi_rxm on loopback.
inline OfiOptions TestOfiOptions() {
  OfiOptions options;
  const char* provider = std::getenv("VERBENA_OFI_PROVIDER");
  if (provider != nullptr) options.provider = provider;
  const char* address = std::getenv("VERBENA_OFI_ADDRESS");
  options.address = address == nullptr ? "127.0.0.1" : address;
  return options;
}

inline std::unique_ptr<Endpoint> NewTestOfiEndpoint(const OfiOptions& options = TestOfiOptions()) {
  auto endpoint = NewOfiEndpoint(options);
  return endpoint.ok() ? *std::move(endpoint) : nullptr;
}

class OfiHarness final : public TransportHarness {
 public:
  std::unique_ptr<Endpoint> NewEndpoint(const std::string&) override {
    OfiOptions options = TestOfiOptions();
    // Many at once take seconds under a sanitizer; that connecting ends is for other tests.
    options.connect_timeout = absl::Seconds(60);
    return NewTestOfiEndpoint(options);
  }
};

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_OFI_FIXTURE_H_
