// CUDA devices: copies, one by one and together.
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "rdma/memory/cuda/driver_api.h"
#include "tests/rdma/cuda_copying.h"

namespace verbena::rdma {
namespace {

TEST_CASE("bytes go to the device and back") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto memory = On(device, 3 * kPage);
  const auto from = Pinned(device, 3 * kPage);
  const auto to = Pinned(device, 3 * kPage);
  for (size_t i = 0; i < from->size(); ++i) from->data()[i] = static_cast<std::byte>(i * 7);
  const uint64_t there =
      device->StartCopy(kToDevice, from->data() + 5, memory->data() + 5, 2 * kPage).value();
  CHECK(there == 1);
  REQUIRE(Finish(*device, kToDevice, there));
  const uint64_t back =
      device->StartCopy(kToHost, memory->data() + 5, to->data() + 100, 2 * kPage).value();
  CHECK(back == 1);  // each direction counts by itself
  REQUIRE(Finish(*device, kToHost, back));
  CHECK(std::memcmp(to->data() + 100, from->data() + 5, 2 * kPage) == 0);
  CHECK(to->data()[99] == std::byte{0});
  CHECK(to->data()[100 + 2 * kPage] == std::byte{0});
}

TEST_CASE("a copy is done after its start, not by it") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto memory = On(device, kPage);
  const auto host = Pinned(device, kPage);
  const std::vector<uint8_t> bytes(kPage, 9);
  REQUIRE(fake_cuda_write(memory->data(), bytes.data(), kPage));
  fake_cuda_hold_copies(true, true);
  CHECK(device->StartCopy(kToHost, memory->data(), host->data(), kPage).value() == 1);
  for (int i = 0; i < 10; ++i) CHECK(device->CopiesDone(kToHost).value() == 0);
  CHECK(host->data()[0] == std::byte{0});
  // The other direction does not wait for it.
  const auto there = device->StartCopy(kToDevice, host->data(), memory->data(), 1).value();
  CHECK(Finish(*device, kToDevice, there));
  CHECK(device->CopiesDone(kToHost).value() == 0);
  fake_cuda_hold_copies(true, false);
  CHECK(Finish(*device, kToHost, 1));
  CHECK(host->data()[kPage - 1] == std::byte{9});
}

TEST_CASE("copies of one direction are done in order, and each is counted when it is done") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  constexpr size_t kCopies = 200;
  const auto memory = On(device, kCopies);
  const auto host = Pinned(device, kCopies);
  const std::vector<uint8_t> ones(kCopies, 1);
  REQUIRE(fake_cuda_write(memory->data(), ones.data(), kCopies));
  fake_cuda_set_lag(5);
  uint64_t done = 0;
  bool behind = false;
  for (size_t i = 0; i < kCopies; ++i) {
    CHECK(device->StartCopy(kToHost, memory->data() + i, host->data() + i, 1).value() == i + 1);
    const uint64_t now = device->CopiesDone(kToHost).value();
    CHECK(now >= done);
    done = now;
    behind |= done <= i;
    for (size_t k = 0; k < kCopies; ++k) {
      if (k < done && host->data()[k] != std::byte{1}) FAIL("counted before it was done: " << k);
    }
  }
  CHECK(behind);
  CHECK(Finish(*device, kToHost, kCopies));
  CHECK(device->CopiesDone(kToHost).value() == kCopies);
  CHECK(fake_cuda_counts().copies == kCopies);
}

TEST_CASE("events are reused, not created for each copy") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto memory = On(device, kPage);
  const auto host = Pinned(device, kPage);
  for (uint64_t i = 1; i <= 1000; ++i) {
    REQUIRE(device->StartCopy(kToHost, memory->data(), host->data(), kPage).value() == i);
    REQUIRE(Finish(*device, kToHost, i));
    (void)device->MarkStream(0).value();
  }
  CHECK(fake_cuda_counts().events <= 2);
}

TEST_CASE("a copy of freed memory is refused, and later copies work") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto host = Pinned(device, kPage);
  std::byte* const gone = device->Allocate(kPage).value();
  const auto memory = On(device, kPage);
  device->Free(gone);
  const absl::Status status = device->StartCopy(kToHost, gone, host->data(), kPage).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(Says(status, "cuda:0 (Fake GPU 0): cuMemcpyDtoHAsync of 4096 bytes from 0x"));
  CHECK(Says(status, "CUDA_ERROR_INVALID_VALUE (1): invalid argument"));
  CHECK(Says(status, "still allocated on cuda:0"));
  // Beyond its end is not there either.
  CHECK(absl::IsInvalidArgument(
      device->StartCopy(kToDevice, host->data(), memory->data(), kPage + 1).status()));
  CHECK(device->CopiesDone(kToHost).value() == 0);
  CHECK(device->StartCopy(kToHost, memory->data(), host->data(), kPage).value() == 1);
  CHECK(Finish(*device, kToHost, 1));
}

TEST_CASE("memory freed during a copy stays until the copy is done") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto host = Pinned(device, kPage);
  std::byte* const memory = device->Allocate(kPage).value();
  const std::vector<uint8_t> bytes(kPage, 3);
  REQUIRE(fake_cuda_write(memory, bytes.data(), kPage));
  fake_cuda_hold_copies(true, true);
  REQUIRE(device->StartCopy(kToHost, memory, host->data(), kPage).ok());
  std::thread freeing([&] { device->Free(memory); });
  CHECK(device->CopiesDone(kToHost).value() == 0);  // others go on meanwhile
  fake_cuda_hold_copies(true, false);
  freeing.join();
  CHECK(Finish(*device, kToHost, 1));
  CHECK(host->data()[17] == std::byte{3});
  CHECK(fake_cuda_counts().allocations == 0);
}

