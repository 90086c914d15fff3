// The address of a shard's verbs listener, as a server gives it to a worker.
#include <netinet/in.h>

#include "rdma/verbs/verbs_ports.h"
#include "tests/fuzz/fuzz.h"

namespace verbena::fuzz {

std::vector<std::string> Seeds() {
  return {"10.0.0.1:7000", "[fd00::1]:7000", "[fe80::1%eth0]:1", "host:80", ":", "[]:1", "1:2:3"};
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena;
  const std::string text(reinterpret_cast<const char*>(data), size);
  auto address = rdma::ParseVerbsAddress(text);
  if (!address.ok()) {
    // Whatever it was, the message can be printed.
    for (const char c : address.status().message()) FUZZ_CHECK(c >= ' ' && c <= '~');
    return 0;
  }
  const int family = address->get()->sa_family;
  FUZZ_CHECK(family == AF_INET || family == AF_INET6);
  // The text of a parsed address is parsed again.
  const std::string ip = rdma::IpText(*address->get());
  const std::string again = family == AF_INET ? ip + ":1" : "[" + ip + "]:1";
  FUZZ_CHECK(rdma::ParseVerbsAddress(again).ok());
  return 0;
}
