// The index of an embedding table's rows and the arena that it shares with them.
#include "shard/table/row_index.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "shard/table/row_lookahead.h"
#include "shard/table/row_store.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace {

struct LocalPartitions {
  LocalPartitions(const RowShape& of_shape, size_t slices)
      : shape(of_shape),
        pool(&allocator, 0, &resident),
        arena(shape.few_bytes(), shape.many_bytes(), &pool, nullptr) {
    initializer.set_kind(v1::Initializer::ZEROS);
    for (size_t s = 0; s < slices; ++s) {
      stores.push_back(std::make_unique<RowStore>(shape, &initializer, &arena));
    }
  }
  RowAllocator allocator;
  uint64_t resident = 0;
  const RowShape shape;
  BufferPool pool;
  v1::Initializer initializer;
  RowArena arena;
  std::vector<std::unique_ptr<RowStore>> stores;
};

// Keys in batches, compared with a plain map all along.
void CheckLikeMap(size_t count, const std::function<uint64_t(size_t)>& key_of) {
  LocalPartitions s(RowShape(1, 0, false), 1);
  RowStore& store = *s.stores[0];
  std::unordered_map<uint64_t, uint32_t> model;
  std::mt19937_64 random(3);
  std::vector<uint64_t> keys;
  std::vector<uint32_t> rows;
  for (size_t i = 0; i < count;) {
    keys.clear();
    for (size_t n = 1 + random() % 700; n > 0 && i < count; --n, ++i) keys.push_back(key_of(i));
    if (!model.empty()) keys.push_back(key_of(random() % i));  // one that may be there
    rows.resize(keys.size());
    REQUIRE(store.FindOrCreate(keys, rows.data()));
    for (size_t k = 0; k < keys.size(); ++k) {
      const auto next = static_cast<uint32_t>(model.size());
      REQUIRE(rows[k] == model.emplace(keys[k], next).first->second);
    }
  }
  REQUIRE(store.size() == model.size());
  for (const auto& [key, row] : model) {
    const uint64_t absent = key ^ 0x8000000000000001u;
    uint32_t found[2];
    store.Find(std::vector<uint64_t>{key, absent}, found);
    REQUIRE(found[0] == row);
    REQUIRE(store.key(row) == key);
    const auto other = model.find(absent);
    REQUIRE(found[1] == (other == model.end() ? RowStore::kNone : other->second));
  }
}

TEST_CASE("index pages that are allocated one by one, among rows, are contiguous") {
  LocalPartitions s(RowShape(64, 1, false), 0);
  constexpr int kPages = 20'000;
  std::vector<std::byte*> rows, pages;
  int behind = 0;
  for (int i = 0; i < kPages; ++i) {
    rows.push_back(s.arena.Take(RowArena::kFew));
    pages.push_back(s.arena.Take(RowArena::kPage));
    REQUIRE(rows.back() != nullptr);
    REQUIRE(pages.back() != nullptr);
    if (i == 0) continue;
    const auto apart =
        reinterpret_cast<intptr_t>(pages[i]) - reinterpret_cast<intptr_t>(pages[i - 1]);
    behind += std::abs(apart) == RowArena::kPageBytes ? 1 : 0;
  }
  CHECK(behind > kPages * 3 / 4);
  for (std::byte* p : rows) s.arena.Give(RowArena::kFew, p);
  for (std::byte* p : pages) s.arena.Give(RowArena::kPage, p);
}

TEST_CASE("an index finds the same rows as a map, for keys of any pattern") {
  std::mt19937_64 random(1);
  constexpr size_t kCount = 60000;  // some tens of groups
  CheckLikeMap(kCount, [&](size_t i) { return i * 0x9e3779b97f4a7c15u; });
  CheckLikeMap(kCount, [](size_t i) { return i; });
  CheckLikeMap(kCount, [](size_t i) { return uint64_t{i} << 32; });
  CheckLikeMap(kCount, [](size_t i) { return (uint64_t{i} << 40) | 0x1234567890u; });
  CheckLikeMap(kCount, [](size_t i) { return ~uint64_t{i}; });
}

