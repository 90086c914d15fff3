// Regions on a GPU through the public client, with daemons: a driver is imitated
// (tests/rdma/fake_cuda) whose memory the host cannot touch.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/client/gpu_fixture.h"
#include "verbena/client.h"
#include "verbena/verbena.h"

namespace verbena::test {
namespace {

TEST_CASE("a GPU's memory is pushed from and pulled to over every transport") {
  for (const char* transport : {"shm", "ofi"}) {
    INFO(transport);
    GpuFixture f(transport, v1::CONSISTENCY_SYNC);
    f.TrainThreeSteps();
    CHECK(f.client->statistics().staged_bytes == 2 * 3 * kElements * sizeof(float));
    CHECK(rdma::fake_cuda_counts().copies >= 12);
  }
}

TEST_CASE("a push runs after the work on the caller's stream, and the call does not wait for it") {
  GpuFixture f("shm");
  const Region gradient = f.OnGpu(), parameters = f.OnGpu();
  const uintptr_t stream = rdma::fake_cuda_make_stream(0);
  rdma::fake_cuda_hold_stream(stream, true);
  rdma::fake_cuda_enqueue_fill(stream, gradient.data(), 0, gradient.size());
  Write(gradient, Counting(7));  // must not be pushed
  PushOptions options;
  options.stream = reinterpret_cast<void*>(stream);
  Ticket push = f.client->Push(f.table, gradient, {}, options);
  CHECK_FALSE(push.Done());
  CHECK(push.Wait(absl::Milliseconds(50)).code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(rdma::fake_cuda_counts().copies == 0);
  rdma::fake_cuda_hold_stream(stream, false);
  f.Good(push);
  Write(parameters, Counting(3));
  f.Good(f.client->Pull(f.table, parameters));
  CHECK(Read(parameters) == std::vector<float>(kElements, 0.0f));
  rdma::fake_cuda_drop_stream(stream);
}

TEST_CASE("a tensor of the caller's, and page-locked memory, are regions") {
  GpuFixture f("shm");
  const auto device = *rdma::OpenCudaDevice(0);
  const auto tensor = *rdma::MemoryBlock::AllocateOn(device, kElements * sizeof(float));
  const Region gradient =
      *f.client->RegisterRegion(tensor->data(), tensor->size(), MemoryKind::kCuda);
  CHECK(gradient.kind() == MemoryKind::kCuda);
  Write(gradient, Counting(1));
  f.Good(f.client->Push(f.table, gradient));
  const Region pinned = *f.client->AllocateRegion(kElements * sizeof(float), MemoryKind::kPinned);
  CHECK(pinned.kind() == MemoryKind::kPinned);
  CHECK(pinned.allocated());
  const uint64_t staged = f.client->statistics().staged_bytes;
  f.Good(f.client->Pull(f.table, pinned));
  CHECK(f.client->statistics().staged_bytes == staged);  // the server writes where it belongs
  const std::vector<float> numbers = Counting(1);
  CHECK(std::equal(numbers.begin(), numbers.end(), pinned.floats(),
                   [](float pushed, float pulled) { return pulled == -pushed; }));
}

TEST_CASE("errors with GPU memory name the cause, and other calls go on") {
  GpuFixture f("shm");
  const auto expect_error = [](const absl::Status& status, absl::StatusCode code,
                               const char* text) {
    INFO(status.ToString());
    CHECK(status.code() == code);
    CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains(text));
  };
  std::vector<float> host(1024);
  expect_error(f.client->RegisterRegion(host.data(), 4096, MemoryKind::kCuda).status(),
               absl::StatusCode::kInvalidArgument, "host");
  expect_error(f.client->AllocateRegion(4096, MemoryKind::kCuda, 9).status(),
               absl::StatusCode::kInvalidArgument, "9");
  rdma::fake_cuda_set_memory(0, 1 << 20);
  expect_error(f.client->AllocateRegion(2 << 20, MemoryKind::kCuda).status(),
               absl::StatusCode::kResourceExhausted, "cuda:0");
  rdma::fake_cuda_set_memory(0, 64 << 20);
  // Its memory goes while a push is to be copied from it.
  const auto device = *rdma::OpenCudaDevice(0);
  auto tensor = *rdma::MemoryBlock::AllocateOn(device, kElements * sizeof(float));
  const Region gone = *f.client->RegisterRegion(tensor->data(), tensor->size(), MemoryKind::kCuda);
  tensor.reset();
  expect_error(f.client->Push(f.table, gone).Wait(), absl::StatusCode::kInvalidArgument, "cuda:0");
  const Region gradient = f.OnGpu();
  Write(gradient, Counting(1));
  f.Good(f.client->Push(f.table, gradient));
  rdma::fake_cuda_lose(0, 719);
  expect_error(f.client->Push(f.table, gradient).Wait(), absl::StatusCode::kUnavailable, "is lost");
  const Region memory = *f.client->AllocateRegion(kElements * sizeof(float));
  f.Good(f.client->Pull(f.table, memory));
}

TEST_CASE("C: a push-pull with GPU memory") {
  GpuFixture f("shm");
  verbena_connect_options options;
  verbena_connect_options_init(&options, sizeof options);
  const std::string address = f.cluster.address();
  options.cluster = address.c_str();
  options.job = "c";
  verbena_client* client = nullptr;
  REQUIRE(verbena_connect(&options, &client) == VERBENA_OK);
  verbena_table_spec spec;
  verbena_table_spec_init(&spec, sizeof spec);
  const uint64_t shape[] = {kElements};
  spec.name = "c";
  spec.shape = shape;
  spec.dimensions = 1;
  spec.consistency = VERBENA_CONSISTENCY_ASYNC;
  spec.optimizer = "sgd";
  spec.rate = 1;
  verbena_table* table = nullptr;
  REQUIRE(verbena_table_create(client, &spec, VERBENA_TIMEOUT_DEFAULT, &table) == VERBENA_OK);
  verbena_region* gradient = nullptr;
  REQUIRE(verbena_region_allocate(client, kElements * 4, VERBENA_MEMORY_CUDA, 1, &gradient) ==
          VERBENA_OK);
  const uintptr_t stream = rdma::fake_cuda_make_stream(1);
  verbena_region_set_stream(gradient, reinterpret_cast<void*>(stream));
  rdma::fake_cuda_enqueue_fill(stream, verbena_region_data(gradient), 0, kElements * 4);
  verbena_ticket* ticket = nullptr;
  REQUIRE(verbena_push_pull(client, table, gradient, gradient, nullptr, VERBENA_TIMEOUT_DEFAULT,
                            &ticket) == VERBENA_OK);
  CHECK(verbena_ticket_wait(ticket, VERBENA_TIMEOUT_DEFAULT) == VERBENA_OK);
  std::vector<float> numbers(kElements, 1.0f);
  REQUIRE(rdma::fake_cuda_read(verbena_region_data(gradient), numbers.data(), kElements * 4));
  CHECK(numbers == std::vector<float>(kElements, 0.0f));
  rdma::fake_cuda_drop_stream(stream);
  int paths = 0;
  REQUIRE(verbena_client_list_gpu_paths(
              client,
              [](const verbena_gpu_path* path, void* user) {
                CHECK(path->struct_size == sizeof(verbena_gpu_path));
                CHECK(std::string(path->gpu) == "cuda:1 (Fake GPU 1)");
                CHECK(std::string(path->transport) == "shm");
                CHECK(std::string(path->path) == "staging");
                CHECK(std::string(path->reason) == "shm reaches memory of the host only");
                CHECK(std::string(path->refusal).empty());
                ++*static_cast<int*>(user);
              },
              &paths) == VERBENA_OK);
  CHECK(paths == 1);
  verbena_ticket_free(ticket);
  verbena_region_free(gradient);
  verbena_table_free(table);
  verbena_client_free(client);
}

}  // namespace
}  // namespace verbena::test
