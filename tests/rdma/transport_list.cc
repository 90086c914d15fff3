// The transports that the conformance suite is run against.
#include <sched.h>

#include "rdma/shm/shm_endpoint.h"
#include "rdma/sim/sim_network.h"
#include "tests/rdma/transport_conformance.h"

namespace verbena::rdma {
namespace {

class ShmHarness final : public TransportHarness {
 public:
  std::unique_ptr<Endpoint> NewEndpoint(const std::string&) override {
    auto endpoint = NewShmEndpoint();
    return endpoint.ok() ? *std::move(endpoint) : nullptr;
  }
};

class SimHarness final : public TransportHarness {
 public:
  explicit SimHarness(uint64_t seed) : network_(seed, SimFaults()) {}
  std::unique_ptr<Endpoint> NewEndpoint(const std::string& host) override {
    return network_.NewEndpoint(host);
  }
  // Shorter than most delays, so that the parties look while things are in progress.
  void Progress() override { network_.Advance(network_.clock().NowNanos() + 20'000); }

 private:
  SimNetwork network_;
};

}  // namespace

const std::vector<TransportUnderTest>& TransportsUnderTest() {
  static const auto* const list = [] {
    auto* all = new std::vector<TransportUnderTest>;
    all->push_back({"shm", [] { return std::make_unique<ShmHarness>(); }});
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      all->push_back({"sim, seed " + std::to_string(seed),
                      [seed] { return std::make_unique<SimHarness>(seed); }});
    }
    return all;
  }();
  return *list;
}

}  // namespace verbena::rdma
