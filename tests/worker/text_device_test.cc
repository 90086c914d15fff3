// The text model's arithmetic on an imitated GPU: errors, and that all memory is freed.
#include "worker/cuda/text_device.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "rdma/memory/cuda/driver_api.h"
#include "tests/gpu/fake_kernels.h"
#include "tests/rdma/cuda_fixture.h"

namespace verbena::worker {
namespace {

#ifdef VERBENA_TEST_KERNELS

constexpr TextShape kShape = {.context = 2, .embedding = 4, .hidden = 8};

// The driver as at the start, with the kernels.
struct TextFixture {
  TextFixture() { DefineFakeKernels(); }
  rdma::CudaFixture cuda;
};

// The environment variable has this value while the object lives.
class Named {
 public:
  Named(const char* variable, const char* value) : variable_(variable) {
    const char* was = std::getenv(variable);
    was_ = was == nullptr ? "" : was;
    setenv(variable, value, 1);
  }
  ~Named() { setenv(variable_, was_.c_str(), 1); }

 private:
  const char* variable_;
  std::string was_;
};

absl::Status OpenStatus() {
  return TextDevice::Open(rdma::OpenCudaDevice(0).value(), kShape).status();
}

TEST_CASE("text device: the error about a missing cuBLAS names the library and the symbol") {
  const TextFixture fixture;
  {
    const Named none("VERBENA_CUBLAS", "/nowhere/libcublas.so.13");
    const absl::Status status = OpenStatus();
    CHECK(absl::IsUnavailable(status));
    CHECK(rdma::Says(status, "no cuBLAS: /nowhere/libcublas.so.13: "));
    CHECK(rdma::Says(status, "VERBENA_CUBLAS"));
  }
  const Named other("VERBENA_CUBLAS", std::getenv("VERBENA_CUDA_DRIVER"));
  const absl::Status status = OpenStatus();
  CHECK(absl::IsUnavailable(status));
  CHECK(rdma::Says(status, "cuBLAS lacks cublasCreate_v2"));
}

TEST_CASE("text device: too little memory of the GPU is an error, and no resource is kept") {
  const TextFixture fixture;
  rdma::fake_cuda_set_memory(0, 1 << 20);
  CHECK(absl::IsResourceExhausted(OpenStatus()));
  rdma::fake_cuda_set_memory(0, size_t{1} << 30);
  rdma::fake_cuda_set_pin_limit(4096);
  CHECK(absl::IsResourceExhausted(OpenStatus()));
  rdma::fake_cuda_set_pin_limit(SIZE_MAX);
  rdma::fake_cuda_fail_next("cuModuleLoadData", rdma::cuda::kNoBinaryForGpu);
  CHECK(absl::IsFailedPrecondition(OpenStatus()));
  CHECK(OpenStatus().ok());
}

TEST_CASE("text device: a GPU that is lost, or memory that is not there, ends the batch") {
  const TextFixture fixture;
  const auto device = rdma::OpenCudaDevice(0).value();
  const auto text = TextDevice::Open(device, kShape).value();
  const auto arena = rdma::MemoryBlock::AllocateOn(device, size_t{1} << 20).value();
  auto* const at = reinterpret_cast<float*>(arena->data());
  const TextParameters parameters = {at, at + 1024, at + 2048, at + 4096, at + 8192, at + 80'000};
  float* const out = at + 128 * 1024;
  const TextGradient gradient = {out, out + 1024, out + 2048, out + 4096, out + 8192, out + 80'000};
  // Regression: infinities become zeros too.
  const std::vector<float> infinite(arena->size() / sizeof(float), INFINITY);
  REQUIRE(rdma::fake_cuda_write(at, infinite.data(), arena->size()));
  CHECK(text->Zero(at, arena->size() / sizeof(float)).ok());
  CHECK(text->Start({3, false, false}, parameters, gradient, 1.0f).ok());
  CHECK(text->Finish().ok());
  CHECK(text->losses()[2] == Approx(5.545177));  // nothing is known: the logarithm of 256
  TextParameters nowhere = parameters;
  nowhere.w2 = nullptr;
  CHECK(text->Start({3, false, false}, nowhere, gradient, 1.0f).ok());
  const absl::Status status = text->Finish();
  CHECK(absl::IsUnavailable(status));
  CHECK(rdma::Says(status, "cuda:0 (Fake GPU 0) is lost"));
  CHECK(absl::IsUnavailable(text->Scale(at, 1, at, 16)));
  CHECK(absl::IsUnavailable(text->Finish()));
}

#endif

}  // namespace
}  // namespace verbena::worker
