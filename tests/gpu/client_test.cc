// Regions on a GPU, real or imitated, through the public client, with a daemon.
#include "client/client.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/support/cluster.h"
#include "worker/cuda/device_kernels.h"

namespace verbena::test {
namespace {

constexpr uint64_t kElements = 5'000'001;
// Several milliseconds of a GPU, in launches of which as many may be queued.
constexpr size_t kSlowElements = 300'000;
constexpr int kSlowLaunches = 900;

struct ClientWorld {
  explicit ClientWorld(const std::string& transport) {
    ClientOptions options;
    options.cluster = cluster.address();
    options.transport = transport;
    client = Value(Client::Connect(options));
    v1::TableSpec spec;
    spec.set_name("weights");
    spec.add_shape(kElements);
    spec.set_consistency(v1::CONSISTENCY_SYNC);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    table = Value(client->CreateTable(spec));
    gradient = Value(client->AllocateRegion(kElements * sizeof(float), MemoryKind::kCuda));
    parameters = Value(client->AllocateRegion(kElements * sizeof(float), MemoryKind::kCuda));
  }

  // The lease leaves the imitation its time under a sanitizer.
  ProcessCluster cluster{{.servers = 1, .shards = 2, .lease_ms = 10'000}};
  Gpu gpu;
  std::unique_ptr<Client> client;
  Table table;
  Region gradient, parameters;
};

TEST_CASE("gradients of a GPU are pushed and parameters pulled, and no bit is lost") {
  for (const char* transport : {"shm", "ofi"}) {
    INFO(transport);
    ClientWorld w(transport);
    std::vector<float> expected(kElements, 0.0f), values(kElements);
    for (int step = 1; step <= 5; ++step) {
      for (size_t i = 0; i < kElements; ++i) {
        values[i] = float((i * 7919 + size_t(step) * 104'729) % 65'536) / 256;
        expected[i] -= values[i];
      }
      w.gpu.Write(w.gradient.data(), values.data(), w.gradient.size());
      Good(w.client->PushPull(w.table, w.gradient, w.parameters).Wait());
      CHECK(w.gpu.Download<float>(w.parameters.data(), kElements) == expected);
    }
  }
}

TEST_CASE("a push comes after what its stream holds, and neither waits for the other") {
  ClientWorld w("shm");
  const auto kernels = Value(worker::DeviceKernels::Load(w.gpu.device()));
  const uintptr_t stream = w.gpu.MakeStream();
  const std::vector<float> zeros(kElements, 0.0f);
  w.gpu.Write(w.gradient.data(), zeros.data(), w.gradient.size());
  const auto ones = w.gpu.Upload(std::vector<float>(kElements, 1.0f));
  const auto slow = w.gpu.Upload(std::vector<float>(kSlowElements, 0.0f));
  const auto add = [&](std::byte* to, size_t n) {
    auto* const out = reinterpret_cast<float*>(to);
    const float* const inputs[] = {out, reinterpret_cast<const float*>(ones->data())};
    Good(kernels->Sum(inputs, out, n, stream));
  };
  // The imitation computes while it is asked, which the client does: its time tells nothing
  // (client_device_api_test holds its stream back instead), and would cost the worker its lease.
  const int launches = w.gpu.imitated() ? 1 : kSlowLaunches;
  for (int i = 0; i < launches; ++i) add(slow->data(), kSlowElements);
  for (int i = 0; i < 3; ++i) add(w.gradient.data(), kElements);
  PushOptions options;
  options.stream = reinterpret_cast<void*>(stream);
  Ticket push = w.client->Push(w.table, w.gradient, {}, options);
  if (!w.gpu.imitated()) {
    const auto mark = Value(w.gpu.device()->MarkStream(stream));
    CHECK_FALSE(Value(mark->Passed()));
  }
  Good(w.client->EndStep(w.table).Wait());
  Good(push.Wait());
  Good(w.client->Pull(w.table, w.parameters).Wait());
  CHECK(w.gpu.Download<float>(w.parameters.data(), kElements) ==
        std::vector<float>(kElements, -3.0f));
  w.gpu.DropStream(stream);
}

}  // namespace
}  // namespace verbena::test
