// Table memory under a limit: what exists can be served when nothing new fits.
#include "server/executor/slab_allocator.h"

#include <catch2/catch.hpp>
#include <vector>

namespace verbena::server {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST_CASE("beyond the limit there is no memory for tables, but there is for what passes through") {
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

TEST_CASE("what is counted from elsewhere leaves less, and is not refused") {
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

TEST_CASE("without a budget there is no limit to name") {
  SlabAllocator allocator("test", kMiB);
  CHECK(allocator.limit_bytes() == 0);
  CHECK(allocator.Allocate(3 * kMiB).data != nullptr);
}

}  // namespace
}  // namespace verbena::server
