// CUDA devices: opening, marks, and the loss of one.
#include "rdma/memory/cuda/cuda_device.h"

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "rdma/memory/cuda/driver_api.h"
#include "tests/rdma/cuda_copying.h"

namespace verbena::rdma {
namespace {

// ---- opening ------------------------------------------------------------------------------------

TEST_CASE("a GPU is opened once while it has users, and released after the last one") {
  const CudaFixture fixture;
  auto device = OpenCudaDevice(0).value();
  CHECK(device->ordinal() == 0);
  CHECK(device->name() == "cuda:0 (Fake GPU 0)");
  CHECK(OpenCudaDevice(0).value() == device);
  auto other = OpenCudaDevice(1).value();
  CHECK(other != device);
  CHECK(other->name() == "cuda:1 (Fake GPU 1)");
  CHECK(fake_cuda_counts().contexts == 2);
  CHECK(fake_cuda_counts().streams == 4);
  CHECK(fake_cuda_counts().current_depth == 0);
  device.reset();
  CHECK(fake_cuda_counts().contexts == 1);
  CHECK(OpenCudaDevice(0).value()->ordinal() == 0);
}

TEST_CASE("a GPU that does not exist is refused with the number of GPUs") {
  const CudaFixture fixture;
  for (const int ordinal : {-1, 2, 1000}) {
    const absl::Status status = OpenCudaDevice(ordinal).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(Says(status, "there is no cuda:" + std::to_string(ordinal)));
    CHECK(Says(status, "this process sees 2 GPUs"));
  }
}

TEST_CASE("a GPU that cannot be opened leaves nothing behind, and may be opened later") {
  const CudaFixture fixture;
  struct Step {
    const char* symbol;
    int before;  // calls of it that work
  };
  const auto step =
      GENERATE(Step{"cuDeviceGetCount", 0}, Step{"cuDeviceGet", 0}, Step{"cuDeviceGetName", 0},
               Step{"cuDevicePrimaryCtxRetain", 0}, Step{"cuCtxPushCurrent_v2", 0},
               Step{"cuStreamCreate", 0}, Step{"cuStreamCreate", 1});
  for (int i = 0; i < step.before; ++i) fake_cuda_fail_next(step.symbol, cuda::kSuccess);
  fake_cuda_fail_next(step.symbol, cuda::kDeviceUnavailable);
  const absl::Status status = OpenCudaDevice(0).status();
  CHECK(absl::IsUnavailable(status));
  CHECK(Says(status, "CUDA_ERROR_DEVICE_UNAVAILABLE (46)"));
  CHECK(Says(status, "another process has it in exclusive mode"));
  CHECK(fake_cuda_counts().contexts == 0);
  CHECK(fake_cuda_counts().streams == 0);
  CHECK(OpenCudaDevice(0).ok());
}

// ---- marks --------------------------------------------------------------------------------------

TEST_CASE("a mark passes after the earlier work on its stream, without the later work") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto memory = On(device, kPage);
  const uintptr_t stream = fake_cuda_make_stream(0);
  fake_cuda_hold_stream(stream, true);
  fake_cuda_enqueue_fill(stream, memory->data(), 5, kPage);
  const auto mark = device->MarkStream(stream).value();
  for (int i = 0; i < 10; ++i) CHECK_FALSE(mark->Passed().value());
  fake_cuda_hold_stream(stream, false);
  bool passed = false;
  for (int i = 0; i < 10 && !passed; ++i) passed = mark->Passed().value();
  CHECK(passed);
  CHECK(OnDevice(*memory)[kPage - 1] == 5);

