// Regions on a GPU that the RDMA device reads and writes itself, through the public client, with
// daemons; over verbs. The GPU and the kernel's side of it are imitated.
#include <csignal>

#include "tests/client/gpu_fixture.h"
#include "tests/rdma/fake_gpu_direct.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

constexpr size_t kBytes = kElements * sizeof(float);

TEST_CASE("gpu direct: pushes and pulls copy nothing") {
  rdma::fake_kernel() = {};
  GpuFixture f("verbs", v1::CONSISTENCY_SYNC);
  f.TrainThreeSteps();
  const ClientStatistics statistics = f.client->statistics();
  CHECK(statistics.staged_bytes == 0);
  CHECK(statistics.direct_bytes == 2 * 3 * kBytes);
  REQUIRE(statistics.gpu_paths.size() == 1);
  CHECK(statistics.gpu_paths[0].gpu == "cuda:0 (Fake GPU 0)");
  CHECK(statistics.gpu_paths[0].transport == "verbs");
  CHECK_FALSE(statistics.gpu_paths[0].device.empty());
  CHECK(statistics.gpu_paths[0].path == "dma-buf");
  CHECK(statistics.gpu_paths[0].reason.empty());
  CHECK(statistics.gpu_paths[0].refusal.empty());
  CHECK(rdma::fake_cuda_counts().copies == 0);
  CHECK(rdma::fake_cuda_counts().flushes == 3);
}

TEST_CASE(
    "gpu direct: staging replaces it where it is unavailable, with the same data and a reason") {
  rdma::fake_kernel() = {};
  rdma::fake_kernel().dma_bufs = rdma::FakeKernel::DmaBufs::kReal;
  GpuFixture f("verbs");
  const Region gradient = f.OnGpu();
  Write(gradient, Counting(1));
  f.Good(f.client->PushPull(f.table, gradient, gradient));
  CHECK(Read(gradient)[1] == -2.0f);
  const ClientStatistics statistics = f.client->statistics();
  CHECK(statistics.staged_bytes == 2 * kBytes);
  REQUIRE(statistics.gpu_paths.size() == 1);
  CHECK(statistics.gpu_paths[0].path == "staging");
  CHECK_THAT(statistics.gpu_paths[0].reason, Contains("takes no dma-buf"));
}

TEST_CASE("gpu direct: calls fail with the reason where it is required and unavailable") {
  rdma::fake_kernel() = {};
  rdma::fake_kernel().dma_bufs = rdma::FakeKernel::DmaBufs::kNotTaken;
  GpuFixture f("verbs", v1::CONSISTENCY_ASYNC, GpuDirectUse::kRequired);
  const absl::Status status = f.client->Push(f.table, f.OnGpu()).Wait();
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(status.message()),
             Contains("push of chunk ") && Contains("of table 'weights'") &&
                 Contains("rdma.gpu_direct is required") && Contains("takes no dma-buf"));
  const Region memory = *f.client->AllocateRegion(kBytes);
  f.Good(f.client->PushPull(f.table, memory, memory));
}

TEST_CASE("gpu direct: one region that is refused is staged, others are not") {
  rdma::fake_kernel() = {};
  GpuFixture f("verbs");
  const Region first = f.OnGpu(), second = f.OnGpu();
  rdma::fake_kernel().refuse = 12;  // ENOMEM
  f.Good(f.client->Push(f.table, first));
  f.Good(f.client->Push(f.table, second));
  const ClientStatistics statistics = f.client->statistics();
  // The first one is tried again when the lane to the other shard opens.
  CHECK(statistics.staged_bytes > 0);
  CHECK(statistics.direct_bytes >= kBytes);
  CHECK(statistics.staged_bytes + statistics.direct_bytes == 2 * kBytes);
  REQUIRE(statistics.gpu_paths.size() == 1);
  CHECK(statistics.gpu_paths[0].path == "dma-buf");
  CHECK_THAT(statistics.gpu_paths[0].refusal, Contains("BAR1"));
}

TEST_CASE("gpu direct: a region freed while a server hangs is released, and calls go on") {
  rdma::fake_kernel() = {};
  GpuFixture f("verbs");
  f.Good(f.client->Push(f.table, f.OnGpu()));
  f.cluster.server(0).Signal(SIGSTOP);
  Ticket push;
  {
    const Region gradient = f.OnGpu();
    push = f.client->Push(f.table, gradient);
    CHECK(push.Wait(absl::Milliseconds(100)).code() == absl::StatusCode::kDeadlineExceeded);
    CHECK(rdma::fake_cuda_counts().allocations == 1);
  }
  CHECK(push.Wait().code() == absl::StatusCode::kCancelled);
  CHECK(push.BufferReleased());
  CHECK(rdma::fake_cuda_counts().allocations == 0);
  f.cluster.server(0).Signal(SIGCONT);
  f.Good(f.client->Push(f.table, f.OnGpu()));
}

}  // namespace
}  // namespace verbena::test
