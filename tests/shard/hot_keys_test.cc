// Which keys of a table are asked for most.
#include "shard/table/hot_keys.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace {

TEST_CASE("hot keys: counts are within their errors, and no frequent key is missed") {
  std::mt19937_64 random(GENERATE(1, 2, 3));
  for (const double exponent : {0.0, 0.6, 1.05, 2.0}) {
    std::vector<double> weights;
    for (int i = 1; i <= 1000; ++i) weights.push_back(std::pow(i, -exponent));
    std::discrete_distribution<uint64_t> draw(weights.begin(), weights.end());
    HotKeys hot;
    std::map<uint64_t, uint64_t> truth;
    const uint64_t samples = HotKeys::kHalvedAfter - 1;
    for (uint64_t i = 0; i < samples; ++i) {
      const uint64_t key = draw(random) * 0x9e3779b97f4a7c15u;
      hot.Add(key);
      ++truth[key];
    }
    REQUIRE(hot.sampled() == samples);
    const std::vector<HotKey> top = hot.Top(HotKeys::kCounters);
    REQUIRE(top.size() == HotKeys::kCounters);
    uint64_t sum = 0;
    for (const HotKey& key : top) {
      CAPTURE(exponent, key.key, key.count, key.error, truth[key.key]);
      CHECK(key.count >= truth[key.key]);
      CHECK(key.count - key.error <= truth[key.key]);
      sum += key.count;
    }
    CHECK(sum == samples);  // every sample is in one counter
    CHECK(std::is_sorted(top.begin(), top.end(),
                         [](const HotKey& a, const HotKey& b) { return a.count > b.count; }));
    for (const auto& [key, count] : truth) {
      if (count <= samples / HotKeys::kCounters) continue;
      CHECK(std::any_of(top.begin(), top.end(), [&](const HotKey& k) { return k.key == key; }));
    }
    CHECK(hot.Top(3).size() == 3);
  }
}

TEST_CASE("hot keys: a sample has the shares of all requests, however they are cut") {
  std::mt19937_64 random(5);
  HotKeys hot;
  // Each example names the same two keys at the same places: one in 8 and one in 32 of all.
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 1'000'000; ++i) {
    keys.push_back(i % 8 == 3 ? 7 : i % 32 == 4 ? 9 : 1000 + random() % 1'000'000);
  }
  for (size_t at = 0; at < keys.size();) {
    const size_t n = std::min<size_t>(random() % 300, keys.size() - at);
    hot.Count(absl::MakeSpan(keys).subspan(at, n));
    at += n;
  }
  const std::vector<HotKey> top = hot.Top(2);
  const auto sampled = static_cast<double>(hot.sampled());
  CHECK(sampled == Approx(1'000'000.0 / HotKeys::kOneIn).epsilon(0.05));
  REQUIRE(top.size() == 2);
  CHECK(top[0].key == 7);
  CHECK(static_cast<double>(top[0].count) / sampled == Approx(1.0 / 8).epsilon(0.1));
  CHECK(top[1].key == 9);
  CHECK(static_cast<double>(top[1].count - top[1].error) / sampled < 1.2 / 32);
  CHECK(static_cast<double>(top[1].count) / sampled > 0.8 / 32);
}

TEST_CASE("hot keys: keys that were hot long ago are replaced") {
  HotKeys hot;
  for (uint64_t i = 0; i < HotKeys::kHalvedAfter; ++i) hot.Add(1);
  for (uint64_t i = 0; i < HotKeys::kHalvedAfter; ++i) hot.Add(2);
  REQUIRE(hot.Top(1).size() == 1);
  CHECK(hot.Top(1)[0].key == 2);
  CHECK(hot.sampled() <= HotKeys::kHalvedAfter);
}

TEST_CASE("hot keys of a table are those of lookups and pushes that were accepted") {
  RowFixture f({});
  REQUIRE(f.applied.ok());
  const std::vector<uint64_t> keys = f.KeysIn(1, 2);
  for (uint64_t i = 1; i <= 1000; ++i) {
    REQUIRE(f.PushValue(0, 1, i, {keys[0]}, 1) == ReplyStatus::kOk);
    (void)f.ReadRow(keys[0]);
    // Refused: it was applied already.
    if (i == 1) continue;
    for (int again = 0; again < 2; ++again) {
      REQUIRE(f.PushValue(0, 1, 1, {keys[1]}, 1) == ReplyStatus::kDuplicate);
    }
  }
  const TableStatistics table = f.engine->tables()[0];
  REQUIRE(table.hot_keys.size() == 1);
  CHECK(table.hot_keys[0].key == keys[0]);
  CHECK(table.hot_keys[0].error == 0);
  CHECK(table.hot_keys[0].count == table.sampled_keys);
  CHECK(static_cast<double>(table.sampled_keys) == Approx(2000.0 / HotKeys::kOneIn).epsilon(0.5));
}

}  // namespace
}  // namespace verbena::shard
