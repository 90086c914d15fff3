#include "shard/table/row_store.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <unordered_map>
#include <vector>

#include "shard/table/initializer.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace {

struct Store {
  Store(uint32_t dim, uint32_t state, bool counts = true)
      : pool(&allocator, 0, &resident), shape(dim, state, counts) {
    initializer.set_kind(v1::Initializer::UNIFORM);
    initializer.set_b(1);
    arena = std::make_unique<RowArena>(shape.few_bytes(), shape.many_bytes(), &pool, nullptr);
    rows = std::make_unique<RowStore>(shape, &initializer, arena.get());
  }
  RowAllocator allocator;
  uint64_t resident = 0;
  BufferPool pool;
  v1::Initializer initializer;
  const RowShape shape;
  std::unique_ptr<RowArena> arena;
  std::unique_ptr<RowStore> rows;
};

TEST_CASE("rows of any size are found again and do not overlap") {
  const auto [dim, state] =
      GENERATE(std::pair(1u, 0u), std::pair(3u, 3u), std::pair(16u, 1u), std::pair(64u, 128u),
               std::pair(1024u, 0u), std::pair(1024u, 2048u));
  INFO("dim " << dim << ", state " << state);
  Store s(dim, state);
  std::mt19937_64 random(dim);
  std::vector<uint64_t> keys;
  // Enough for several blocks of the largest size.
  const size_t count = std::min<size_t>(20000, (size_t{2} << 20) / (4 * (dim + state)) + 100);
  while (keys.size() < count) keys.push_back(random() % 3 == 0 ? keys.size() : random());
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  std::shuffle(keys.begin(), keys.end(), random);
  std::vector<uint32_t> found(keys.size());
  for (size_t first = 0; first < keys.size();) {
    const size_t n = std::min<size_t>(1 + random() % 300, keys.size() - first);
    REQUIRE(s.rows->FindOrCreate({&keys[first], n}, &found[first]));
    first += n;
  }
  CHECK(s.rows->size() == keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    REQUIRE(found[i] == i);
    REQUIRE(s.rows->key(found[i]) == keys[i]);
    std::fill_n(s.rows->parameters(found[i]), dim, static_cast<float>(i));
    for (uint32_t k = 0; k < state; ++k) {
      REQUIRE(s.rows->state(found[i])[k] == 0);
      s.rows->state(found[i])[k] = -static_cast<float>(i);
    }
    s.rows->CountApply(found[i]);
  }
  std::vector<uint32_t> again(keys.size());
  s.rows->Find(keys, again.data());
  CHECK(again == found);
  for (size_t i = 0; i < keys.size(); ++i) {
    const float* row = s.rows->parameters(found[i]);
    REQUIRE(std::count(row, row + dim, static_cast<float>(i)) == dim);
    REQUIRE(std::count(row + dim, row + dim + state, -static_cast<float>(i)) == state);
    REQUIRE(s.rows->applies(found[i]) == 1);
  }
  for (uint64_t& key : keys) key = ~key ^ 0x5555;
  s.rows->Find(keys, again.data());
  CHECK(std::count(again.begin(), again.end(), RowStore::kNone) >
        static_cast<ptrdiff_t>(keys.size()) - 5);
}

TEST_CASE("keys with equal hashes have separate rows") {
  // By the birthday paradox about 18 pairs agree in all 32 bits.
  Store s(1, 0);
  std::mt19937_64 random(7);
  std::vector<uint64_t> keys(400000);
  for (uint64_t& key : keys) key = random();
  std::vector<uint32_t> rows(keys.size());
  REQUIRE(s.rows->FindOrCreate(keys, rows.data()));
  CHECK(s.rows->size() == keys.size());
  std::vector<uint32_t> again(keys.size());
  s.rows->Find(keys, again.data());
  CHECK(again == rows);
  bool right = true;
  for (size_t i = 0; i < keys.size(); ++i) right &= s.rows->key(rows[i]) == keys[i];
  CHECK(right);
}

