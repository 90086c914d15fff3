// verbena-train --device: the same training on a GPU, which is imitated, and errors without one.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/cluster.h"

namespace verbena::test {
namespace {

class Training {
 public:
  Training() {
    std::string text;
    for (uint32_t i = 0, state = 1; i < 20'000; ++i) {
      state = state * 1664525 + 1013904223;
      text += "to be or not to be that is "[i % 9 + (state >> 16) % 19];
    }
    WriteFile(directory_.File("text"), text);
  }
  std::vector<std::string> Command(const std::string& cluster, const std::string& device,
                                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> argv = {TrainPath(),
                                     "--cluster",
                                     cluster,
                                     "--format",
                                     "text",
                                     "--data",
                                     directory_.File("text"),
                                     "--device",
                                     device,
                                     "--hidden",
                                     "16",
                                     "--embedding",
                                     "8",
                                     "--context",
                                     "3",
                                     "--batch",
                                     "128",
                                     "--json"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  // Bits a byte.
  double Run(const ProcessCluster& cluster, const std::string& device,
             const std::vector<std::string>& more) const {
    const Finished train = RunProgram(Command(cluster.address(), device, more));
    INFO(train.err << cluster.logs());
    REQUIRE(train.status == 0);
    return std::strtod(JsonField(train.out, "bits_per_byte").c_str(), nullptr);
  }

 private:
  TemporaryDirectory directory_;
};

TEST_CASE("training on a GPU gives the result of training on the processor") {
  const Training training;
  const ProcessCluster cluster({.servers = 2, .shards = 1});
  const std::vector<std::string> hundred = {"--steps", "100", "--workers", "2"};
  const double host = training.Run(cluster, "cpu", hundred);
  CHECK(host > 1);
  CHECK(training.Run(cluster, "cuda", hundred) == Approx(host).epsilon(1e-4));
  CHECK(training.Run(cluster, "cuda:1", hundred) == Approx(host).epsilon(1e-4));
  CHECK(training.Run(cluster, "cuda:1,0", hundred) == Approx(host).epsilon(1e-4));
  std::vector<std::string> direct = hundred;
  direct.insert(direct.end(), {"--rdma-gpu-direct", "required", "--transport", "shm"});
  const Finished required = RunProgram(training.Command(cluster.address(), "cuda", direct));
  CHECK(required.status == 1);
  CHECK_THAT(required.err, Catch::Matchers::Contains("rdma.gpu_direct is required") &&
                               Catch::Matchers::Contains("shm reaches memory of the host only"));
  // With rows of an embedding table besides, and a run that another device goes on with.
  std::vector<std::string> rows = {"--steps", "40", "--ngrams", "3", "--job", "all"};
  const double once = training.Run(cluster, "cpu", rows);
  rows = {"--steps", "20", "--ngrams", "3", "--job", "two"};
  training.Run(cluster, "cuda", rows);
  rows = {"--steps", "40", "--ngrams", "3", "--job", "two", "--resume"};
  CHECK(training.Run(cluster, "cuda", rows) == Approx(once).epsilon(1e-4));
}

TEST_CASE("without the GPU, driver, cuBLAS or NCCL, training ends with an error before it begins") {
  const Training training;
  const auto says = [&](const std::string& device, const std::string& variable,
                        const std::string& text) {
    std::vector<std::string> argv = training.Command("127.0.0.1:1", device);
    argv.insert(argv.begin(), {"/usr/bin/env", variable});
    const Finished train = RunProgram(argv);
    INFO(train.err);
    CHECK(train.status == 1);
    CHECK_THAT(train.err, Catch::Matchers::Contains(text));
  };
  says("cuda", "VERBENA_CUDA_DRIVER=/nowhere/libcuda.so.1",
       "no CUDA driver: /nowhere/libcuda.so.1");
  says("cuda", "VERBENA_CUBLAS=/nowhere/libcublas.so", "no cuBLAS: /nowhere/libcublas.so");
  says("cuda:0,1", "VERBENA_NCCL=/nowhere/libnccl.so.2", "no NCCL: /nowhere/libnccl.so.2");
  says("cuda:7", "UNUSED=1", "there is no cuda:7: this process sees 2 GPUs");
}

}  // namespace
}  // namespace verbena::test
