// The pool of staging buffers: sizes, its limit, and areas that are cut anew.
#include "client/staging/staging.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <vector>

namespace verbena::client {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

struct Pool {
  explicit Pool(size_t limit)
      : staging(limit, [this](size_t bytes) {
          allocated += bytes;
          return rdma::MemoryBlock::Allocate(bytes, "test");
        }) {}

  // As many as there are.
  std::vector<std::byte*> TakeAll(uint32_t bytes) {
    std::vector<std::byte*> taken;
    for (;;) {
      Staging::Buffer buffer;
      REQUIRE(staging.Take(bytes, &buffer).ok());
      if (buffer.data == nullptr) return taken;
      REQUIRE(buffer.data >= buffer.block->data());
      REQUIRE(buffer.data + bytes <= buffer.block->data() + buffer.block->size());
      REQUIRE(staging.BlockOf(buffer.data) == buffer.block);
      std::memset(buffer.data, 1, bytes);
      taken.push_back(buffer.data);
    }
  }
  void GiveAll(const std::vector<std::byte*>& taken, uint32_t bytes) {
    for (std::byte* data : taken) staging.Give(data, bytes);
  }

  size_t allocated = 0;
  Staging staging;
};

TEST_CASE("free staging of small records is available to large ones") {
  Pool pool(16 * kMiB);
  for (const uint32_t bytes : {4096u, 8192u, 16384u, 32768u}) {
    // One after the other, as calls take them.
    pool.GiveAll(pool.TakeAll(bytes), bytes);
  }
  const auto large = pool.TakeAll(256 << 10);
  CHECK(large.size() == 64);  // all of the limit
  CHECK(std::set<std::byte*>(large.begin(), large.end()).size() == large.size());
  pool.GiveAll(large, 256 << 10);
  CHECK(pool.TakeAll(4096).size() == 4096);
  CHECK(pool.allocated == 16 * kMiB);
}

TEST_CASE("buffers of another size do not split staging in use, and every size gets a buffer") {
  Pool pool(kMiB);
  const auto small = pool.TakeAll(4096);
  CHECK(small.size() == 256);
  const auto large = pool.TakeAll(256 << 10);
  CHECK(large.size() == 1);
  pool.GiveAll(large, 256 << 10);
  // Memory beyond the limit is kept by its size, so that it is not allocated again and again.
  for (int round = 0; round < 10; ++round) {
    const auto medium = pool.TakeAll(64 << 10);
    CHECK(medium.size() == 1);
    pool.GiveAll(medium, 64 << 10);
    const auto again = pool.TakeAll(256 << 10);
    CHECK(again.size() == 1);
    pool.GiveAll(again, 256 << 10);
  }
  CHECK(pool.allocated == kMiB + (256 << 10) + (64 << 10));
  // An area that is free but for one buffer stays as it is.
  pool.GiveAll({small.begin() + 1, small.end()}, 4096);
  CHECK(pool.TakeAll(256 << 10).size() == 1 + 3);
}

}  // namespace
}  // namespace verbena::client