TEST_CASE("beside parameters and state a row takes at most sixteen bytes, at every size") {
  const auto [dim, slices] = GENERATE(std::pair(1u, 1u), std::pair(16u, 1u), std::pair(64u, 4u));
  INFO("dim " << dim << ", slices " << slices);
  LocalPartitions s(RowShape(dim, 1, false), slices);
  std::vector<uint64_t> keys(250);
  std::vector<uint32_t> rows(keys.size());
  uint64_t next = 0;
  double most = 0;
  for (uint64_t all = 0; all < (dim > 16 ? 60000 : 300000); all += keys.size() * slices) {
    for (const auto& store : s.stores) {
      for (uint64_t& key : keys) key = ++next * 0x9e3779b97f4a7c15u;
      REQUIRE(store->FindOrCreate(keys, rows.data()));
    }
    if (next < 10000 * slices) continue;
    uint64_t pages = 0;
    for (const auto& store : s.stores) pages += store->overhead_bytes();
    most = std::max(most, static_cast<double>(pages) / static_cast<double>(next));
  }
  CHECK(most <= 16);
  // The arena's idle memory comes on top: a block, and the reserved memory.
  const double all = static_cast<double>(s.arena.bytes()) / static_cast<double>(next);
  CHECK(all <= 16.5 + 4.0 * (dim + 1) + double{1 << 20} / static_cast<double>(next));
}

TEST_CASE("keys with the same two cache lines are found, wherever they are stored") {
  std::vector<uint64_t> same, keys;
  for (uint64_t key = 0; same.size() < 140; ++key) {
    if ((RowIndex::Hash(key) & 0xffff) == 0x1234) same.push_back(key);
  }
  std::mt19937_64 random(4);
  for (int i = 0; i < 700; ++i) keys.push_back(random());
  keys.insert(keys.begin() + 350, same.begin(), same.begin() + 70);
  LocalPartitions s(RowShape(2, 0, false, /*has_stamps=*/true), 1);
  RowStore& store = *s.stores[0];
  std::vector<uint32_t> rows(keys.size());
  REQUIRE(store.FindOrCreate(keys, rows.data()));
  const auto check = [&](size_t gone) {
    store.Find(keys, rows.data());
    for (size_t i = 0; i < keys.size(); ++i) {
      REQUIRE(rows[i] == (i >= 350 && i < 350 + gone ? RowStore::kNone : i));
    }
    std::vector<uint32_t> others(70);
    store.Find({same.data() + 70, 70}, others.data());
    for (const uint32_t row : others) REQUIRE(row == RowStore::kNone);
  };
  check(0);
  for (size_t gone = 0; gone < 60; ++gone) {
    store.Drop(static_cast<uint32_t>(350 + gone));
    check(gone + 1);
  }
}

TEST_CASE("a lookahead guesses nearly every row, at every size") {
  LocalPartitions s(RowShape(2, 0, false), 1);
  RowStore& store = *s.stores[0];
  std::vector<uint64_t> keys;
  std::vector<uint32_t> rows;
  for (size_t size = 500; size < 200'000; size += size / 7) {
    const size_t before = keys.size();
    while (keys.size() < size) keys.push_back(keys.size() * 0x9e3779b97f4a7c15u);
    rows.resize(size);
    REQUIRE(store.FindOrCreate({keys.data() + before, size - before}, rows.data() + before));
    RowLookahead ahead;
    ahead.Add(&store, keys);
    size_t wrong = 0;
    for (size_t i = 0; i < size; ++i) wrong += ahead.Next().row == i ? 0 : 1;
    INFO(size << " rows, wrong guesses: " << wrong);
    CHECK(wrong < 10 + size * 15 / 1000);
  }
}

TEST_CASE("wrong, outdated and missing guesses still find the rows") {
  LocalPartitions s(RowShape(2, 0, false, /*has_stamps=*/true), 1);
  RowStore& store = *s.stores[0];
  std::vector<uint64_t> keys(300);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i * 977;
  std::vector<uint32_t> rows(keys.size()), guesses(keys.size());
  REQUIRE(store.FindOrCreate({keys.data(), 200}, rows.data()));
  store.set_reuses(false);
  for (uint32_t row = 20; row < 40; ++row) store.Drop(row);  // their keys are still in memory
  for (size_t i = 0; i < guesses.size(); ++i) {
    guesses[i] = i % 3 == 0   ? static_cast<uint32_t>(i)
                 : i % 3 == 1 ? static_cast<uint32_t>(i * 7)
                              : RowStore::kNone;
  }
  // As many guesses as there may be: fewer than keys.
  REQUIRE(store.FindOrCreate(keys, rows.data(), {guesses.data(), 280}));
  for (size_t i = 0; i < keys.size(); ++i) {
    CHECK(store.key(rows[i]) == keys[i]);
    CHECK_FALSE(store.is_free(rows[i]));
    if (i < 20 || (i >= 40 && i < 200)) CHECK(rows[i] == i);
    if (i >= 20 && i < 40) CHECK(rows[i] >= 200);
  }
}

