// Shared by tests of the verbs transport: an endpoint on the test device, and the kernel's
// information about it.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_RDMA_VERBS_FIXTURE_H_
#define VERBENA_TESTS_RDMA_VERBS_FIXTURE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "rdma/verbs/verbs_endpoint.h"
#include "tests/rdma/transport_conformance.h"

namespace verbena::rdma {

// On VERBENA_VERBS_DEVICE, or on the first usable one.
VerbsOptions TestVerbsOptions();
std::unique_ptr<Endpoint> NewTestEndpoint(const VerbsOptions& options = TestVerbsOptions());

// For Stage and Pair of the conformance suite.
TransportUnderTest VerbsUnderTest(const VerbsOptions& options = TestVerbsOptions());

// /sys/class/infiniband/DEVICE/ports/1/hw_counters/NAME
uint64_t HardwareCounter(const std::string& name);

// How many objects of each kind ("qp", "cq", "pd", "mr", "cm_id", "ctx") the kernel has for the
// device, from `rdma resource`.
std::map<std::string, int> KernelObjects();

int OpenDescriptors();  // of this process

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_VERBS_FIXTURE_H_
