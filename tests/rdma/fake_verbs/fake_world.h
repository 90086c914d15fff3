// Shared by tests over the fake device: endpoints on a fresh device, and their logs.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_RDMA_FAKE_VERBS_FAKE_WORLD_H_
#define VERBENA_TESTS_RDMA_FAKE_VERBS_FAKE_WORLD_H_

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rdma/verbs/verbs_endpoint.h"
#include "tests/rdma/fake_verbs/fake_verbs.h"
#include "tests/rdma/transport_conformance.h"

namespace verbena::rdma {

struct Logs {
  std::vector<std::string> lines;
  bool Have(const std::string& text) const {
    for (const std::string& line : lines) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }
};

class FakeHarness final : public TransportHarness {
 public:
  FakeHarness(VerbsOptions options, Logs* logs) : options_(std::move(options)) {
    options_.log = [logs](const std::string& line) { logs->lines.push_back(line); };
  }
  std::unique_ptr<Endpoint> NewEndpoint(const std::string&) override {
    auto endpoint = NewVerbsEndpoint(options_);
    INFO(endpoint.status());
    REQUIRE(endpoint.ok());
    return *std::move(endpoint);
  }

 private:
  VerbsOptions options_;
};

// A fresh fake device, and parties on it.
struct FakeWorld {
  explicit FakeWorld(const VerbsOptions& options = {})
      : stage(
            {"verbs", [this, options] { return std::make_unique<FakeHarness>(options, &logs); }}) {}

  struct Reset {
    Reset() { ResetFakeVerbs(); }
    ~Reset() { ResetFakeVerbs(); }
  };
  Reset reset;
  Logs logs;
  Stage stage;
};

inline bool Says(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

inline Pair::Options Receives(uint32_t client, uint32_t server) {
  Pair::Options options;
  options.client_receives = client;
  options.server_receives = server;
  return options;
}

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_FAKE_VERBS_FAKE_WORLD_H_