TEST_CASE("without memory a store stays as it was, and continues later") {
  const RowShape shape(3, 1, false);
  std::mt19937_64 random(9);
  std::vector<uint64_t> keys(9000);
  for (uint64_t& key : keys) key = random();
  std::vector<uint32_t> rows(keys.size());
  size_t refused = 0;
  for (size_t more = 0; more < (size_t{400} << 10); more += 4096) {
    LocalPartitions s(shape, 1);
    RowStore& store = *s.stores[0];
    REQUIRE(store.FindOrCreate({keys.data(), 2000}, rows.data()));
    const size_t used = s.allocator.used;
    s.allocator.limit = used + more;
    if (!store.FindOrCreate(keys, rows.data())) {
      ++refused;
      REQUIRE(s.allocator.used == used);
      REQUIRE(store.size() == 2000);
      store.Find(keys, rows.data());
      for (size_t i = 0; i < keys.size(); ++i) {
        REQUIRE(rows[i] == (i < 2000 ? static_cast<uint32_t>(i) : RowStore::kNone));
      }
      s.allocator.limit = SIZE_MAX;
      REQUIRE(store.FindOrCreate(keys, rows.data()));
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      REQUIRE(rows[i] == i);
      REQUIRE(store.key(rows[i]) == keys[i]);
    }
  }
  CHECK(refused > 10);
}

TEST_CASE("an index without memory fills up, refuses keys, and can remove them") {
  LocalPartitions s(RowShape(1, 0, false), 0);
  RowIndex index(&s.arena);
  std::vector<uint64_t> keys;
  const auto hashes_of = [&](absl::Span<const uint32_t> rows, uint64_t* hashes) {
    for (const uint32_t row : rows) *hashes++ = RowIndex::Hash(keys[row]);
  };
  const auto find = [&](uint32_t row) {
    return index.Find(RowIndex::Hash(keys[row]), [&](uint32_t r) { return keys[r] == keys[row]; });
  };
  s.allocator.limit = 4096;
  uint32_t n = 0;
  for (keys.push_back(0); index.Insert(RowIndex::Hash(keys[n]), n, hashes_of); ++n) {
    REQUIRE(n < 10000);
    keys.push_back(n + 1);
  }
  CHECK(n == 8 * 8 * 12);  // pages, lines, slots
  for (uint32_t row = 0; row < n; ++row) REQUIRE(find(row) == row);
  CHECK(find(n) == RowIndex::kNone);
  for (uint32_t row = n; row-- > n / 2;) index.Remove(RowIndex::Hash(keys[row]), row);
  for (uint32_t row = 0; row < n; ++row) {
    REQUIRE(find(row) == (row < n / 2 ? row : RowIndex::kNone));
  }
  s.allocator.limit = SIZE_MAX;
  for (uint32_t row = n / 2; row < n; ++row) {
    REQUIRE(index.Insert(RowIndex::Hash(keys[row]), row, hashes_of));
  }
  for (uint32_t row = 0; row < n; ++row) REQUIRE(find(row) == row);
}

TEST_CASE("any expected number of rows gives the same rows, and the right one costs nothing") {
  constexpr size_t kRows = 50000;
  std::mt19937_64 random(5);
  std::vector<uint64_t> keys(kRows);
  for (uint64_t& key : keys) key = random();
  std::vector<uint32_t> rows(kRows);
  LocalPartitions s(RowShape(2, 1, false), 5);
  const uint64_t expected[] = {0, kRows, kRows / 20, 10 * kRows, 30};
  for (size_t i = 0; i < s.stores.size(); ++i) {
    RowStore& store = *s.stores[i];
    store.Expect(expected[i]);
    for (size_t from = 0; from < kRows; from += 5000) {
      REQUIRE(store.FindOrCreate({keys.data() + from, 5000}, rows.data() + from));
      store.Expect(expected[i]);  // now it is too late
    }
    store.Find(keys, rows.data());
    for (size_t k = 0; k < kRows; ++k) {
      REQUIRE(rows[k] == k);
      REQUIRE(store.key(rows[k]) == keys[k]);
    }
    INFO("expected " << expected[i]);
    if (expected[i] <= kRows) {
      CHECK(store.overhead_bytes() < s.stores[0]->overhead_bytes() * 11 / 10);
    }
  }
}

