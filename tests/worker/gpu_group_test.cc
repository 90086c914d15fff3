// Several GPUs of one worker, imitated: sums and spreads by slices, and errors.
#include "worker/cuda/gpu_group.h"

#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/rdma/cuda_fixture.h"

namespace verbena::worker {
namespace {

using Slice = GpuGroup::Slice;
using Devices = std::vector<std::shared_ptr<rdma::Device>>;

constexpr size_t kFloats = 1000;

Devices TwoGpus() { return {rdma::OpenCudaDevice(0).value(), rdma::OpenCudaDevice(1).value()}; }

// An arena on each GPU.
struct Arenas {
  explicit Arenas(const Devices& devices) {
    for (const auto& device : devices) {
      blocks.push_back(rdma::MemoryBlock::AllocateOn(device, kFloats * sizeof(float)).value());
      at.push_back(reinterpret_cast<float*>(blocks.back()->data()));
    }
  }
  void Fill(size_t gpu, float from) {
    std::vector<float> numbers(kFloats);
    for (size_t i = 0; i < kFloats; ++i) numbers[i] = from + static_cast<float>(i);
    REQUIRE(rdma::fake_cuda_write(at[gpu], numbers.data(), kFloats * sizeof(float)));
  }
  std::vector<float> Read(size_t gpu) const {
    std::vector<float> numbers(kFloats);
    REQUIRE(rdma::fake_cuda_read(at[gpu], numbers.data(), kFloats * sizeof(float)));
    return numbers;
  }
  std::vector<std::shared_ptr<rdma::MemoryBlock>> blocks;
  std::vector<float*> at;
};

TEST_CASE("slices are whole chunks, cover all once and differ by a chunk at most") {
  for (const uint64_t elements : {1u, 63u, 64u, 65u, 640u, 1000u}) {
    for (const size_t gpus : {1u, 2u, 3u, 8u}) {
      CAPTURE(elements, gpus);
      const std::vector<Slice> slices = GpuGroup::Cut(5000, elements, 64, gpus);
      uint64_t next = 5000;
      uint64_t least = UINT64_MAX, most = 0;
      for (const Slice& slice : slices) {
        CHECK(slice.first == next);
        CHECK((slice.first - 5000) % 64 == 0);
        CHECK(slice.count > 0);
        CHECK(slice.gpu < gpus);
        next += slice.count;
        least = std::min(least, (slice.count + 63) / 64);
        most = std::max(most, (slice.count + 63) / 64);
      }
      CHECK(next == 5000 + elements);
      CHECK(most - least <= 1);
      for (size_t i = 1; i < slices.size(); ++i) CHECK(slices[i - 1].gpu < slices[i].gpu);
    }
  }
}

TEST_CASE("gpu group: each slice becomes the sum on its GPU, and then everybody's") {
  const rdma::CudaFixture fixture;
  const Devices devices = TwoGpus();
  const auto group = GpuGroup::Open(devices).value();
  Arenas arenas(devices);
  arenas.Fill(0, 0);
  arenas.Fill(1, 10'000);
  const std::vector<Slice> slices = {{100, 200, 0}, {300, 400, 1}};
  REQUIRE(group->Reduce(arenas.at, slices).ok());
  for (size_t gpu = 0; gpu < 2; ++gpu) {
    const std::vector<float> numbers = arenas.Read(gpu);
    const Slice& mine = slices[gpu];
    for (size_t i = 0; i < kFloats; ++i) {
      const auto own = static_cast<float>(gpu * 10'000 + i);
      if (i >= mine.first && i < mine.first + mine.count) {
        REQUIRE(numbers[i] == 10'000 + 2 * static_cast<float>(i));
      } else if (i < 100 || i >= 700) {
        REQUIRE(numbers[i] == own);  // of no slice
      }
    }
  }
  REQUIRE(group->Broadcast(arenas.at, slices).ok());
  for (size_t gpu = 0; gpu < 2; ++gpu) {
    const std::vector<float> numbers = arenas.Read(gpu);
    for (size_t i = 100; i < 700; ++i) REQUIRE(numbers[i] == 10'000 + 2 * static_cast<float>(i));
  }
  CHECK(group->Reduce(arenas.at, {}).ok());
}

TEST_CASE("gpu group: an error has its cause, and no resource is kept") {
  const rdma::CudaFixture fixture;
  const Devices devices = TwoGpus();
  {
    const std::string was = std::getenv("VERBENA_NCCL");
    setenv("VERBENA_NCCL", "/nowhere/libnccl.so.2", 1);
    const absl::Status status = GpuGroup::Open(devices).status();
    CHECK(absl::IsUnavailable(status));
    CHECK(rdma::Says(status, "no NCCL: /nowhere/libnccl.so.2"));
    setenv("VERBENA_NCCL", std::getenv("VERBENA_CUBLAS"), 1);
    CHECK(rdma::Says(GpuGroup::Open(devices).status(), "NCCL lacks ncclCommInitAll"));
    setenv("VERBENA_NCCL", was.c_str(), 1);
  }
  CHECK(rdma::Says(GpuGroup::Open({devices[0], devices[0]}).status(),
                   "ncclCommInitAll over 2 GPUs: invalid usage (5)"));
  const auto group = GpuGroup::Open(devices).value();
  Arenas arenas(devices);
  arenas.blocks[1].reset();
  const absl::Status status = group->Reduce(arenas.at, std::vector<Slice>{{0, 10, 0}});
  CHECK(absl::IsUnavailable(status));
  CHECK(rdma::Says(status, "is lost"));
}

// A function of the imitation that tests call.
template <typename F>
F* OfFakeNccl(const char* name) {
  void* const library = dlopen(std::getenv("VERBENA_NCCL"), RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(library != nullptr);
  void* const found = dlsym(library, name);
  REQUIRE(found != nullptr);
  return reinterpret_cast<F*>(found);
}

TEST_CASE("regression: after an error of NCCL the communicators are aborted, not destroyed") {
  const rdma::CudaFixture fixture;
  const Devices devices = TwoGpus();
  for (const bool late : {false, true}) {
    auto group = GpuGroup::Open(devices).value();
    const auto fail_group = OfFakeNccl<void(int)>("fake_nccl_fail_group");
    const auto fail_late = OfFakeNccl<void(int)>("fake_nccl_fail_late");
    const auto aborted = OfFakeNccl<int()>("fake_nccl_aborted");
    const auto destroyed = OfFakeNccl<int()>("fake_nccl_destroyed");
    const int aborted_before = aborted();
    const int destroyed_before = destroyed();
    Arenas arenas(devices);
    (late ? fail_late : fail_group)(2);
    const absl::Status status = group->Reduce(arenas.at, std::vector<Slice>{{0, 10, 0}});
    fail_late(0);
    CHECK(absl::IsUnavailable(status));
    CHECK(rdma::Says(status, "ncclReduce over 2 GPUs: "));
    CHECK(aborted() == aborted_before + 2);
    // It is for good.
    CHECK(group->Broadcast(arenas.at, std::vector<Slice>{{0, 10, 0}}) == status);
    group.reset();
    CHECK(aborted() == aborted_before + 2);
    CHECK(destroyed() == destroyed_before);
  }
}

}  // namespace
}  // namespace verbena::worker
