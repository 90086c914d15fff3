// Access by other devices to memory of CUDA devices: its conditions, dma-bufs, flushes.
#include <fcntl.h>
#include <unistd.h>

#include "rdma/memory/cuda/driver_api.h"
#include "tests/rdma/cuda_fixture.h"

namespace verbena::rdma {
namespace {

constexpr size_t kPeerPage = 4096;

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST_CASE("peer access: the driver's capabilities, and the reasons for missing ones") {
  const CudaFixture fixture;
  {
    const Device::PeerAccess access = OpenCudaDevice(0).value()->Access();
    CHECK(access.dma_buf);
    CHECK(access.peer_memory);
    CHECK(access.missing.empty());
  }
  fake_cuda_set_attribute(0, cuda::kAttributeDmaBufSupported, 0);
  {
    const Device::PeerAccess access = OpenCudaDevice(0).value()->Access();
    CHECK_FALSE(access.dma_buf);
    CHECK(access.peer_memory);
    CHECK_THAT(access.missing, Catch::Matchers::Contains("open kernel modules"));
  }
  fake_cuda_set_attribute(0, cuda::kAttributeGpuDirectRdmaSupported, 0);
  {
    const Device::PeerAccess access = OpenCudaDevice(0).value()->Access();
    CHECK_FALSE(access.peer_memory);
    CHECK_THAT(access.missing, Catch::Matchers::Contains("does not support GPUDirect RDMA"));
  }
}

TEST_CASE("a dma-buf covers the whole allocation in pages, and the caller owns its descriptor") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  const auto block = MemoryBlock::AllocateOn(device, 3 * kPeerPage + 100).value();
  int fd = -1;
  {
    const auto exported = device->ExportDmaBuf(block->data() + 5000, 200).value();
    CHECK(exported.base == block->data());
    CHECK(exported.bytes == 4 * kPeerPage);
    fd = exported.fd.get();
    uint64_t base = 0;
    uint64_t bytes = 0;
    REQUIRE(fake_cuda_dma_buf(fd, &base, &bytes));
    CHECK(base == reinterpret_cast<uint64_t>(block->data()));
    CHECK(bytes == 4 * kPeerPage);
  }
  CHECK_FALSE(IsOpen(fd));
  CHECK(fake_cuda_counts().exports == 1);
}

TEST_CASE("a dma-buf may cover several consecutive mappings") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  auto* const data = static_cast<std::byte*>(fake_cuda_map_segments(0, 2 * kPeerPage, 3));
  const auto exported = device->ExportDmaBuf(data + 100, 5 * kPeerPage).value();
  CHECK(exported.base == data);
  CHECK(exported.bytes == 6 * kPeerPage);
  const auto middle = device->ExportDmaBuf(data + 2 * kPeerPage, kPeerPage).value();
  CHECK(middle.base == data + 2 * kPeerPage);
  CHECK(middle.bytes == 2 * kPeerPage);
  // Copies to and from each of the ranges are ordered with reads by other devices.
  for (int i = 0; i < 3; ++i) CHECK(fake_cuda_synced(data + size_t(i) * 2 * kPeerPage));
  for (int i = 0; i < 3; ++i) device->Free(data + size_t(i) * 2 * kPeerPage);
}

TEST_CASE("the error of memory that cannot be exported names it") {
  const CudaFixture fixture;
  const auto device = OpenCudaDevice(0).value();
  auto block = MemoryBlock::AllocateOn(device, kPeerPage).value();
  fake_cuda_fail_next("cuMemGetHandleForAddressRange", cuda::kNotSupported);
  const absl::Status status = device->ExportDmaBuf(block->data(), kPeerPage).status();
  CHECK(absl::IsUnimplemented(status));
  CHECK(Says(status, "cuda:0 (Fake GPU 0): a dma-buf of 4096 bytes at 0x"));
  CHECK(Says(status, "cuMemGetHandleForAddressRange"));
  const std::byte* const freed = block->data();
  block.reset();
  CHECK_FALSE(device->ExportDmaBuf(freed, kPeerPage).ok());
  fake_cuda_lose(0, cuda::kLaunchFailed);
  CHECK(absl::IsUnavailable(device->ExportDmaBuf(freed, kPeerPage).status()));
}

TEST_CASE("writes of other devices are flushed where the device does not order them itself") {
  const CudaFixture fixture;
  CHECK(OpenCudaDevice(0).value()->FlushPeerWrites().ok());
  CHECK(fake_cuda_counts().flushes == 1);
  fake_cuda_set_attribute(0, cuda::kAttributeGpuDirectRdmaWritesOrdering, cuda::kOrderingOwner);
  CHECK(OpenCudaDevice(0).value()->FlushPeerWrites().ok());
  CHECK(fake_cuda_counts().flushes == 1);
  const auto second = OpenCudaDevice(1).value();
  fake_cuda_lose(1, cuda::kLaunchFailed);
  CHECK(absl::IsUnavailable(second->FlushPeerWrites()));
}

}  // namespace
}  // namespace verbena::rdma
