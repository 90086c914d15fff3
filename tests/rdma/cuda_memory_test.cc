// Memory of CUDA devices: allocated, page-locked, and a caller's.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "rdma/memory/cuda/driver_api.h"
#include "tests/rdma/cuda_fixture.h"

namespace verbena::rdma {
namespace {

constexpr size_t kCudaPage = 4096;

TEST_CASE("a block on a device is memory there, and freed with it") {
  const CudaFixture fixture;
  auto device = OpenCudaDevice(0).value();
  auto block = MemoryBlock::AllocateOn(device, 10'000).value();
  CHECK(block->kind() == MemoryKind::kCuda);
  CHECK(block->size() == 10'000);
  CHECK(block->device() == device);
  CHECK_FALSE(block->allocated());
  CHECK(reinterpret_cast<uintptr_t>(block->data()) % 256 == 0);
  CHECK(OnDevice(*block).size() == 10'000);
  auto piece = MemoryBlock::Piece(block, 100, 200, nullptr);
  CHECK(piece->device() == device);
  CHECK(piece->kind() == MemoryKind::kCuda);
  device.reset();
  block.reset();
  CHECK(fake_cuda_counts().allocations == 1);  // the piece holds block and device
  piece.reset();
  CHECK(fake_cuda_counts().allocations == 0);
  CHECK(fake_cuda_counts().contexts == 0);
}

TEST_CASE("the host cannot touch a device's memory") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto block = MemoryBlock::AllocateOn(device, kCudaPage).value();
  int ends[2] = {-1, -1};
  REQUIRE(pipe(ends) == 0);
  // The kernel tries to read it for write(), which fails instead of ending the process.
  CHECK(write(ends[1], block->data(), 1) == -1);
  CHECK(errno == EFAULT);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("the error of a device without enough memory has the free bytes") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(1).value();
  fake_cuda_set_memory(1, 10 * kCudaPage);
  const auto some = MemoryBlock::AllocateOn(device, 4 * kCudaPage).value();
  const absl::Status status = MemoryBlock::AllocateOn(device, 7 * kCudaPage).status();
  CHECK(absl::IsResourceExhausted(status));
  CHECK(Says(status, "cuda:1 (Fake GPU 1): cuMemAlloc of 28672 bytes: CUDA_ERROR_OUT_OF_MEMORY"));
  CHECK(Says(status, "24576 of its 40960 bytes are free"));
  CHECK(absl::IsResourceExhausted(MemoryBlock::AllocateOn(device, ~size_t{0}).status()));
  CHECK(absl::IsInvalidArgument(MemoryBlock::AllocateOn(device, 0).status()));
  CHECK(MemoryBlock::AllocateOn(device, 6 * kCudaPage).ok());
}

TEST_CASE("pinned memory is a shared block that the device may copy from") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  auto block = MemoryBlock::AllocatePinned(device, 10'000, "staging").value();
  CHECK(block->kind() == MemoryKind::kPinned);
  CHECK(block->allocated());
  CHECK(block->device() == nullptr);  // it is the host's
  CHECK(block->data()[9'999] == std::byte{0});
  CHECK(fake_cuda_counts().registrations == 1);
  const auto piece = MemoryBlock::Piece(block, 0, 10, nullptr);
  CHECK(piece->kind() == MemoryKind::kPinned);
  block.reset();
  CHECK(fake_cuda_counts().registrations == 1);
}

TEST_CASE("memory that cannot be pinned is refused with cause and remedy, and not kept") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  fake_cuda_set_pin_limit(kCudaPage);
  const absl::Status status =
      MemoryBlock::AllocatePinned(device, 3 * kCudaPage, "staging").status();
  CHECK(absl::IsResourceExhausted(status));
  CHECK(Says(status,
             "cannot page-lock 12288 bytes of host memory: cuMemHostRegister: "
             "CUDA_ERROR_OUT_OF_MEMORY (2)"));
  CHECK(Says(status, "RLIMIT_MEMLOCK in force: "));
  CHECK(Says(status, "LimitMEMLOCK=infinity"));
  CHECK(fake_cuda_counts().registrations == 0);
  CHECK(MemoryBlock::AllocatePinned(device, kCudaPage, "staging").ok());
}

TEST_CASE("memory that is already pinned is refused") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto block = MemoryBlock::AllocatePinned(device, kCudaPage, "staging").value();
  CHECK(absl::IsInvalidArgument(device->Pin(block->data(), kCudaPage)));
}

// ---- a caller's memory --------------------------------------------------------------------------

struct Lent {
  Lent(std::shared_ptr<Device> on, size_t bytes)
      : device(std::move(on)), data(device->Allocate(bytes).value()) {}
  ~Lent() { device->Free(data); }
  const std::shared_ptr<Device> device;
  std::byte* const data;
};

TEST_CASE("a part of a caller's memory on the device is registered, and not freed") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const Lent lent(device, 10'000);
  auto block = MemoryBlock::RegisterOn(device, lent.data + 1'000, 9'000).value();
  CHECK(block->kind() == MemoryKind::kCuda);
  CHECK(block->data() == lent.data + 1'000);
  CHECK(block->device() == device);
  CHECK(MemoryBlock::RegisterOn(device, lent.data, 1).ok());
  CHECK(MemoryBlock::RegisterOn(device, lent.data + 9'999, 1).ok());
  block.reset();
  CHECK(fake_cuda_counts().allocations == 1);
}

TEST_CASE("a range beyond the allocation is refused with the allocation's size") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const Lent lent(device, 10'000);
  const auto status = MemoryBlock::RegisterOn(device, lent.data + 1'000, 9'001).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(Says(status, "has 10000 bytes, only 9000 from there, and 9001 are asked for"));
  CHECK(
      absl::IsInvalidArgument(MemoryBlock::RegisterOn(device, lent.data + 1, ~size_t{0}).status()));
}

TEST_CASE("memory that does not belong to the device is refused with its kind") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto refused = [&](void* data) {
    const absl::Status status = MemoryBlock::RegisterOn(device, data, 16).status();
    CHECK(absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  SECTION("host memory") {
    std::vector<std::byte> mine(64);
    CHECK(refused(mine.data())
              .find("not known to the CUDA driver (ordinary host memory, or freed?)") !=
          std::string::npos);
  }
  SECTION("pinned host memory") {
    const auto pinned = MemoryBlock::AllocatePinned(device, kCudaPage, "staging").value();
    CHECK(refused(pinned->data()).find("is host memory, not memory of cuda:0") !=
          std::string::npos);
  }
  SECTION("memory of another device") {
    const Lent lent(OpenCudaDevice(1).value(), kCudaPage);
    CHECK(refused(lent.data).find("is memory of cuda:1, not of cuda:0 (Fake GPU 0)") !=
          std::string::npos);
  }
  SECTION("freed memory") {
    std::byte* const gone = device->Allocate(kCudaPage).value();
    device->Free(gone);
    CHECK(refused(gone).find("freed?") != std::string::npos);
  }
  SECTION("managed memory") {
    auto* const managed = static_cast<std::byte*>(fake_cuda_allocate_managed(0, kCudaPage));
    CHECK(refused(managed).find("is managed memory (cudaMallocManaged)") != std::string::npos);
    device->Free(managed);
  }
  CHECK(absl::IsInvalidArgument(MemoryBlock::RegisterOn(device, nullptr, 1).status()));
}

TEST_CASE("memory mapped range by range is one block, up to its end") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  auto* const data = static_cast<std::byte*>(fake_cuda_map_segments(0, 2 * kCudaPage, 3));
  const auto host = MemoryBlock::AllocatePinned(device, 5 * kCudaPage, "staging").value();
  std::memset(host->data(), 8, host->size());
  {
    const auto block = MemoryBlock::RegisterOn(device, data + kCudaPage, 5 * kCudaPage).value();
    const auto copy =
        device->StartCopy(Device::Direction::kToDevice, host->data(), block->data(), block->size());
    REQUIRE(Finish(*device, Device::Direction::kToDevice, copy.value()));
    CHECK(OnDevice(*block)[5 * kCudaPage - 1] == 8);
  }
  const absl::Status status =
      MemoryBlock::RegisterOn(device, data + kCudaPage, 5 * kCudaPage + 1).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(Says(status, "has 24576 bytes, only 20480 from there, and 20481 are asked for"));
  for (size_t i = 0; i < 3; ++i) device->Free(data + 2 * kCudaPage * i);
}

TEST_CASE("regression: an allocation of a pool ends before the next one behind it") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  auto* const data = static_cast<std::byte*>(fake_cuda_allocate_in_pool(0, 2 * kCudaPage, 3));
  CHECK(MemoryBlock::RegisterOn(device, data + kCudaPage, kCudaPage).ok());
  const absl::Status status =
      MemoryBlock::RegisterOn(device, data + kCudaPage, kCudaPage + 1).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(Says(status, "has 8192 bytes, only 4096 from there, and 4097 are asked for"));
  for (size_t i = 0; i < 3; ++i) device->Free(data + 2 * kCudaPage * i);
}

}  // namespace
}  // namespace verbena::rdma
