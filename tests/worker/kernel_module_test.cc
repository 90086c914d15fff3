// Loading and launching the kernels, over an imitated driver: errors, and that nothing leaks. Their
// results are tested in tests/gpu.
#include "worker/cuda/kernel_module.h"

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
    kernels = KernelModule::Load(device).value();
  }
  std::byte* Memory(size_t bytes) {
    blocks.push_back(MemoryBlock::AllocateOn(device, bytes).value());
    return blocks.back()->data();
  }

  // Halves the numbers, into the second half of their page.
  absl::Status Scale(std::byte* numbers, uint64_t n, uint32_t launched, uintptr_t stream) {
    float factor = 0.5f;
    std::byte* out = numbers + 2048;
    void* parameters[] = {&numbers, &factor, &out, &n};
    return kernels->Launch(kScale, launched, stream, parameters);
  }

  rdma::CudaFixture fixture;  // looks last
  std::shared_ptr<rdma::Device> device = rdma::OpenCudaDevice(0).value();
  std::vector<std::shared_ptr<MemoryBlock>> blocks;
  std::unique_ptr<KernelModule> kernels;
};

void Refused(const absl::Status& status, absl::StatusCode code, const std::string& text) {
  INFO(status.ToString());
  CHECK(status.code() == code);
  CHECK(Says(status, text));
}

TEST_CASE("the error of kernels that cannot be loaded has the reason, and no module stays") {
  const rdma::CudaFixture fixture;
  DefineFakeKernels();
  const auto device = rdma::OpenCudaDevice(0).value();
  const auto fails = [&](const char* symbol, int error, absl::StatusCode code, const char* text) {
    fake_cuda_fail_next(symbol, error);
    Refused(KernelModule::Load(device).status(), code, text);
    CHECK(rdma::fake_cuda_counts().modules == 0);
  };
  fails("cuModuleLoadData", rdma::cuda::kNoBinaryForGpu, absl::StatusCode::kFailedPrecondition,
        "compute capability 8.0");
  fails("cuModuleLoadData", rdma::cuda::kUnsupportedPtxVersion,
        absl::StatusCode::kFailedPrecondition, "driver of CUDA 13.0");
  fails("cuModuleLoadData", rdma::cuda::kOutOfMemory, absl::StatusCode::kResourceExhausted,
        "cuModuleLoadData");
  fails("cuModuleGetFunction", rdma::cuda::kNotFound, absl::StatusCode::kNotFound, kKernelNames[0]);
  fails("cuDeviceGetAttribute", rdma::cuda::kInvalidValue, absl::StatusCode::kInvalidArgument,
        "cuDeviceGetAttribute");
  CHECK(KernelModule::Load(device).ok());
}

TEST_CASE("a launch names the stream that is gone, and a kernel without blocks does nothing") {
  World w;
  Refused(w.Scale(w.Memory(4096), 8, 1, 0x123450), absl::StatusCode::kInvalidArgument,
          "not a stream of cuda:0");
  CHECK(w.Scale(w.Memory(4096), 8, 0, 0).ok());
  CHECK(w.Scale(w.Memory(4096), 8, 1, 0).ok());
}

TEST_CASE("a kernel that reads beyond its memory loses the device, as later calls report") {
  World w;
  std::byte* const memory = w.Memory(4096);
  CHECK(w.Scale(memory, 100'000, 1, 0).ok());
  const auto mark = w.device->MarkStream(0).value();
  absl::Status status;
  for (int i = 0; i < 10 && status.ok(); ++i) status = mark->Passed().status();
  Refused(status, absl::StatusCode::kUnavailable, "is lost");
  Refused(w.Scale(memory, 8, 1, 0), absl::StatusCode::kUnavailable, "is lost");
  Refused(KernelModule::Load(w.device).status(), absl::StatusCode::kUnavailable, "is lost");
}

#else

TEST_CASE("without a CUDA compiler, loading kernels gives an error about nvcc") {
  const rdma::CudaFixture fixture;
  const absl::Status status = KernelModule::Load(rdma::OpenCudaDevice(0).value()).status();
  CHECK(status.code() == absl::StatusCode::kUnimplemented);
  CHECK(Says(status, "no nvcc"));
}

#endif

}  // namespace
}  // namespace verbena::worker
