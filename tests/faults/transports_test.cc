// The same training over shm and over ofi, and errors when workers and servers have no transport in
// common.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/cluster.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

// Labels by a linear rule of a few of 40 binary features.
std::string Rows(int count, uint32_t seed) {
  std::string text;
  uint32_t state = seed;
  for (int row = 0; row < count; ++row) {
    int score = 0;
    std::string features;
    for (int index = 1; index <= 40; ++index) {
      state = state * 1664525 + 1013904223;
      if (state >> 30 != 0) continue;
      score += index % 5 - 2;
      absl::StrAppend(&features, " ", index, ":1");
    }
    absl::StrAppend(&text, score > 0 ? 1 : 0, features, "\n");
  }
  return text;
}

class Training {
 public:
  Training() {
    WriteFile(directory_.File("train"), Rows(4000, 1));
    WriteFile(directory_.File("test"), Rows(500, 2));
  }
  Finished Run(const ProcessCluster& cluster, const std::string& transport,
               const std::string& model) const {
    return RunProgram({TrainPath(), "--cluster", cluster.address(), "--format", "libsvm", "--model",
                       model, "--data", directory_.File("train"), "--test", directory_.File("test"),
                       "--workers", "3", "--steps", "60", "--checksum", "--json", "--transport",
                       transport});
  }

 private:
  TemporaryDirectory directory_;
};

TEST_CASE("a sync run over ofi gives the bits that it gives over shm") {
  const std::string model = GENERATE("logistic", "embedding-logistic");
  CAPTURE(model);
  const Training training;
  std::string checksum;
  for (const std::string transport : {"shm", "ofi"}) {
    setenv("VERBENA_TEST_TRANSPORT", transport.c_str(), 1);
    const ProcessCluster cluster;
    const Finished run = training.Run(cluster, transport, model);
    INFO(run.err);
    REQUIRE(run.status == 0);
    const std::string got = JsonField(run.out, "parameters_xxh64");
    REQUIRE_FALSE(got.empty());
    if (transport == "shm") checksum = got;
    CHECK(got == checksum);
  }
}

TEST_CASE("servers with ofi alone are not reached over shm, and the reason is given") {
  const Training training;
  setenv("VERBENA_TEST_TRANSPORT", "ofi", 1);
  ProcessCluster cluster;
  const Finished run = training.Run(cluster, "shm", "logistic");
  CHECK(run.status != 0);
  CHECK_THAT(run.err, Contains("no common transport") && Contains("only transport ofi"));
  CHECK_THAT(cluster.server(0).err(), Contains("transports: ofi (tcp;ofi_rxm at 127.0.0.1)"));
}

}  // namespace
}  // namespace verbena::test
