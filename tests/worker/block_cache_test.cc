#include "worker/data/block_cache.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

namespace verbena::worker {
namespace {

constexpr uint64_t kBlockBytes = 10;

LoadedBlock<uint64_t> BlockOf(uint64_t number) {
  return {std::make_shared<const uint64_t>(number), kBlockBytes};
}

TEST_CASE("a block cache keeps the blocks used last, within its budget") {
  std::vector<uint64_t> loaded;
  BlockCache<uint64_t> cache(
      [&](uint64_t block) -> absl::StatusOr<LoadedBlock<uint64_t>> {
        loaded.push_back(block);
        return BlockOf(block);
      },
      3 * kBlockBytes);
  for (const uint64_t block : {0, 1, 2, 0, 3, 0, 2, 1}) {
    const auto got = cache.Get(block);
    REQUIRE(got.ok());
    CHECK(**got == block);
    CHECK(cache.bytes() <= 3 * kBlockBytes);
  }
  CHECK(loaded == std::vector<uint64_t>{0, 1, 2, 3, 1});
}

TEST_CASE("a block beyond the whole budget is kept alone") {
  BlockCache<uint64_t> cache(
      [](uint64_t block) -> absl::StatusOr<LoadedBlock<uint64_t>> { return BlockOf(block); }, 1);
  for (const uint64_t block : {5, 6, 5}) {
    CHECK(**cache.Get(block) == block);
    CHECK(cache.bytes() == kBlockBytes);
  }
}

TEST_CASE("an error of a block is given again, and does not stay") {
  std::atomic<bool> fails = true;
  BlockCache<uint64_t> cache(
      [&](uint64_t block) -> absl::StatusOr<LoadedBlock<uint64_t>> {
        if (fails) return absl::UnavailableError("no");
        return BlockOf(block);
      },
      100);
  cache.Want(1);
  CHECK_FALSE(cache.Get(1).ok());
  CHECK_FALSE(cache.Get(1).ok());
  fails = false;
  CHECK(cache.Get(1).ok());
}

TEST_CASE("a block that is wanted is read once, by its thread or by a caller") {
  constexpr uint64_t kBlocks = 2000;
  std::vector<std::atomic<int>> loads(kBlocks);
  BlockCache<uint64_t> cache(
      [&](uint64_t block) -> absl::StatusOr<LoadedBlock<uint64_t>> {
        ++loads[block];
        return BlockOf(block);
      },
      UINT64_MAX);
  const auto get_all = [&] {
    for (uint64_t block = 0; block < kBlocks; ++block) {
      cache.Want(std::min(block + 7, kBlocks - 1));
      const auto got = cache.Get(block);
      if (!got.ok() || **got != block) return false;
    }
    return true;
  };
  std::atomic<bool> other = false;
  std::thread thread([&] { other = get_all(); });
  CHECK(get_all());
  thread.join();
  CHECK(other);
  for (const auto& count : loads) CHECK(count == 1);
}

TEST_CASE("a cache ends while blocks are wanted") {
  BlockCache<uint64_t> cache(
      [](uint64_t block) -> absl::StatusOr<LoadedBlock<uint64_t>> { return BlockOf(block); }, 100);
  for (uint64_t block = 0; block < 10 * BlockCache<uint64_t>::kMostWanted; ++block) {
    cache.Want(block);
  }
}

}  // namespace
}  // namespace verbena::worker
