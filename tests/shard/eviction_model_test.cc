// Every eviction policy against a simple model: after each push or step exactly the rows are there
// that the policy keeps, with all that was pushed to them since they began.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "shard/failpoints.h"
#include "shard/table/eviction.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace eviction_model_test {

using Kind = v1::Eviction::Kind;

// The rows of one partition, as docs/embedding-tables.md describes the policies.
class PolicyModel {
 public:
  PolicyModel(Kind kind, uint64_t limit) : kind_(kind), limit_(limit) {}

  struct Row {
    float pushed = 0;    // since it began
    uint64_t last = 0;   // the apply, or the second, of its last push
    uint32_t count = 0;  // LFU: pushes in 1/256, reduced by sweeps
  };

  // Returns how many rows went.
  size_t Push(const std::vector<uint64_t>& keys, float value, uint64_t seconds) {
    ++apply_;
    const std::map<uint64_t, Row> before = rows;
    for (const uint64_t key : keys) rows[key];
    const std::vector<uint64_t> victims = Victims(keys, before, seconds);
    for (const uint64_t key : keys) {
      Row& row = rows[key];
      row.pushed += value;
      row.last = kind_ == v1::Eviction::TTL_SECONDS ? seconds : apply_;
      row.count = std::min(row.count + 256, 0xfffeu);
    }
    for (const uint64_t key : victims) rows.erase(key);
    if (kind_ == v1::Eviction::LFU && !victims.empty()) {
      for (auto& [key, row] : rows) row.count -= (row.count + 15) / 16;
    }
    return victims.size();
  }

  std::map<uint64_t, Row> rows;

 private:
  using Order = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>;
  Order OrderOf(uint64_t key, const Row& row) const {
    const uint64_t hash = RowIndex::Hash(key);
    if (kind_ == v1::Eviction::LFU) return {row.count, hash >> 48, hash & 0xffffffff, key};
    return {row.last, 0, hash & 0xffffffff, key};
  }

  std::vector<uint64_t> Victims(const std::vector<uint64_t>& named,
                                const std::map<uint64_t, Row>& before, uint64_t seconds) {
    std::vector<Order> order;
    for (const auto& [key, row] : before) {
      if (std::find(named.begin(), named.end(), key) == named.end()) {
        order.push_back(OrderOf(key, row));
      }
    }
    std::sort(order.begin(), order.end());
    uint64_t count = 0;
    const uint64_t period = std::max<uint64_t>(limit_ / 8, 1);
    const bool by_apply = kind_ == v1::Eviction::TTL_STEPS && apply_ % period == 0;
    const bool by_second = kind_ == v1::Eviction::TTL_SECONDS && seconds >= swept_ + period;
    if (by_second) swept_ = seconds;
    if (by_apply || by_second) {
      const uint64_t now = by_apply ? apply_ : seconds;
      count = static_cast<uint64_t>(std::count_if(order.begin(), order.end(), [&](const Order& o) {
        return std::get<0>(o) + limit_ < now;
      }));
    } else if ((kind_ == v1::Eviction::LRU || kind_ == v1::Eviction::LFU) && rows.size() > limit_) {
      count = std::min<uint64_t>(rows.size() - (limit_ - limit_ / 16), order.size());
    }
    std::vector<uint64_t> victims;
    for (uint64_t i = 0; i < count; ++i) victims.push_back(std::get<3>(order[i]));
    return victims;
  }

  const Kind kind_;
  const uint64_t limit_;
  uint64_t apply_ = 0, swept_ = 0;
};

