// The conformance suite's list for a machine with an RDMA device: the verbs transport, with memory
// windows and without. VERBENA_VERBS_DEVICE names the device; otherwise the first usable one.
#include "tests/rdma/transport_conformance.h"
#include "tests/rdma/verbs_fixture.h"

namespace verbena::rdma {
namespace {

TransportUnderTest WithWindows(const std::string& name, bool windows) {
  VerbsOptions options = TestVerbsOptions();
  options.memory_windows = windows;
  TransportUnderTest transport = VerbsUnderTest(options);
  transport.name = name;
  return transport;
}

}  // namespace

const std::vector<TransportUnderTest>& TransportsUnderTest() {
  static const auto* const list = new std::vector<TransportUnderTest>{
      WithWindows("verbs", true),
      WithWindows("verbs without memory windows", false),
  };
  return *list;
}

}  // namespace verbena::rdma
