#include "tests/rdma/verbs_fixture.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

namespace verbena::rdma {
namespace {

std::string DeviceName() {
  const char* device = std::getenv("VERBENA_VERBS_DEVICE");
  if (device != nullptr) return device;
  std::string why;
  const auto ports = ListVerbsPorts(-1, &why);
  INFO(why);
  REQUIRE_FALSE(ports.empty());
  return ports[0].device;
}

class Harness final : public TransportHarness {
 public:
  explicit Harness(VerbsOptions options) : options_(std::move(options)) {}
  std::unique_ptr<Endpoint> NewEndpoint(const std::string&) override {
    return NewTestEndpoint(options_);
  }

 private:
  VerbsOptions options_;
};

}  // namespace

TransportUnderTest VerbsUnderTest(const VerbsOptions& options) {
  return {"verbs", [options] { return std::make_unique<Harness>(options); }};
}

VerbsOptions TestVerbsOptions() {
  VerbsOptions options;
  options.device = DeviceName();
  return options;
}

std::unique_ptr<Endpoint> NewTestEndpoint(const VerbsOptions& options) {
  auto endpoint = NewVerbsEndpoint(options);
  INFO(endpoint.status());
  REQUIRE(endpoint.ok());
  return *std::move(endpoint);
}

uint64_t HardwareCounter(const std::string& name) {
  std::ifstream file("/sys/class/infiniband/" + DeviceName() + "/ports/1/hw_counters/" + name);
  uint64_t value = 0;
  INFO(name);
  REQUIRE(file >> value);
  return value;
}

std::map<std::string, int> KernelObjects() {
  std::map<std::string, int> counts;
  FILE* pipe = popen("rdma resource show", "r");
  REQUIRE(pipe != nullptr);
  char line[512];
  while (fgets(line, sizeof(line), pipe) != nullptr) {
    std::istringstream words(line);
    std::string index, device, kind;
    words >> index >> device;
    if (device != DeviceName() + ":") continue;
    for (int count = 0; words >> kind >> count;) counts[kind] = count;
  }
  REQUIRE(pclose(pipe) == 0);
  REQUIRE(counts.count("qp") == 1);
  return counts;
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

}  // namespace verbena::rdma
