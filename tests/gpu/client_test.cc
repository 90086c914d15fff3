// Regions on a GPU, real or imitated, through the public client, with a daemon.
#include "verbena/client.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/gpu/held_stream.h"
#include "tests/support/cluster.h"
#include "worker/cuda/kernel_module.h"
#include "worker/cuda/kernel_types.h"

namespace verbena::test {
namespace {

constexpr uint64_t kElements = 5'000'001;

// to[i] += row[i], for f32.
absl::Status AddRow(const worker::KernelModule& kernels, const std::byte* row, std::byte* to,
                    uint32_t elements, uintptr_t stream) {
  uint32_t rows = 1;
  void* parameters[] = {&row, &to, &rows, &elements};
  return kernels.Launch(worker::kColumnSums, 64, stream, parameters);
}

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
    host = Value(client->AllocateRegion(kElements * sizeof(float)));
  }

  // The lease leaves the imitation its time under a sanitizer.
  ProcessCluster cluster{{.servers = 1, .shards = 2, .lease_ms = 10'000}};
  Gpu gpu;
  std::unique_ptr<Client> client;
  Table table;
  Region gradient, parameters;  // on the GPU
  Region host;
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

// "held": compute-sanitizer does one thing after another on the GPU, which then waits for ever.
TEST_CASE("a push comes after the work in its stream, and neither waits for the other", "[held]") {
  ClientWorld w("shm");
  const auto kernels = Value(worker::KernelModule::Load(w.gpu.device()));
  const uintptr_t stream = w.gpu.MakeStream();
  const std::vector<float> zeros(kElements, 0.0f);
  w.gpu.Write(w.gradient.data(), zeros.data(), w.gradient.size());
  const auto ones = w.gpu.Upload(std::vector<float>(kElements, 1.0f));
  const auto add = [&](std::byte* to) {
    Good(AddRow(*kernels, ones->data(), to, kElements, stream));
  };
  const auto other = w.gpu.Upload(zeros);
  // The imitation computes while it is asked: client_device_api_test holds its stream back instead.
  std::unique_ptr<HeldStream> held;
  if (!w.gpu.imitated()) held = std::make_unique<HeldStream>(&w.gpu, stream);
  for (int i = 0; i < 3; ++i) add(w.gradient.data());
  PushOptions options;
  options.stream = reinterpret_cast<void*>(stream);
  Ticket push = w.client->Push(w.table, w.gradient, {}, options);
  // Work of the caller's next step.
  add(other->data());
  Ticket end = w.client->EndStep(w.table);
  if (held != nullptr) {
    const auto mark = Value(w.gpu.device()->MarkStream(stream));
    // Calls that do not need the stream pass it, on the GPU and beside it.
    PullOptions begun;
    begun.min_version = 0;
    Good(w.client->Pull(w.table, w.parameters, {}, begun).Wait());
    Good(w.client->Pull(w.table, w.host, {}, begun).Wait());
    CHECK_FALSE(Value(mark->Passed()));
    CHECK_FALSE(push.Done());
    CHECK_FALSE(end.Done());
    held->Release();
    // The stream goes on, be it that nobody asks for the push.
    w.gpu.Wait(stream);
  }
  Good(end.Wait());
  Good(push.Wait());
  Good(w.client->Pull(w.table, w.parameters).Wait());
  CHECK(w.gpu.Download<float>(w.parameters.data(), kElements) ==
        std::vector<float>(kElements, -3.0f));
  CHECK(w.gpu.Download<float>(other->data(), kElements) == std::vector<float>(kElements, 1.0f));
  w.gpu.DropStream(stream);
}

TEST_CASE(
    "a tensor that was freed under its region is an error of the push, and no more than that") {
  ClientWorld w("shm");
  rdma::cuda::CudaContext* const context = rdma::ContextOf(w.gpu.device().get());
  constexpr size_t kBytes = kElements * sizeof(float);
  rdma::cuda::Address tensor = 0;
  {
    const rdma::cuda::CudaContext::Scope scope(context);
    REQUIRE(context->api().cuMemAlloc_v2(&tensor, kBytes) == 0);
  }
  const Region region =
      Value(w.client->RegisterRegion(reinterpret_cast<void*>(tensor), kBytes, MemoryKind::kCuda));
  {
    const rdma::cuda::CudaContext::Scope scope(context);
    REQUIRE(context->api().cuMemFree_v2(tensor) == 0);
  }
  const absl::Status status = w.client->Push(w.table, region).Wait();
  INFO(status.ToString());
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("still allocated"));
  w.gpu.Write(w.gradient.data(), std::vector<float>(kElements, 1.0f).data(), kBytes);
  Good(w.client->PushPull(w.table, w.gradient, w.parameters).Wait());
  CHECK(w.gpu.Download<float>(w.parameters.data(), kElements) ==
        std::vector<float>(kElements, -1.0f));
}

// The process has no GPU afterwards, so run.sh gives this one a process of its own.
TEST_CASE("a GPU that is lost ends its calls with the cause, and memory of the host goes on",
          "[.][lost]") {
  ClientWorld w("shm");
  REQUIRE_FALSE(w.gpu.imitated());
  const auto kernels = Value(worker::KernelModule::Load(w.gpu.device()));
  auto* const nowhere = reinterpret_cast<std::byte*>(uintptr_t{64});
  const uintptr_t stream = w.gpu.MakeStream();
  Good(AddRow(*kernels, nowhere, nowhere, 1024, stream));
  PushOptions options;
  options.stream = reinterpret_cast<void*>(stream);
  const absl::Status status =
      w.client->PushPull(w.table, w.gradient, w.parameters, {}, options).Wait();
  WARN(status.ToString());
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("cuda:0"));
  const absl::Status more =
      w.client->AllocateRegion(kElements * sizeof(float), MemoryKind::kCuda).status();
  CHECK(more.code() == absl::StatusCode::kUnavailable);
  WARN(more.ToString());
  PullOptions begun;
  begun.min_version = 0;
  Good(w.client->Pull(w.table, w.host, {}, begun).Wait());
}

}  // namespace
}  // namespace verbena::test
