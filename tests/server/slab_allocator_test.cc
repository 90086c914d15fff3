// Table memory under a limit: existing tables can be served when nothing new fits.
#include "server/executor/slab_allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "shard/table/buffer_pool.h"

namespace verbena::server {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kPage = 4096;

TEST_CASE("beyond the limit there is no memory for tables, but there is for requests in flight") {
  MemoryBudget budget(64 * kMiB);
  SlabAllocator allocator("test", kMiB, rdma::HugePages::kOff, &budget);
  CHECK(allocator.limit_bytes() == 64 * kMiB);
  std::vector<shard::Buffer> tables;
  for (;;) {
    const shard::Buffer buffer = allocator.Allocate(kMiB / 4);
    if (buffer.data == nullptr) break;
    tables.push_back(buffer);
  }
  CHECK(tables.size() == 60 * 4);
  CHECK(budget.reserved() == 60 * kMiB);

  std::vector<shard::Buffer> scratch;
  for (int i = 0; i < 16; ++i) scratch.push_back(allocator.AllocateScratch(kMiB / 4));
  for (const shard::Buffer& buffer : scratch) CHECK(buffer.data != nullptr);
  CHECK(allocator.AllocateScratch(kMiB / 4).data == nullptr);
  // Scratch that came back is not for tables, or they would use it up.
  for (const shard::Buffer& buffer : scratch) allocator.Free(buffer);
  CHECK(allocator.Allocate(kMiB / 4).data == nullptr);
  CHECK(allocator.AllocateScratch(kMiB / 4).data != nullptr);

  for (const shard::Buffer& buffer : tables) allocator.Free(buffer);
  CHECK(budget.reserved() <= 6 * kMiB);
  CHECK(allocator.Allocate(kMiB / 4).data != nullptr);
}

TEST_CASE("tables leave a sixteenth of the memory to replicas, also of slabs with room") {
  MemoryBudget budget(64 * kMiB);
  SlabAllocator allocator("test", kMiB, rdma::HugePages::kOff, &budget);
  const auto fill = [&](shard::MemoryFor whom) {
    allocator.SetFor(whom);
    size_t bytes = 0;
    for (;;) {
      const shard::Buffer buffer = allocator.AllocateRows(kMiB / 16, 1024);
      if (buffer.data == nullptr) return bytes;
      bytes += buffer.bytes;
    }
  };
  CHECK(fill(shard::MemoryFor::kPrimaryBesideCopies) == 56 * kMiB);
  CHECK(allocator.RoomForRows() == 0);
  CHECK(allocator.full());
  // The slab that a follower's row wants has room for no rows of its server's own.
  allocator.SetFor(shard::MemoryFor::kFollower);
  REQUIRE(allocator.AllocateRows(1024, 1024).data != nullptr);
  CHECK(budget.reserved() == 57 * kMiB);
  CHECK(fill(shard::MemoryFor::kPrimaryBesideCopies) == 0);
  CHECK(fill(shard::MemoryFor::kLearner) == 4 * kMiB - 1024);
  CHECK(fill(shard::MemoryFor::kFollower) == 4 * kMiB);
}

TEST_CASE("the shards of a server share one limit") {
  MemoryBudget budget(64 * kMiB);
  {
    SlabAllocator first("first", kMiB, rdma::HugePages::kOff, &budget);
    SlabAllocator second("second", kMiB, rdma::HugePages::kOff, &budget);
    CHECK(first.Allocate(40 * kMiB).data != nullptr);
    CHECK(second.Allocate(40 * kMiB).data == nullptr);
    CHECK(second.Allocate(20 * kMiB).data != nullptr);
  }
  CHECK(budget.reserved() == 0);
}

TEST_CASE(
    "regression: an empty slab of scratch serves any size, when there is memory for no other") {
  MemoryBudget budget(64 * kMiB);
  SlabAllocator allocator("test", kMiB, rdma::HugePages::kOff, &budget);
  std::vector<shard::Buffer> small;
  for (int i = 0; i < 256; ++i) small.push_back(allocator.AllocateScratch(4096));
  CHECK(budget.reserved() == kMiB);
  budget.Count(63 * kMiB);
  CHECK(allocator.AllocateScratch(kMiB / 4).data == nullptr);
  CHECK(allocator.shortages() == 1);
  for (const shard::Buffer& buffer : small) allocator.Free(buffer);
  std::vector<shard::Buffer> large;
  for (int i = 0; i < 4; ++i) large.push_back(allocator.AllocateScratch(kMiB / 4));
  for (const shard::Buffer& buffer : large) CHECK(buffer.data != nullptr);
  CHECK(allocator.shortages() == 1);
  for (const shard::Buffer& buffer : large) allocator.Free(buffer);
  CHECK(allocator.AllocateScratch(4096).data != nullptr);
  budget.Count(-63 * int64_t{kMiB});
}

TEST_CASE("regression: a shard returns idle memory when another one lacks it") {
  MemoryBudget budget(64 * kMiB);
  SlabAllocator first("first", kMiB, rdma::HugePages::kOff, &budget);
  SlabAllocator second("second", kMiB, rdma::HugePages::kOff, &budget);
  uint64_t resident[2] = {};
  shard::BufferPool idle(&first, 0, &resident[0]), busy(&second, 0, &resident[1]);
  idle.ReturnScratch(idle.TakeScratch(20 * kMiB));
  CHECK(busy.TakeScratch(60 * kMiB).data == nullptr);
  idle.FollowShortages();
  const shard::Buffer buffer = busy.TakeScratch(60 * kMiB);
  CHECK(buffer.data != nullptr);
  busy.ReturnScratch(buffer);
}

TEST_CASE("memory counted from elsewhere reduces the budget, and is never refused") {
  MemoryBudget budget(64 * kMiB);
  SlabAllocator allocator("test", kMiB, rdma::HugePages::kOff, &budget);
  allocator.Count(100 * kMiB);
  CHECK(budget.reserved() == 100 * kMiB);
  CHECK(allocator.Allocate(64).data == nullptr);
  CHECK(allocator.AllocateScratch(64).data == nullptr);
  allocator.Count(-100 * int64_t{kMiB});
  CHECK(budget.reserved() == 0);
  CHECK(allocator.Allocate(64).data != nullptr);
}

TEST_CASE("pieces for rows lie side by side, and are fewer where a slab ends") {
  SlabAllocator allocator("test", kMiB, rdma::HugePages::kOff);
  constexpr size_t kUnit = 17152;
  std::byte* end = nullptr;
  size_t fewer = 0;
  std::vector<shard::Buffer> buffers;
  for (size_t all = 0; all < 3 * (kMiB / kUnit); all += buffers.back().bytes / kUnit) {
    const shard::Buffer buffer = allocator.AllocateRows(7 * kUnit, kUnit);
    REQUIRE(buffer.data != nullptr);
    REQUIRE(buffer.bytes % kUnit == 0);
    REQUIRE(buffer.bytes > 0);
    if (buffers.size() % 9 != 0) CHECK(buffer.data == end);
    fewer += buffer.bytes < 7 * kUnit ? 1 : 0;
    end = buffer.data + buffer.bytes;
    std::memset(buffer.data, 0xff, buffer.bytes);
    buffers.push_back(buffer);
  }
  // 61 pieces a slab: eight times seven, and five.
  CHECK(allocator.slabs() == 3);
  CHECK(fewer == 3);
  const shard::Buffer again = buffers[4];
  allocator.Free(again);
  buffers[4] = allocator.AllocateRows(7 * kUnit, kUnit);
  CHECK(buffers[4].data == again.data);
  for (const shard::Buffer& buffer : buffers) allocator.Free(buffer);
  CHECK(allocator.slabs() <= 1);
}

TEST_CASE("pieces that rows of one table freed serve another table with another piece size") {
  SlabAllocator allocator("test", kMiB, rdma::HugePages::kOff);
  constexpr size_t kUnits[] = {17152, 1088, 512, 33536, 4864};
  std::vector<shard::Buffer> stays;  // one that outlives all others, in each slab
  size_t most = 0;
  for (int round = 0; round < 50; ++round) {
    const size_t unit = kUnits[round % 5];
    std::vector<shard::Buffer> buffers;
    for (size_t all = 0; all < 3 * kMiB; all += buffers.back().bytes) {
      buffers.push_back(allocator.AllocateRows(5 * unit, unit));
      REQUIRE(buffers.back().data != nullptr);
      REQUIRE(buffers.back().bytes >= unit);
      std::memset(buffers.back().data, round, buffers.back().bytes);
    }
    if (round < 5) {
      stays.push_back(buffers.back());
      buffers.pop_back();
    }
    for (const shard::Buffer& buffer : buffers) allocator.Free(buffer);
    if (round == 5) most = allocator.slabs();
  }
  CHECK(allocator.slabs() <= most + 1);
  for (size_t i = 0; i < stays.size(); ++i) {
    CHECK(std::all_of(stays[i].data, stays[i].data + stays[i].bytes,
                      [i](std::byte b) { return b == static_cast<std::byte>(i); }));
    allocator.Free(stays[i]);
  }
}

// mincore(2).
size_t ResidentBytes(const rdma::MemoryBlock& block) {
  std::vector<unsigned char> pages((block.size() + kPage - 1) / kPage);
  REQUIRE(mincore(block.data(), block.size(), pages.data()) == 0);
  return kPage * static_cast<size_t>(std::count_if(pages.begin(), pages.end(),
                                                   [](unsigned char p) { return (p & 1) != 0; }));
}

TEST_CASE("the first slabs for rows have almost no resident memory that is not in use") {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which Linux has since 6.1
  const bool exact = madvise(nullptr, 0, kCollapse) == 0;
  SlabAllocator allocator("test");
  constexpr size_t kUnit = 1088, kBytes = 100 * kUnit;
  std::vector<shard::Buffer> buffers;
  size_t used = 0;
  for (int i = 0; i < 90; ++i) {  // nearly five huge pages
    buffers.push_back(allocator.AllocateRows(kBytes, kUnit));
    REQUIRE(buffers.back().data != nullptr);
    std::memset(buffers.back().data, i + 1, buffers.back().bytes);
    used += buffers.back().bytes;
    const rdma::MemoryBlock& block = *SlabAllocator::BlockOf(buffers.back());
    const size_t resident = ResidentBytes(block);
    INFO("used " << used << ", resident " << resident);
    // A quarter of a huge page, and the unused rest of the last page.
    if (exact && block.pages() == rdma::PageKind::kAdvised) {
      CHECK(resident <= used + kMiB / 2 + kPage);
    }
  }
  for (int i = 0; i < 90; ++i) {
    const shard::Buffer& b = buffers[static_cast<size_t>(i)];
    REQUIRE(std::all_of(b.data, b.data + b.bytes,
                        [i](std::byte v) { return v == static_cast<std::byte>(i + 1); }));
  }
}

TEST_CASE("without a budget there is no limit to name") {
  SlabAllocator allocator("test", kMiB);
  CHECK(allocator.limit_bytes() == 0);
  CHECK(allocator.Allocate(3 * kMiB).data != nullptr);
}

}  // namespace
}  // namespace verbena::server