TEST_CASE("more rows are expected than fit into memory: they are created all the same") {
  LocalPartitions s(RowShape(2, 0, false), 1);
  s.allocator.limit = 1 << 20;
  RowStore& store = *s.stores[0];
  store.Expect(uint64_t{1} << 40);
  CHECK(s.allocator.used == 0);
  std::vector<uint64_t> keys(10000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  std::vector<uint32_t> rows(keys.size());
  REQUIRE(store.FindOrCreate(keys, rows.data()));
  for (size_t i = 0; i < keys.size(); ++i) REQUIRE(rows[i] == i);
}

TEST_CASE("rows without counts remember whether there was an apply, also when they move") {
  LocalPartitions s(RowShape(2, 0, false), 1);
  RowStore& store = *s.stores[0];
  std::vector<uint64_t> keys(200);
  std::vector<uint32_t> rows(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = i;
    REQUIRE(store.FindOrCreate({&keys[i], 1}, &rows[i]));
    if (i % 3 == 0) store.CountApply(rows[i]);
    if (i % 6 == 0) store.CountApply(rows[i]);
    if (i % 5 == 0) store.SetApplies(rows[i], 7);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    REQUIRE(store.applies(rows[i]) == (i % 3 == 0 || i % 5 == 0 ? 1 : 0));
  }
}

TEST_CASE("after many inserts and drops a lookup of a missing key still ends soon") {
  LocalPartitions s(RowShape(2, 0, false, /*has_stamps=*/true), 0);
  RowIndex index(&s.arena);
  const auto no_hashes = [](absl::Span<const uint32_t> rows, uint64_t* hashes) {
    for (size_t i = 0; i < rows.size(); ++i) hashes[i] = RowIndex::Hash(rows[i]);
  };
  constexpr uint32_t kLive = 20'000;
  uint32_t next = 0;
  for (; next < kLive; ++next) REQUIRE(index.Insert(RowIndex::Hash(next), next, no_hashes));
  const auto reach = [&] {
    uint64_t lines = 0;
    for (uint64_t absent = 0; absent < 10'000; ++absent) {
      lines += index.Reach(RowIndex::Hash(absent + (uint64_t{1} << 40)));
    }
    return lines;
  };
  const uint64_t pages = index.pages();
  const uint64_t before = reach();
  std::mt19937_64 random(9);
  std::vector<uint32_t> live(kLive);
  for (uint32_t row = 0; row < kLive; ++row) live[row] = row;
  for (int i = 0; i < 400'000; ++i) {
    uint32_t& gone = live[random() % kLive];
    index.Remove(RowIndex::Hash(gone), gone);
    gone = next++;
    REQUIRE(index.Insert(RowIndex::Hash(gone), gone, no_hashes));
  }
  CHECK(reach() < 2 * before);
  CHECK(index.pages() < pages * 3 / 2);
  for (const uint32_t row : live) {
    REQUIRE(index.Find(RowIndex::Hash(row), [row](uint32_t r) { return r == row; }) == row);
  }
}

TEST_CASE("an index keeps the greatest row numbers complete, also of rows that move") {
  LocalPartitions s(RowShape(2, 0, false), 0);
  RowIndex index(&s.arena);
  const auto hashes_of = [](absl::Span<const uint32_t> rows, uint64_t* hashes) {
    for (const uint32_t row : rows) *hashes++ = RowIndex::Hash(row);
  };
  // From the last one down, over all of the highest bits.
  std::vector<uint32_t> rows;
  for (uint64_t row = kMaxRowsOfPartition - 1; row > 6529; row -= 6529) {
    rows.push_back(static_cast<uint32_t>(row));
  }
  const auto find = [&](uint32_t row) {
    return index.Find(RowIndex::Hash(row), [row](uint32_t r) { return r == row; });
  };
  for (const uint32_t row : rows) REQUIRE(index.Insert(RowIndex::Hash(row), row, hashes_of));
  for (const uint32_t row : rows) REQUIRE(find(row) == row);
  for (size_t i = 0; i < rows.size(); i += 3) index.Remove(RowIndex::Hash(rows[i]), rows[i]);
  for (size_t i = 0; i < rows.size(); ++i) {
    REQUIRE(find(rows[i]) == (i % 3 == 0 ? RowIndex::kNone : rows[i]));
  }
}

TEST_CASE("partitions that leave give their memory to the others, and finally to the pool") {
  LocalPartitions s(RowShape(8, 0, false), 8);
  std::vector<uint64_t> keys(3000);
  std::vector<uint32_t> rows(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  for (const auto& store : s.stores) REQUIRE(store->FindOrCreate(keys, rows.data()));
  const size_t used = s.allocator.used;
  s.stores[3] = std::make_unique<RowStore>(s.shape, &s.initializer, &s.arena);
  REQUIRE(s.stores[3]->FindOrCreate(keys, rows.data()));
  CHECK(s.allocator.used == used);
  for (size_t i = 0; i < 7; ++i) {
    s.stores[i].reset();
    s.arena.Trim();
  }
  CHECK(s.allocator.used < used / 2);
  s.stores[7]->Find(keys, rows.data());
  for (size_t i = 0; i < keys.size(); ++i) REQUIRE(rows[i] == i);
  s.stores[7].reset();
  s.arena.Trim();
}

}  // namespace
}  // namespace verbena::shard