TEST_CASE("destroying a device waits for copies in progress") {
  const CudaFixture fixture;
  auto device = OpenCudaDevice(0).value();
  // Pinned by another device, so that the memory stays when the first one goes.
  const auto other = OpenCudaDevice(1).value();
  const auto host = Pinned(other, kPage);
  std::byte* const memory = device->Allocate(kPage).value();
  REQUIRE(device->StartCopy(kToDevice, host->data(), memory, kPage).ok());
  REQUIRE(device->MarkStream(0).ok());
  device.reset();
  CHECK(fake_cuda_counts().copies == 1);
  CHECK(fake_cuda_counts().events == 0);
  CHECK(fake_cuda_counts().contexts == 1);
  OpenCudaDevice(0).value()->Free(memory);
}

// Some copies of a page each, from pages of the device in reverse to pages of the host.
struct Several {
  explicit Several(const std::shared_ptr<Device>& device)
      : memory(On(device, kCopies * kPage)), host(Pinned(device, kCopies * kPage)) {
    std::vector<uint8_t> bytes(kCopies * kPage);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i / kPage + 1);
    REQUIRE(fake_cuda_write(memory->data(), bytes.data(), bytes.size()));
    for (size_t i = 0; i < kCopies; ++i) {
      copies.push_back(
          {memory->data() + (kCopies - 1 - i) * kPage, host->data() + i * kPage, kPage});
    }
  }
  // Whether the first `count` have come, and none else.
  bool Came(size_t count) const {
    for (size_t i = 0; i < kCopies; ++i) {
      const auto byte = static_cast<std::byte>(i < count ? kCopies - i : 0);
      if (host->data()[i * kPage] != byte || host->data()[(i + 1) * kPage - 1] != byte) {
        return false;
      }
    }
    return true;
  }

  static constexpr size_t kCopies = 9;
  const std::shared_ptr<MemoryBlock> memory, host;
  std::vector<Device::Copy> copies;
};

TEST_CASE("copies that are started together are one call, and counted one by one") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const Several several(device);
  CHECK(device->StartCopies(kToHost, several.copies).value() == several.kCopies);
  CHECK(Finish(*device, kToHost, several.kCopies));
  CHECK(several.Came(several.kCopies));
  CHECK(fake_cuda_counts().batches == 1);
  CHECK(fake_cuda_counts().events == 1);
  // Back, each to another page.
  std::vector<Device::Copy> back;
  for (const Device::Copy& copy : several.copies) {
    back.push_back({copy.to, const_cast<std::byte*>(copy.from), copy.bytes});
    std::memset(copy.to, 100, copy.bytes);
  }
  CHECK(device->StartCopies(kToDevice, back).value() == several.kCopies);
  CHECK(Finish(*device, kToDevice, several.kCopies));
  CHECK(OnDevice(*several.memory) == std::vector<uint8_t>(several.kCopies * kPage, 100));
  CHECK(device->StartCopy(kToHost, several.memory->data(), several.host->data(), 1).value() ==
        several.kCopies + 1);
  CHECK(Finish(*device, kToHost, several.kCopies + 1));
}

TEST_CASE("copies are started one by one where the driver cannot start several") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  fake_cuda_fail_next("cuMemcpyBatchAsync_v2", cuda::kNotSupported);
  for (uint64_t round = 1; round <= 2; ++round) {
    const Several several(device);
    CHECK(device->StartCopies(kToHost, several.copies).value() == round * several.kCopies);
    CHECK(Finish(*device, kToHost, round * several.kCopies));
    CHECK(several.Came(several.kCopies));
  }
  CHECK(fake_cuda_counts().batches == 0);
}

// A real driver crashes the process when a batch contains memory that it does not know.
TEST_CASE("regression: a batch with a copy of freed memory never reaches the driver") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  Several several(device);
  std::byte* const gone = device->Allocate(kPage).value();
  device->Free(gone);
  const auto bad = GENERATE(size_t{0}, size_t{4}, Several::kCopies - 1);
  several.copies[bad].from = gone;
  CHECK_FALSE(device->StartCopies(kToHost, several.copies).ok());
  // One that begins on the device and goes on beyond is not there either.
  several.copies[bad].from = several.memory->data() + (Several::kCopies - 1) * kPage + 1;
  CHECK_FALSE(device->StartCopies(kToHost, several.copies).ok());
  CHECK(fake_cuda_counts().batches == 0);
  CHECK(device->CopiesDone(kToHost).value() == 0);
  // One by one the others work.
  std::swap(several.copies[bad], several.copies.back());
  several.copies.pop_back();
  for (const Device::Copy& copy : several.copies) {
    REQUIRE(device->StartCopy(kToHost, copy.from, copy.to, copy.bytes).ok());
  }
  CHECK(Finish(*device, kToHost, several.copies.size()));
}

TEST_CASE("copies that are started together may lie in several mapped ranges") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto host = Pinned(device, 4 * kPage);
  auto* const mapped = static_cast<std::byte*>(fake_cuda_map_segments(0, kPage, 4));
  const Device::Copy copies[] = {{mapped + kPage / 2, host->data(), 3 * kPage},
                                 {mapped, host->data() + 3 * kPage, kPage}};
  CHECK(device->StartCopies(kToHost, copies).value() == 2);
  CHECK(Finish(*device, kToHost, 2));
  CHECK(fake_cuda_counts().batches == 1);
  for (int i = 0; i < 4; ++i) device->Free(mapped + i * kPage);
}

}  // namespace
}  // namespace verbena::rdma
