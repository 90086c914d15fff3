// Shared by tests of the public client with regions on a GPU: a cluster of daemons, and an imitated
// driver (tests/rdma/fake_cuda), whose memory the host cannot touch.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLIENT_GPU_FIXTURE_H_
#define VERBENA_TESTS_CLIENT_GPU_FIXTURE_H_

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/rdma/cuda_fixture.h"
#include "tests/support/cluster.h"
#include "verbena/client.h"

namespace verbena::test {

inline constexpr uint64_t kElements = 300'000;  // chunks of 256 KiB, the last one short

inline std::vector<float> Read(const Region& region) {
  std::vector<float> numbers(region.size() / sizeof(float));
  REQUIRE(rdma::fake_cuda_read(region.data(), numbers.data(), region.size()));
  return numbers;
}

inline void Write(const Region& region, const std::vector<float>& numbers) {
  REQUIRE(rdma::fake_cuda_write(region.data(), numbers.data(), region.size()));
}

inline std::vector<float> Counting(float from) {
  std::vector<float> numbers(kElements);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = from + float(i % 1000);
  return numbers;
}

struct GpuFixture {
  explicit GpuFixture(const std::string& transport,
                      v1::Consistency consistency = v1::CONSISTENCY_ASYNC,
                      GpuDirectUse use = GpuDirectUse::kAuto) {
    ClientOptions options;
    options.cluster = cluster.address();
    options.transport = transport;
    options.rdma.gpu_direct = use;
    client = *Client::Connect(options);
    v1::TableSpec spec;
    spec.set_name("weights");
    spec.add_shape(kElements);
    spec.set_consistency(consistency);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    table = *client->CreateTable(spec);
  }
  Region OnGpu() { return *client->AllocateRegion(kElements * sizeof(float), MemoryKind::kCuda); }
  void Good(Ticket ticket) {
    const absl::Status status = ticket.Wait();
    INFO(status.ToString());
    REQUIRE(status.ok());
  }

  // Three push-pulls of a sync table whose rate is 1: pulled values are those before less the
  // pushed ones.
  void TrainThreeSteps() {
    const Region gradient = OnGpu(), parameters = OnGpu();
    std::vector<float> expected(kElements);
    for (int step = 1; step <= 3; ++step) {
      const std::vector<float> numbers = Counting(float(step));
      Write(gradient, numbers);
      for (size_t i = 0; i < kElements; ++i) expected[i] -= numbers[i];
      Good(client->PushPull(table, gradient, parameters));
      CHECK(Read(parameters) == expected);
    }
  }

  rdma::CudaFixture cuda;  // looks last
  ProcessCluster cluster{{.servers = 1, .shards = 2}};
  std::unique_ptr<Client> client;
  Table table;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLIENT_GPU_FIXTURE_H_
