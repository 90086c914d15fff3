// Free extents beside a plain map of free bytes.
#include "server/executor/free_extents.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace verbena::server {
namespace {

constexpr size_t kGrain = 64, kGrains = 500;  // of a block

struct Block {
  std::vector<std::byte> memory = std::vector<std::byte>(kGrain * kGrains);
  std::vector<bool> free = std::vector<bool>(kGrains, false);
};

TEST_CASE("extents that are taken were free, and free neighbours are merged") {
  const auto seed = GENERATE(range(1, 40));
  INFO("seed " << seed);
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  FreeExtents extents;
  std::vector<std::unique_ptr<Block>> blocks;
  for (int b = 0; b < 3; ++b) blocks.push_back(std::make_unique<Block>());
  struct Taken {
    size_t block, first, units;
  };
  std::vector<Taken> taken;
  for (size_t b = 0; b < blocks.size(); ++b) taken.push_back({b, 0, kGrains});
  for (int step = 0; step < 400; ++step) {
    if (!taken.empty() && random() % 2 == 0) {
      std::swap(taken[random() % taken.size()], taken.back());
      Taken& t = taken.back();
      // A part from its front.
      const size_t units = 1 + random() % t.units;
      Block& block = *blocks[t.block];
      extents.Add({block.memory.data() + t.first * kGrain, units * kGrain, &block});
      for (size_t u = t.first; u < t.first + units; ++u) {
        REQUIRE_FALSE(block.free[u]);
        block.free[u] = true;
      }
      t.first += units;
      t.units -= units;
      if (t.units == 0) taken.pop_back();
      continue;
    }
    const size_t unit = kGrain * (1 + random() % 7);
    const FreeExtents::Extent e = extents.Take(unit * (1 + random() % 9), unit);
    size_t longest = 0;
    for (const auto& block : blocks) {
      size_t run = 0;
      for (const bool free : block->free) {
        run = free ? run + 1 : 0;
        longest = std::max(longest, run);
      }
    }
    REQUIRE((e.data == nullptr) == (longest * kGrain < unit));
    if (e.data == nullptr) continue;
    REQUIRE(e.bytes > 0);
    REQUIRE(e.bytes % unit == 0);
    auto* const block = static_cast<Block*>(e.owner);
    const auto first = static_cast<size_t>(e.data - block->memory.data()) / kGrain;
    for (size_t u = first; u < first + e.bytes / kGrain; ++u) {
      REQUIRE(block->free[u]);
      block->free[u] = false;
    }
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].get() == block) taken.push_back({b, first, e.bytes / kGrain});
    }
  }
  for (const Taken& t : taken) {
    Block& block = *blocks[t.block];
    extents.Add({block.memory.data() + t.first * kGrain, t.units * kGrain, &block});
  }
  CHECK(extents.count() == blocks.size());
  CHECK(extents.bytes() == blocks.size() * kGrains * kGrain);
  extents.Forget(blocks[1].get());
  CHECK(extents.bytes() == 2 * kGrains * kGrain);
  CHECK(extents.Take(kGrains * kGrain, kGrains * kGrain).owner != blocks[1].get());
}

}  // namespace
}  // namespace verbena::server