  fake_cuda_hold_stream(stream, true);
  fake_cuda_enqueue_fill(stream, memory->data(), 6, kPage);
  CHECK(mark->Passed().value());
  fake_cuda_drop_stream(stream);
  CHECK(mark->Passed().value());
}

TEST_CASE("a mark keeps its device") {
  const CudaFixture fixture;
  auto device = OpenCudaDevice(0).value();
  auto mark = device->MarkStream(0).value();  // the default stream
  device.reset();
  CHECK(fake_cuda_counts().contexts == 1);
  bool passed = false;
  for (int i = 0; i < 10 && !passed; ++i) passed = mark->Passed().value();
  CHECK(passed);
  mark.reset();
  CHECK(fake_cuda_counts().contexts == 0);
}

TEST_CASE("a mark in a stream of another GPU, or of none, is refused") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const uintptr_t stream = fake_cuda_make_stream(1);
  const absl::Status other = device->MarkStream(stream).status();
  CHECK(absl::IsInvalidArgument(other));
  CHECK(Says(other, "is not a stream of cuda:0 (Fake GPU 0)"));
  fake_cuda_drop_stream(stream);
  CHECK(absl::IsInvalidArgument(device->MarkStream(stream).status()));
  CHECK(device->MarkStream(0).ok());
}

TEST_CASE("a graph that is being captured is not disturbed, and a mark in it is refused") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto memory = On(device, kPage);
  const auto host = Pinned(device, kPage);
  const uintptr_t stream = fake_cuda_make_stream(0);
  fake_cuda_capture(stream, true);
  const absl::Status captured = device->MarkStream(stream).status();
  CHECK(absl::IsFailedPrecondition(captured));
  CHECK(Says(captured, "is being captured into a CUDA graph"));
  CHECK(device->StartCopy(kToHost, memory->data(), host->data(), kPage).value() == 1);
  CHECK(Finish(*device, kToHost, 1));
  CHECK(device->MarkStream(0).value()->Passed().ok());
  CHECK(On(device, kPage)->size() == kPage);
  fake_cuda_capture(stream, false);
  fake_cuda_drop_stream(stream);
}

// ---- a lost device ------------------------------------------------------------------------------

TEST_CASE("a lost device stays lost: every call fails, and no copy touches memory") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  auto memory = On(device, kPage);
  auto host = Pinned(device, kPage);
  const std::vector<uint8_t> bytes(kPage, 9);
  REQUIRE(fake_cuda_write(memory->data(), bytes.data(), kPage));
  const auto mark = device->MarkStream(0).value();
  fake_cuda_hold_copies(true, true);
  REQUIRE(device->StartCopy(kToHost, memory->data(), host->data(), kPage).ok());
  fake_cuda_lose(0, cuda::kIllegalAddress);
  fake_cuda_hold_copies(true, false);

  const absl::Status first = device->CopiesDone(kToHost).status();
  CHECK(absl::IsUnavailable(first));
  CHECK(Says(first,
             "cuda:0 (Fake GPU 0) is lost: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal "
             "memory access was encountered, in "));
  CHECK(Says(first, "a kernel of this process is at fault"));
  CHECK(Says(first, "restart this process"));
  fake_cuda_reset();  // the driver would work again: the device is lost all the same
  for (int i = 0; i < 10; ++i) CHECK(device->CopiesDone(kToHost).status() == first);
  CHECK(host->data()[0] == std::byte{0});
  CHECK(device->CopiesDone(kToDevice).status() == first);
  CHECK(device->StartCopy(kToHost, memory->data(), host->data(), 1).status() == first);
  CHECK(device->Allocate(1).status() == first);
  CHECK(device->CheckMemory(memory->data(), 1) == first);
  CHECK(device->Pin(host->data(), kPage) == first);
  CHECK(device->MarkStream(0).status() == first);
  CHECK(mark->Passed().status() == first);
  CHECK(OpenCudaDevice(0).value() == device);
  CHECK(OpenCudaDevice(1).value()->Allocate(0).status().code() ==
        absl::StatusCode::kInvalidArgument);  // the other one is not
  memory.reset();
  host.reset();
  CHECK(fake_cuda_counts().registrations == 0);
  CHECK(fake_cuda_counts().allocations == 0);
}

