#include "rdma/sim/sim_network.h"

#include <utility>

#include "rdma/sim/sim_core.h"
#include "rdma/sim/sim_endpoint.h"

namespace verbena::rdma {

SimNetwork::SimNetwork(uint64_t seed, const SimFaults& faults)
    : core_(std::make_shared<SimCore>(seed, faults)) {}
SimNetwork::~SimNetwork() = default;

const Clock& SimNetwork::clock() const { return core_->clock(); }
bool SimNetwork::Advance(int64_t limit_ns) { return core_->Advance(limit_ns); }
std::unique_ptr<Endpoint> SimNetwork::NewEndpoint(const std::string& host) {
  return std::make_unique<SimEndpoint>(core_, host);
}
void SimNetwork::set_faults(const SimFaults& faults) { core_->set_faults(faults); }
void SimNetwork::Crash(const std::string& host) { core_->Crash(host); }
void SimNetwork::Cut(const std::string& host, bool cut) { core_->Cut(host, cut); }
void SimNetwork::Stall(const std::string& host, int64_t until_ns) { core_->Stall(host, until_ns); }
void SimNetwork::Slow(const std::string& host, int64_t most_ns) { core_->Slow(host, most_ns); }

void SimNetwork::Hang(const std::string& host) { core_->Hang(host); }
uint64_t SimNetwork::receiver_not_ready() const { return core_->receiver_not_ready(); }
uint64_t SimNetwork::news() const { return core_->news(); }
void SimNetwork::set_device_memory(DeviceMemory bytes_of) {
  core_->set_device_memory(std::move(bytes_of));
}

void SimNetwork::set_write_observer(WriteObserver observer) {
  core_->set_write_observer(std::move(observer));
}

}  // namespace verbena::rdma