TEST_CASE("a store without rows takes no memory, and one with few takes little") {
  Store s(16, 16);
  uint32_t row = 0;
  const uint64_t key = 5;
  s.rows->Find({&key, 1}, &row);
  CHECK(row == RowStore::kNone);
  CHECK(s.allocator.used == 0);
  REQUIRE(s.rows->FindOrCreate({&key, 1}, &row));
  CHECK(s.allocator.used < 6 * 1024);
  s.rows.reset();
  s.arena->Trim();
  CHECK(s.allocator.used == 0);
  CHECK(s.resident == 0);
}

TEST_CASE("a store has a maximum number of rows, and existing ones stay") {
  RowAllocator allocator;
  uint64_t resident = 0;
  BufferPool pool(&allocator, 0, &resident);
  v1::Initializer zeros;
  zeros.set_kind(v1::Initializer::ZEROS);
  RowShape shape(2, 0, false, /*has_stamps=*/true);
  CHECK(shape.most_rows == kMaxRowsOfPartition);
  shape.most_rows = 1000;
  RowArena arena(shape.few_bytes(), shape.many_bytes(), &pool, nullptr);
  RowStore rows(shape, &zeros, &arena);
  std::vector<uint64_t> keys(1001);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i * 31;
  std::vector<uint32_t> found(keys.size());
  CHECK_FALSE(rows.FullFor(1000));
  CHECK(rows.FullFor(1001));
  CHECK_FALSE(rows.FindOrCreate(keys, found.data()));
  CHECK(rows.size() == 0);
  REQUIRE(rows.FindOrCreate({keys.data(), 1000}, found.data()));
  CHECK_FALSE(rows.FindOrCreate({&keys[1000], 1}, found.data()));
  REQUIRE(rows.FindOrCreate({keys.data(), 1000}, found.data()));
  for (size_t i = 0; i < 1000; ++i) REQUIRE(found[i] == i);
  rows.Drop(7);
  REQUIRE(rows.FindOrCreate({&keys[1000], 1}, found.data()));
  CHECK(found[0] == 7);
}

TEST_CASE("partitions that grow together leave almost no memory idle") {
  const auto dim = GENERATE(16u, 64u, 128u);
  INFO("dim " << dim);
  RowAllocator allocator;
  uint64_t resident = 0;
  BufferPool pool(&allocator, 0, &resident);
  v1::Initializer zeros;
  zeros.set_kind(v1::Initializer::ZEROS);
  const RowShape shape(dim, 1, false);
  RowArena arena(shape.few_bytes(), shape.many_bytes(), &pool, nullptr);
  std::vector<std::unique_ptr<RowStore>> slices;
  for (int s = 0; s < 64; ++s) slices.push_back(std::make_unique<RowStore>(shape, &zeros, &arena));
  std::vector<uint64_t> keys(16);
  std::vector<uint32_t> rows(keys.size());
  uint64_t next = 0;
  const uint64_t most = 64 * 1000;
  while (next < most) {
    for (const auto& slice : slices) {
      for (uint64_t& key : keys) key = ++next * 0x9e3779b97f4a7c15u;
      REQUIRE(slice->FindOrCreate(keys, rows.data()));
    }
  }
  const double beside = static_cast<double>(allocator.used) / static_cast<double>(next) -
                        static_cast<double>(shape.content_bytes());
  // 16 are promised from a million on; here a block that is half empty is a byte a row.
  CHECK(beside < 24);
}

TEST_CASE("a new row is the initial row of its key, with state of zero in memory used before") {
  Store s(7, 7);
  const std::vector<uint64_t> keys = {9, 8, 1000};
  std::vector<uint32_t> found(3);
  REQUIRE(s.rows->FindOrCreate(keys, found.data()));
  for (size_t i = 0; i < 3; ++i) {
    Row expected(7);
    InitializeRow(s.initializer, keys[i], expected.data(), 7);
    CHECK(SameBits(Row(s.rows->parameters(found[i]), s.rows->parameters(found[i]) + 7), expected));
    CHECK(s.rows->applies(found[i]) == 0);
  }
}

}  // namespace
}  // namespace verbena::shard