// Compares the rows of the engine and of the model at all times. Empty: they are equal.
std::string RunAgainstModel(uint32_t seed, Kind kind, v1::Consistency consistency) {
  std::mt19937 random(seed);
  const uint64_t limit = 1 + random() % 100;
  const bool bytes = seed % 3 == 0;
  RowOptions o;
  o.workers = 1;
  o.partitions = 1;
  o.consistency = consistency;
  o.initializer.set_kind(v1::Initializer::CONSTANT);
  o.initializer.set_a(100);
  o.eviction.set_kind(kind);
  if (kind == v1::Eviction::TTL_STEPS || kind == v1::Eviction::TTL_SECONDS) {
    o.eviction.set_ttl(limit);
  } else if (bytes) {
    o.eviction.set_max_bytes(limit * o.dim * sizeof(float));
  } else {
    o.eviction.set_max_rows(limit);
  }
  RowFixture f(o);
  PolicyModel model(kind, limit);
  uint64_t seconds = 1000, gone = 0;
  uint64_t first = 0;  // step of this run of the job
  for (uint64_t step = 0; step < 80; ++step) {
    seconds += random() % 3;
    f.engine->SetSeconds(static_cast<uint32_t>(seconds));
    // Few keys, all keys there are, or more than there may be; old ones and new ones.
    const uint64_t range = random() % 4 == 0 ? 1000 : 1 + limit;
    const uint64_t most = random() % 5 == 0 ? 2 * limit : 1 + limit / 4;
    std::vector<uint64_t> keys(1 + random() % most);
    for (uint64_t& key : keys) key = (random() % 3 == 0 ? step * 1000 : 0) + random() % range;
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    const auto value = static_cast<float>(1 + random() % 9);
    const bool sync = consistency == v1::CONSISTENCY_SYNC;
    if (sync && random() % 8 == 0) {
      // A step that is given up leaves rows that nobody has trained.
      std::vector<uint64_t> others(1 + random() % most);
      for (uint64_t& key : others) key = random() % 2000;
      std::sort(others.begin(), others.end());
      others.erase(std::unique(others.begin(), others.end()), others.end());
      if (f.PushValue(0, 0, step - first, others, 1) != ReplyStatus::kOk) return "given up";
      f.job()->set_generation(f.job()->generation() + 1);
      if (!f.Apply().ok()) return "view";
      first = step;
    }
    if (f.PushValue(0, 0, sync ? step - first : step + 1, keys, value) != ReplyStatus::kOk) {
      return "push";
    }
    if (sync && f.EndStatus(0, 0, step - first, 1) != ReplyStatus::kOk) return "end of step";
    gone += model.Push(keys, value, seconds);
    const Rows there = f.Scan(0, 1000);
    for (const uint64_t key : keys) {
      if (!there.contains(key)) return "a row that the push names is gone";
    }
    if (there.size() != model.rows.size()) {
      return "rows: " + std::to_string(there.size()) + " not " + std::to_string(model.rows.size());
    }
    for (const auto& [key, row] : model.rows) {
      const auto found = there.find(key);
      if (found == there.end()) return "another row is gone";
      if (found->second != f.Filled(100 - row.pushed)) return "a row has other numbers";
    }
    if (f.engine->tables()[0].counters.evicted_rows != gone) return "counts of rows that went";
  }
  return "";
}

TEST_CASE(
    "regression: each policy drops the rows that a simple model drops, and none of the same push") {
  const Kind kind = GENERATE(v1::Eviction::TTL_STEPS, v1::Eviction::TTL_SECONDS, v1::Eviction::LRU,
                             v1::Eviction::LFU);
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC);
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed, static_cast<int>(kind), static_cast<int>(consistency));
    REQUIRE(RunAgainstModel(seed, kind, consistency) == "");
  }
}

TEST_CASE("the model finds a policy that drops rows of the same push, all alike, or too many") {
  Failpoints& bugs = failpoints();
  Failpoint& bug =
      *GENERATE(&failpoints().evict_named, &failpoints().evict_alike, &failpoints().count_unnamed);
  bug = true;
  int found = 0;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    found += RunAgainstModel(
                 seed, &bug == &bugs.evict_named ? v1::Eviction::LFU : v1::Eviction::LRU,
                 &bug == &bugs.count_unnamed ? v1::CONSISTENCY_SYNC : v1::CONSISTENCY_ASYNC) != "";
  }
  bug = false;
  CHECK(found > 0);
}

}  // namespace eviction_model_test
}  // namespace verbena::shard
