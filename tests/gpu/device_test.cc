// A device of rdma/memory/device.h on a GPU, or an imitated one: copies, marks, and refusals.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "tests/gpu/gpu.h"

namespace verbena::test {
namespace {

using Direction = Gpu::Direction;

std::vector<uint32_t> Counting(size_t n, uint32_t first) {
  std::vector<uint32_t> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST_CASE("copies arrive, both ways, whatever size and place") {
  Gpu gpu;
  WARN("on " << gpu.device()->name());
  for (const size_t n : {1, 2, 63, 1024, 65'537, 4 << 20}) {
    for (const size_t offset : {0, 1, 5}) {
      const std::vector<uint32_t> values = Counting(n, static_cast<uint32_t>(n + offset));
      const auto block = gpu.Upload(values, offset);
      CHECK(gpu.Download<uint32_t>(block->data() + offset * 4, n) == values);
    }
  }
}

TEST_CASE("many copies in progress at once are done in order") {
  Gpu gpu;
  constexpr size_t kChunk = 65'536, kChunks = 256;
  const auto pinned = Value(rdma::MemoryBlock::AllocatePinned(gpu.device(), kChunk * kChunks, "t"));
  const auto block = gpu.Allocate(kChunk * kChunks);
  const std::vector<uint32_t> values = Counting(kChunk * kChunks / 4, 7);
  gpu.Write(block->data(), values.data(), block->size());
  uint64_t last = 0;
  for (size_t i = 0; i < kChunks; ++i) {
    const uint64_t number = Value(gpu.device()->StartCopy(
        Direction::kToHost, block->data() + i * kChunk, pinned->data() + i * kChunk, kChunk));
    CHECK(number == (i == 0 ? number : last + 1));
    last = number;
  }
  uint64_t done = 0;
  while (done < last) {
    const uint64_t now = Value(gpu.device()->CopiesDone(Direction::kToHost));
    REQUIRE(now >= done);
    // A copy that is counted as done is in host memory.
    if (now > done && now + kChunks > last) {
      const size_t chunk = static_cast<size_t>(now - (last - kChunks)) - 1;
      REQUIRE(std::memcmp(pinned->data() + chunk * kChunk, &values[chunk * kChunk / 4], kChunk) ==
              0);
    }
    done = now;
  }
  CHECK(std::memcmp(pinned->data(), values.data(), values.size() * 4) == 0);
}

TEST_CASE("an error about memory that is not the GPU's, or about no GPU, names it") {
  Gpu gpu;
  const auto says = [](const absl::Status& status, absl::StatusCode code, const char* text) {
    INFO(status.ToString());
    CHECK(status.code() == code);
    CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains(text));
  };
  says(rdma::OpenCudaDevice(1000).status(), absl::StatusCode::kInvalidArgument,
       "there is no cuda:1000");
  std::vector<uint32_t> host(1024);
  says(rdma::MemoryBlock::RegisterOn(gpu.device(), host.data(), 4096).status(),
       absl::StatusCode::kInvalidArgument, "host memory");
  const auto pinned = Value(rdma::MemoryBlock::AllocatePinned(gpu.device(), 4096, "t"));
  says(gpu.device()->CheckMemory(pinned->data(), 4096), absl::StatusCode::kInvalidArgument,
       "host memory");
  auto block = gpu.Allocate(4096);
  Good(gpu.device()->CheckMemory(block->data(), 4096));
  says(gpu.device()->CheckMemory(block->data(), size_t{1} << 40),
       absl::StatusCode::kInvalidArgument, "bytes");
  std::byte* const freed = block->data();
  block.reset();
  CHECK_FALSE(gpu.device()->CheckMemory(freed, 4096).ok());
  says(rdma::MemoryBlock::AllocateOn(gpu.device(), size_t{1} << 46).status(),
       absl::StatusCode::kResourceExhausted, "cuda:0");
  // The device goes on.
  const auto after = gpu.Upload(Counting(16, 1));
  CHECK(gpu.Download<uint32_t>(after->data(), 16) == Counting(16, 1));
}

// The part of GPUDirect that a driver has; a NIC's part is in tests/rdma/gpu_direct_test.cc.
TEST_CASE("memory is exported as a dma-buf that has all of it, if the driver supports it") {
  Gpu gpu;
  const rdma::Device::PeerAccess access = gpu.device()->Access();
  WARN("dma-buf " << access.dma_buf << ", peer memory " << access.peer_memory << ", NUMA node "
                  << access.numa_node << ", missing: " << access.missing);
  CHECK((access.missing.empty() || !access.dma_buf || !access.peer_memory));
  const std::vector<uint32_t> values = Counting(2 << 20, 3);
  const auto block = gpu.Upload(values);
  const auto exported = gpu.device()->ExportDmaBuf(block->data(), block->size());
  CHECK(exported.ok() == access.dma_buf);
  if (exported.ok()) {
    CHECK(exported->base <= block->data());
    CHECK(exported->base + exported->bytes >= block->data() + block->size());
    CHECK(fcntl(exported->fd.get(), F_GETFD) >= 0);
    // The end of a dma-buf is its size (kernel, dma-buf.rst).
    if (!gpu.imitated()) {
      CHECK(lseek(exported->fd.get(), 0, SEEK_END) == static_cast<off_t>(exported->bytes));
    }
  }
  // One that shares its page with others may be refused, and is staged then.
  const auto small = gpu.Allocate(100);
  const auto piece = gpu.device()->ExportDmaBuf(small->data(), small->size());
  WARN("of 100 bytes: " << piece.status().ToString());
  Good(gpu.device()->FlushPeerWrites());
  CHECK(gpu.Download<uint32_t>(block->data(), values.size()) == values);
}

}  // namespace
}  // namespace verbena::test
