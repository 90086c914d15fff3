// The slab pool: pieces of registered slabs that come and go with lanes.
#include "rdma/memory/slab_pool.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::rdma {
namespace {

constexpr size_t kPoolPage = 4096;
constexpr size_t kMiB = size_t{1} << 20;

using Block = std::shared_ptr<MemoryBlock>;

SlabPoolOptions Options(size_t slab_bytes) {
  SlabPoolOptions options;
  options.slab_bytes = slab_bytes;
  options.label = "test-slab";
  return options;
}

bool AllAre(const Block& block, int value) {
  return std::all_of(block->data(), block->data() + block->size(),
                     [value](std::byte b) { return b == static_cast<std::byte>(value); });
}

void Fill(const Block& block, int value) { std::memset(block->data(), value, block->size()); }

bool PoolSays(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

TEST_CASE("pieces are aligned, zeroed and parts of one slab") {
  SlabPool pool(Options(kMiB));
  std::vector<Block> pieces;
  for (const size_t bytes : {size_t{1}, size_t{65}, size_t{4095}, kPoolPage, size_t{70'000}}) {
    pieces.push_back(pool.Allocate(bytes, "piece").value());
    REQUIRE(pieces.back()->size() == bytes);
    CHECK(reinterpret_cast<uintptr_t>(pieces.back()->data()) %
              (bytes < kPoolPage ? 64 : kPoolPage) ==
          0);
    CHECK(AllAre(pieces.back(), 0));
    CHECK(&pieces.back()->root() == &pieces.front()->root());
    CHECK_FALSE(pieces.back()->allocated());
    Fill(pieces.back(), 0xff);
  }
  const auto statistics = pool.statistics();
  CHECK(statistics.slabs == 1);
  CHECK(statistics.bytes_reserved == kMiB);
  CHECK(statistics.pieces == 5);
  CHECK(statistics.bytes_in_use == 64 + 128 + 4096 + 4096 + 18 * kPoolPage);
}

TEST_CASE("a new piece is zeroed, not the contents of an earlier one") {
  SlabPool pool(Options(kMiB));
  auto a = pool.Allocate(300'000, "a").value();
  auto b = pool.Allocate(100'000, "b").value();
  const std::byte* place = a->data();
  Fill(a, 0xff);
  Fill(b, 0xff);
  a.reset();
  b.reset();
  const auto larger = pool.Allocate(kMiB, "c").value();
  CHECK(larger->data() == place);  // free neighbours were merged
  CHECK(AllAre(larger, 0));
}

TEST_CASE("random pieces keep their contents and leak nothing") {
  struct Piece {
    Block block;
    int value;
  };
  SlabPool pool(Options(4 * kMiB));
  std::mt19937 random(7);
  std::vector<Piece> pieces;
  uint64_t most_in_use = 0;
  uint64_t most_reserved = 0;
  bool intact = true;
#if defined(__SANITIZE_THREAD__)
  constexpr int kSteps = 1'000;  // one thread: nothing for ThreadSanitizer to find
#else
  constexpr int kSteps = 10'000;
#endif
  for (int i = 0; i < kSteps; ++i) {
    if (!pieces.empty() && (pieces.size() >= 200 || random() % 2 == 0)) {
      std::swap(pieces[random() % pieces.size()], pieces.back());
      intact = intact && AllAre(pieces.back().block, pieces.back().value);
      pieces.pop_back();
    } else {
      // Sizes of all magnitudes, some larger than a slab.
      const size_t bytes = 1 + random() % (size_t{64} << (random() % 17 + (i % 1000 == 0 ? 2 : 0)));
      auto block = pool.Allocate(bytes, "piece").value();
      intact = intact && block->size() == bytes && AllAre(block, 0);
      const int value = static_cast<int>(1 + random() % 255);
      Fill(block, value);
      pieces.push_back({std::move(block), value});
    }
    most_in_use = std::max(most_in_use, pool.statistics().bytes_in_use);
    most_reserved = std::max(most_reserved, pool.statistics().bytes_reserved);
  }
  CHECK(intact);
  CHECK(most_reserved <= most_in_use * 3 / 2 + 2 * 4 * kMiB);
  pieces.clear();
  const auto statistics = pool.statistics();
  CHECK(statistics.bytes_in_use == 0);
  CHECK(statistics.pieces == 0);
  CHECK(statistics.slabs == 1);
  CHECK(statistics.bytes_reserved == 4 * kMiB);
  // Whole again: it fits without another slab.
  const auto whole = pool.Allocate(4 * kMiB, "whole").value();
  CHECK(pool.statistics().slabs == 1);
}

TEST_CASE("the pool does not grow when lanes open and close in any order") {
  // A quarter of the sizes of a lane's ring, staging and mailbox.
  constexpr size_t kSizes[] = {340'000, 70'000, 16'500};
  SlabPool pool(Options(16 * kMiB));
  std::vector<std::vector<Block>> lanes(256);
  const auto open = [&](std::vector<Block>* lane) {
    for (const size_t bytes : kSizes) lane->push_back(pool.Allocate(bytes, "lane").value());
  };
  for (auto& lane : lanes) open(&lane);
  const size_t at_first = pool.statistics().slabs;
  std::mt19937 random(11);
  size_t most = 0;
  for (int round = 0; round < 20; ++round) {
    std::shuffle(lanes.begin(), lanes.end(), random);
    const size_t closed = 1 + random() % lanes.size();
    for (size_t i = 0; i < closed; ++i) lanes[i].clear();
    std::shuffle(lanes.begin(), lanes.end(), random);
    for (auto& lane : lanes) {
      if (lane.empty()) open(&lane);
    }
    most = std::max(most, pool.statistics().slabs);
  }
  CHECK(most <= at_first + 1);
  lanes.clear();
  CHECK(pool.statistics().slabs == 1);
}

TEST_CASE("a piece larger than a slab has a slab of its own, freed with it") {
  SlabPool pool(Options(kMiB));
  auto small = pool.Allocate(100, "small").value();
  auto large = pool.Allocate(3 * kMiB + 1, "large").value();
  CHECK(AllAre(large, 0));
  CHECK(large->root().size() == 3 * kMiB + kPoolPage);
  CHECK(pool.statistics().slabs == 2);
  large.reset();
  CHECK(pool.statistics().slabs == 1);
  CHECK(pool.statistics().bytes_reserved == kMiB);
}

TEST_CASE("one empty slab is kept") {
  SlabPool pool(Options(kMiB));
  std::vector<Block> pieces;
  for (int i = 0; i < 4; ++i) pieces.push_back(pool.Allocate(kMiB, "piece").value());
  CHECK(pool.statistics().slabs == 4);
  const MemoryBlock* kept = &pieces[2]->root();
  pieces[2].reset();
  CHECK(pool.statistics().slabs == 4);
  pieces.clear();
  CHECK(pool.statistics().slabs == 1);
  CHECK(&pool.Allocate(kMiB, "again").value()->root() == kept);
}

TEST_CASE("the largest slab bounds the largest piece, and the error names both") {
  SlabPoolOptions options = Options(64 * kMiB);
  options.max_slab_bytes = 2 * kMiB + 100;
  SlabPool pool(options);
  CHECK(pool.Allocate(2 * kMiB, "ring").ok());
  CHECK(pool.statistics().bytes_reserved == 2 * kMiB);
  const auto status = pool.Allocate(2 * kMiB + 1, "ring").status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(PoolSays(status, "ring: 2097153 bytes in one piece; at most 2097152"));
  CHECK(PoolSays(status, "test-slab"));
}

TEST_CASE("sizes that cannot be allocated are refused by name") {
  SlabPool pool(Options(kMiB));
  CHECK(absl::IsInvalidArgument(pool.Allocate(0, "ring").status()));
  for (const size_t bytes : {size_t{1} << 60, ~size_t{0}, ~size_t{0} - kPoolPage}) {
    const auto status = pool.Allocate(bytes, "ring").status();
    CHECK(absl::IsResourceExhausted(status));
    CHECK(PoolSays(status, "ring (" + std::to_string(bytes) + " bytes"));
    CHECK(PoolSays(status, "the machine has"));
  }
  CHECK(pool.statistics().slabs == 0);
  CHECK(pool.Allocate(100, "ring").ok());
}

TEST_CASE("each slab is announced once, before a piece of it is handed out") {
  std::multiset<const MemoryBlock*> announced;
  absl::Status answer;
  SlabPoolOptions options = Options(kMiB);
  options.on_new_slab = [&](const Block& slab) {
    CHECK(AllAre(slab, 0));
    announced.insert(slab.get());
    return answer;
  };
  SlabPool pool(options);
  std::vector<Block> pieces;
  for (int i = 0; i < 10; ++i) {
    pieces.push_back(pool.Allocate(300'000, "piece").value());
    CHECK(announced.count(&pieces.back()->root()) == 1);
  }
  CHECK(announced.size() == pool.statistics().slabs);

  answer = absl::ResourceExhaustedError("memlock is 64 KiB; raise it");
  const auto status = pool.Allocate(kMiB, "staging").status();
  CHECK(absl::IsResourceExhausted(status));
  CHECK(PoolSays(status, "staging"));
  CHECK(PoolSays(status, "memlock is 64 KiB; raise it"));
  CHECK(pool.statistics().bytes_reserved == 4 * kMiB);
  answer = absl::OkStatus();
  CHECK(pool.Allocate(kMiB, "staging").ok());
}

TEST_CASE("pieces may outlive the pool, and the last one frees its slab") {
  struct Flag : MemoryBlock::Attachment {
    explicit Flag(bool* g) : gone(g) {}
    ~Flag() override { *gone = true; }
    bool* gone;
  };
  const int key = 0;
  bool gone = false;
  Block a;
  Block b;
  {
    auto callback_state = std::make_shared<int>(0);
    const std::weak_ptr<int> callback_alive = callback_state;
    SlabPoolOptions options = Options(kMiB);
    options.on_new_slab = [&gone, &key, callback_state](const Block& slab) {
      slab->Attach(&key, std::make_shared<Flag>(&gone));
      return absl::OkStatus();
    };
    auto pool = std::make_unique<SlabPool>(std::move(options));
    a = pool->Allocate(100, "a").value();
    b = pool->Allocate(5000, "b").value();
    options.on_new_slab = nullptr;
    callback_state.reset();
    pool.reset();
    CHECK(callback_alive.expired());  // objects that it refers to need not outlive the pieces
  }
  Fill(a, 1);
  a.reset();
  CHECK_FALSE(gone);
  Fill(b, 2);
  std::thread([&b] { b.reset(); }).join();
  CHECK(gone);
}

TEST_CASE("threads share a pool") {
  SlabPool pool(Options(kMiB));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; ++t) {
    threads.emplace_back([&pool, &wrong, t] {
      std::mt19937 random(t);
      std::vector<Block> mine;
      for (int i = 0; i < 1000; ++i) {
        if (mine.size() == 20 || (!mine.empty() && random() % 2 == 0)) {
          std::swap(mine[random() % mine.size()], mine.back());
          if (!AllAre(mine.back(), t)) ++wrong;
          mine.pop_back();
        } else {
          mine.push_back(pool.Allocate(1 + random() % 100'000, "piece").value());
          if (!AllAre(mine.back(), 0)) ++wrong;
          Fill(mine.back(), t);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(pool.statistics().pieces == 0);
  CHECK(pool.statistics().bytes_in_use == 0);
  CHECK(pool.statistics().slabs == 1);
}

}  // namespace
}  // namespace verbena::rdma
