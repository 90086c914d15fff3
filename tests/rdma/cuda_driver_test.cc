// Loading a CUDA driver, and the errors when no driver works.
#include <cstdlib>

#include "rdma/memory/cuda/cuda_errors.h"
#include "rdma/memory/cuda/driver.h"
#include "tests/rdma/cuda_fixture.h"

namespace verbena::rdma {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

TEST_CASE("without a driver the error names the missing library and the remedy") {
  const absl::Status status = cuda::LoadDriverFrom("/nonexistent/libcuda.so.1").status();
  CHECK(absl::IsUnavailable(status));
  CHECK(Says(status, "no CUDA driver: /nonexistent/libcuda.so.1: "));
  CHECK(Says(status, "No such file"));
  CHECK(Says(status, "install NVIDIA's driver"));
  CHECK(Says(status, "or use host memory"));
}

TEST_CASE("a driver that lacks a function is refused, with the name of the function") {
  const absl::Status status = cuda::LoadDriverFrom(Environment("FAKE_CUDA_OLD")).status();
  CHECK(absl::IsUnavailable(status));
  CHECK(Says(status, "lacks cuDriverGetVersion: it is too old, or none; CUDA 11.0"));
}

TEST_CASE("the error of a driver that does not start has the CUDA error's name and the cause") {
  const CudaFixture fixture;
  const std::string path = Environment("VERBENA_CUDA_DRIVER");
  fake_cuda_fail_next("cuInit", cuda::kNoDevice);
  const absl::Status none = cuda::LoadDriverFrom(path).status();
  CHECK(absl::IsUnavailable(none));
  CHECK(Says(none, "cuInit: CUDA_ERROR_NO_DEVICE (100)"));
  CHECK(Says(none, "there is no GPU, or CUDA_VISIBLE_DEVICES"));

  fake_cuda_fail_next("cuInit", cuda::kSystemDriverMismatch);  // its name this driver does not know
  const absl::Status mismatch = cuda::LoadDriverFrom(path).status();
  CHECK(absl::IsUnavailable(mismatch));
  CHECK(Says(mismatch, "an unknown CUDA error (803); library and kernel module"));
  CHECK(cuda::LoadDriverFrom(path).ok());
}

TEST_CASE("a driver is loaded once for the process") {
  const CudaFixture fixture;
  const cuda::DriverApi* api = cuda::LoadDriver().value();
  fake_cuda_fail_next("cuInit", cuda::kNoDevice);
  CHECK(cuda::LoadDriver().value() == api);
}

// In a process of its own, with VERBENA_CUDA_DRIVER naming no file.
TEST_CASE("a process without a driver gets the error each time", "[.missing]") {
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = OpenCudaDevice(0).status();
    CHECK(absl::IsUnavailable(status));
    CHECK(Says(status, "no CUDA driver: /nonexistent/libcuda.so.1: "));
  }
}

TEST_CASE("CUDA errors become the matching status, and name the object and the function") {
  const cuda::DriverApi& api = *cuda::LoadDriver().value();
  const auto code = [&](cuda::Result result) {
    return cuda::DriverError(api, result, "cuda:0", "cuX").code();
  };
  CHECK(code(cuda::kOutOfMemory) == absl::StatusCode::kResourceExhausted);
  CHECK(code(cuda::kInvalidValue) == absl::StatusCode::kInvalidArgument);
  CHECK(code(cuda::kInvalidHandle) == absl::StatusCode::kInvalidArgument);
  CHECK(code(cuda::kNotSupported) == absl::StatusCode::kUnimplemented);
  CHECK(code(cuda::kNotPermitted) == absl::StatusCode::kPermissionDenied);
  CHECK(code(cuda::kStreamCaptureUnsupported) == absl::StatusCode::kFailedPrecondition);
  CHECK(code(cuda::kLaunchFailed) == absl::StatusCode::kUnavailable);
  CHECK(code(12'345) == absl::StatusCode::kUnavailable);
  CHECK(cuda::DriverError(api, cuda::kOutOfMemory, "cuda:0", "cuX").message() ==
        "cuda:0: cuX: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
  for (const cuda::Result sticky :
       {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 46, 4}) {
    CHECK(cuda::IsSticky(sticky));
  }
  for (const cuda::Result passing : {1, 2, 101, 400, 600, 701, 712, 900}) {
    CHECK_FALSE(cuda::IsSticky(passing));
  }
}

}  // namespace
}  // namespace verbena::rdma
