// How the keys of a call are made ready for records, against the plainest way to do it.
#include "client/core/key_plan.h"

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "client/core/key_sort.h"
#include "proto/wire/routing.h"

namespace verbena::client {
namespace key_plan_test {

constexpr uint32_t kTable = 5;

void CheckAgainstMap(const std::vector<uint64_t>& keys, uint32_t partitions, const KeyPlan& plan) {
  std::map<uint32_t, std::map<uint64_t, std::vector<uint32_t>>> expected;
  for (uint32_t i = 0; i < keys.size(); ++i) {
    expected[PartitionOfKey(kTable, keys[i], partitions)][keys[i]].push_back(i);
  }
  REQUIRE(plan.ranges().size() == expected.size());
  auto range = plan.ranges().begin();
  size_t index = 0;
  for (const auto& [partition, rows] : expected) {
    REQUIRE(range->partition == partition);
    REQUIRE(range->first == index);
    REQUIRE(range->count == rows.size());
    for (const auto& [key, positions] : rows) {
      REQUIRE(plan.keys()[index] == key);
      const auto got = plan.positions(index);
      REQUIRE(std::vector<uint32_t>(got.begin(), got.end()) == positions);
      ++index;
    }
    ++range;
  }
  REQUIRE(plan.keys().size() == index);
}

TEST_CASE("a plan has each key once, by partition and ascending, with its positions in order") {
  std::mt19937_64 random(1);
  KeyScratch scratch;
  KeyPlan plan;  // one for all, as calls reuse it
  for (int round = 0; round < 300; ++round) {
    const uint32_t partitions = 1 + static_cast<uint32_t>(random() % 300);
    const size_t count = 1 + random() % (round % 10 == 0 ? 5000 : 100);
    // Few keys that repeat, many that count up, or any at all.
    const uint64_t range = round % 3 == 0 ? 20 : round % 3 == 1 ? count : UINT64_MAX;
    std::vector<uint64_t> keys(count);
    for (uint64_t& key : keys) key = random() % range;
    // Also keys of which only the high half differs.
    if (round % 7 == 0) {
      for (uint64_t& key : keys) key <<= 40;
    }
    plan.Build(keys, kTable, partitions, &scratch);
    INFO("round " << round);
    CheckAgainstMap(keys, partitions, plan);
  }
}

TEST_CASE("keys that are sorted before their call have the plan that the call would make") {
  std::mt19937_64 random(2);
  std::vector<uint64_t> keys(KeySort::kManyKeys);
  for (uint64_t& key : keys) key = random() % 1000;
  KeySort sort(keys, {kTable, 7});
  sort.Run();
  const std::unique_ptr<KeyPlan> plan = sort.TakePlan();
  REQUIRE(plan != nullptr);
  CheckAgainstMap(keys, 7, *plan);
  CHECK(sort.TakeBags() == nullptr);
}

TEST_CASE("plans with one key, with the least and the greatest key, and with none") {
  KeyScratch scratch;
  KeyPlan plan;
  for (const std::vector<uint64_t>& keys :
       {std::vector<uint64_t>{7}, {0}, {UINT64_MAX}, {UINT64_MAX, 0, UINT64_MAX}, {}}) {
    plan.Build(keys, kTable, 4, &scratch);
    CheckAgainstMap(keys, 4, plan);
  }
}

}  // namespace key_plan_test
}  // namespace verbena::client
