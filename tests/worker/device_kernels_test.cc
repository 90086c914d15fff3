// Launching the kernels, over an imitated driver: what is refused, what fails, and that nothing
// leaks. What they compute is tested in tests/gpu.
#include "worker/cuda/device_kernels.h"

#include <string>
#include <vector>

#include "rdma/memory/cuda/driver_api.h"
#include "tests/gpu/fake_kernels.h"
#include "tests/rdma/cuda_fixture.h"
#include "worker/cuda/kernel_types.h"

namespace verbena::worker {
namespace {

using rdma::fake_cuda_fail_next;
using rdma::MemoryBlock;
using rdma::Says;

#ifdef VERBENA_TEST_KERNELS

struct World {
  World() {
    DefineFakeKernels();
    kernels = DeviceKernels::Load(device).value();
  }
  std::byte* Memory(size_t bytes) {
    blocks.push_back(MemoryBlock::AllocateOn(device, bytes).value());
    return blocks.back()->data();
  }

  rdma::CudaFixture fixture;  // looks last
  std::shared_ptr<rdma::Device> device = rdma::OpenCudaDevice(0).value();
  std::vector<std::shared_ptr<MemoryBlock>> blocks;
  std::unique_ptr<DeviceKernels> kernels;
};

void Refused(const absl::Status& status, absl::StatusCode code, const std::string& text) {
  INFO(status.ToString());
  CHECK(status.code() == code);
  CHECK(Says(status, text));
}

TEST_CASE("kernels that cannot be loaded say why, and nothing stays") {
  const rdma::CudaFixture fixture;
  DefineFakeKernels();
  const auto device = rdma::OpenCudaDevice(0).value();
  const auto fails = [&](const char* symbol, int error, absl::StatusCode code, const char* text) {
    fake_cuda_fail_next(symbol, error);
    Refused(DeviceKernels::Load(device).status(), code, text);
    CHECK(rdma::fake_cuda_counts().modules == 0);
  };
  fails("cuModuleLoadData", rdma::cuda::kNoBinaryForGpu, absl::StatusCode::kFailedPrecondition,
        "compute capability 8.0");
  fails("cuModuleLoadData", rdma::cuda::kUnsupportedPtxVersion,
        absl::StatusCode::kFailedPrecondition, "driver of CUDA 13.0");
  fails("cuModuleLoadData", rdma::cuda::kOutOfMemory, absl::StatusCode::kResourceExhausted,
        "cuModuleLoadData");
  fails("cuModuleGetFunction", rdma::cuda::kNotFound, absl::StatusCode::kNotFound,
        "verbena_f32_to_bf16");
  fails("cuDeviceGetAttribute", rdma::cuda::kInvalidValue, absl::StatusCode::kInvalidArgument,
        "cuDeviceGetAttribute");
  CHECK(DeviceKernels::Load(device).ok());
}

TEST_CASE("what kernels cannot take is refused before anything is enqueued") {
  World w;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kMissing = absl::StatusCode::kUnimplemented;
  std::byte* const a = w.Memory(4096);
  std::byte* const b = w.Memory(4096);
  auto* const floats = reinterpret_cast<float*>(a);
  Refused(w.kernels->Convert(Conversion::kFloatToBFloat16, a + 2, b, 8, 0), kInvalid, "the input");
  Refused(w.kernels->Convert(Conversion::kFloatToBFloat16, a, b + 1, 8, 0), kInvalid, "the output");
  Refused(w.kernels->Convert(Conversion::kCopy32, a, b, 8, 0), kMissing, "to itself");
  Refused(w.kernels->Sum({}, floats, 8, 0), kInvalid, "0 inputs; 1 to 16");
  Refused(w.kernels->Sum(std::vector<const float*>(17, floats), floats, 8, 0), kInvalid,
          "17 inputs");
  const auto table = w.kernels->MakeTable({{reinterpret_cast<uint64_t>(a), 0, 100}}, 4).value();
  Refused(w.kernels->Gather(Conversion::kCopy16, table, b, 0), kInvalid, "of 4 bytes");
  Refused(w.kernels->Gather(Conversion::kFloatToFloat16, table, b, 0), kMissing, "gather");
  Refused(w.kernels->Scatter(Conversion::kCopy32, table, b + 2, 0), kInvalid, "the bucket");
  Refused(w.kernels->MakeTable({{2, 0, 100}}, 4).status(), kInvalid, "a tensor at 0x2");
  Refused(w.kernels->Convert(Conversion::kFloatToBFloat16, a, b, 8, 0x123450), kInvalid,
          "not a stream of cuda:0");
  // Nothing is nothing, and an error of a launch is no loss.
  CHECK(w.kernels->Convert(Conversion::kFloatToBFloat16, a, b, 0, 0).ok());
  CHECK(w.kernels->Gather(Conversion::kCopy32, w.kernels->MakeTable({}, 4).value(), b, 0).ok());
  CHECK(w.kernels->Convert(Conversion::kFloatToBFloat16, a, b, 8, 0).ok());
}

TEST_CASE("a table that finds no memory gives back what it had") {
  World w;
  std::byte* const tensor = w.Memory(4096);
  const auto make = [&] {
    return w.kernels->MakeTable({{reinterpret_cast<uint64_t>(tensor), 0, 1024}}, 4).status();
  };
  const size_t allocations = rdma::fake_cuda_counts().allocations;
  fake_cuda_fail_next("cuMemHostRegister_v2", rdma::cuda::kOutOfMemory);
  Refused(make(), absl::StatusCode::kResourceExhausted, "page-lock");
  fake_cuda_fail_next("cuMemAlloc_v2", rdma::cuda::kOutOfMemory);
  Refused(make(), absl::StatusCode::kResourceExhausted, "cuda:0");
  CHECK(rdma::fake_cuda_counts().allocations == allocations);
  CHECK(rdma::fake_cuda_counts().registrations == 0);
  CHECK(make().ok());
}

TEST_CASE("a kernel that reads what is not there loses the device, and says so from then on") {
  World w;
  std::byte* const a = w.Memory(4096);
  std::byte* const b = w.Memory(4096);
  const auto mark_of = [&] { return w.device->MarkStream(0); };
  CHECK(w.kernels->Convert(Conversion::kFloatToBFloat16, a, b, 100'000, 0).ok());
  const auto mark = mark_of().value();
  absl::Status status;
  for (int i = 0; i < 10 && status.ok(); ++i) status = mark->Passed().status();
  Refused(status, absl::StatusCode::kUnavailable, "is lost");
  Refused(w.kernels->Convert(Conversion::kFloatToBFloat16, a, b, 8, 0),
          absl::StatusCode::kUnavailable, "is lost");
  Refused(w.kernels->MakeTable({{reinterpret_cast<uint64_t>(a), 0, 8}}, 4).status(),
          absl::StatusCode::kUnavailable, "is lost");
  Refused(DeviceKernels::Load(w.device).status(), absl::StatusCode::kUnavailable, "is lost");
}

#else

TEST_CASE("without a CUDA compiler the kernels say that they are missing") {
  const rdma::CudaFixture fixture;
  const absl::Status status = DeviceKernels::Load(rdma::OpenCudaDevice(0).value()).status();
  CHECK(status.code() == absl::StatusCode::kUnimplemented);
  CHECK(Says(status, "no nvcc"));
}

#endif

}  // namespace
}  // namespace verbena::worker