TEST_CASE("any call may be the first to notice the loss") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto memory = On(device, kPage);
  const auto host = Pinned(device, kPage);
  const auto mark = device->MarkStream(0).value();
  const int which = GENERATE(range(0, 5));
  const auto call = [&](int n) -> absl::Status {
    switch (n) {
      case 0:
        return mark->Passed().status();
      case 1:
        return device->MarkStream(0).status();
      case 2:
        return device->StartCopy(kToHost, memory->data(), host->data(), 1).status();
      case 3:
        return device->Allocate(1).status();
      default:
        return device->CheckMemory(memory->data(), 1);
    }
  };
  fake_cuda_lose(0, cuda::kEccUncorrectable);
  const absl::Status first = call(which);
  CHECK(absl::IsUnavailable(first));
  CHECK(Says(first, "is lost: CUDA_ERROR_ECC_UNCORRECTABLE (214)"));
  CHECK(Says(first, "the hardware failed"));
  for (int n = 0; n < 5; ++n) CHECK(call(n) == first);
}

TEST_CASE("a device whose own events fail is lost, once its copies have ended") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto memory = On(device, kPage);
  const auto host = Pinned(device, kPage);
  const auto symbol = GENERATE("cuEventRecord", "cuEventQuery");
  REQUIRE(device->StartCopy(kToHost, memory->data(), host->data(), kPage).ok());
  fake_cuda_fail_next(symbol, cuda::kInvalidHandle);
  absl::Status status = device->StartCopy(kToHost, memory->data(), host->data(), kPage).status();
  if (status.ok()) status = device->CopiesDone(kToHost).status();
  CHECK(absl::IsUnavailable(status));
  CHECK(Says(status, "is lost"));
  CHECK(device->CopiesDone(kToDevice).status() == status);
  CHECK(fake_cuda_counts().copies == 2);  // none goes on
}

TEST_CASE("a device that was reset is lost") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  fake_cuda_fail_next("cuCtxPushCurrent_v2", cuda::kInvalidContext);
  const absl::Status status = device->Allocate(1).status();
  CHECK(absl::IsUnavailable(status));
  CHECK(Says(status, "is lost: CUDA_ERROR_INVALID_CONTEXT (201)"));
  CHECK(Says(status, "cudaDeviceReset"));
  CHECK(device->CopiesDone(kToHost).status() == status);
}

TEST_CASE("without an event a copy is refused, and the device is not lost") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto memory = On(device, kPage);
  const auto host = Pinned(device, kPage);
  fake_cuda_fail_next("cuEventCreate", cuda::kOutOfMemory);
  CHECK(absl::IsResourceExhausted(
      device->StartCopy(kToHost, memory->data(), host->data(), kPage).status()));
  CHECK(device->StartCopy(kToHost, memory->data(), host->data(), kPage).value() == 1);
  CHECK(Finish(*device, kToHost, 1));
  CHECK(fake_cuda_counts().copies == 1);
}

// ---- threads ------------------------------------------------------------------------------------

TEST_CASE("two threads copy, mark and allocate at once") {
  const CudaFixture fixture;
  constexpr int kRounds = 500;
  std::atomic<int> wrong{0};
  const auto work = [&wrong](uint8_t number) {
    const auto device = OpenCudaDevice(0).value();
    const auto host = Pinned(device, kPage);
    for (int i = 0; i < kRounds; ++i) {
      const auto memory = On(device, kPage);
      const auto value = static_cast<std::byte>(number + 2 * i);
      std::memset(host->data(), std::to_integer<int>(value), kPage);
      const auto mark = device->MarkStream(0);
      const auto there = device->StartCopy(kToDevice, host->data(), memory->data(), kPage);
      if (!mark.ok() || !there.ok() || !Finish(*device, kToDevice, *there)) ++wrong;
      std::memset(host->data(), 0, kPage);
      const auto back = device->StartCopy(kToHost, memory->data(), host->data(), kPage);
      if (!back.ok() || !Finish(*device, kToHost, *back)) ++wrong;
      if (host->data()[i % kPage] != value || !(*mark)->Passed().ok()) ++wrong;
    }
  };
  std::thread other(work, uint8_t{0});
  work(1);
  other.join();
  CHECK(wrong == 0);
  CHECK(fake_cuda_counts().copies == 4 * kRounds);
}

}  // namespace
}  // namespace verbena::rdma
