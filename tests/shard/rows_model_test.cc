// Embedding tables, async and ssp, under random operations against a std::map: equal bit for bit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <vector>

#include "tests/shard/row_model.h"
#include "tests/support/seed_count.h"

namespace verbena::shard {
namespace rows_model_test {

using Status = ReplyStatus;
using Kind = PullOutcome::Kind;

class RowsRun {
 public:
  RowsRun(uint32_t seed, v1::Consistency consistency)
      : o_(RandomRowOptions(seed, consistency)), f_(o_), model_(o_), random_(seed + 1) {
    universe_ = 1 + Pick(400);
    sequences_.resize(o_.workers, std::vector<uint64_t>(o_.partitions));
    clocks_.resize(o_.workers);
  }

  void Run(int operations) {
    for (int i = 0; i < operations; ++i) {
      const uint32_t what = Pick(20);
      if (what < 9) {
        Push();
      } else if (what < 14) {
        Lookup();
      } else if (what < 16) {
        Scan();
      } else if (what < 18) {
        EndStep();
      } else if (what < 19) {
        // New rows fit only into memory that is allocated already; or into any amount again.
        f_.allocator.limit = f_.allocator.limit == SIZE_MAX ? f_.allocator.used : SIZE_MAX;
      } else {
        NewEpoch();
      }
      TakeEvents();
    }
    f_.allocator.limit = SIZE_MAX;
    for (uint32_t p = 0; p < o_.partitions; ++p) {
      CHECK(SameRows(f_.Scan(p, 1 + Pick(100)), model_.Partition(p)));
    }
    const TableStatistics table = f_.engine->tables()[0];
    CHECK(table.rows == model_.size());
    const size_t bytes = o_.row_dtype == v1::DTYPE_F32 ? o_.dim * 4 : (o_.dim + 1) / 2 * 4;
    CHECK(table.parameter_bytes == model_.size() * bytes);
    CHECK(f_.engine->counters().deferred == deferred_.size());
  }

 private:
  struct Deferred {
    uint64_t clock;  // of its worker, when it came
    std::vector<uint64_t> keys;
  };

  uint32_t Pick(size_t n) { return static_cast<uint32_t>(random_() % n); }
  std::vector<uint64_t> SomeKeys(size_t most) {
    std::vector<uint64_t> keys;
    for (size_t n = 1 + Pick(most); keys.size() < n;) {
      keys.push_back(Pick(universe_) * uint64_t{0x10001});
    }
    return f_.Order(keys);
  }

  // A record with groups of random keys, some sent again.
  void Push() {
    const uint32_t rank = Pick(o_.workers);
    f_.keys = SomeKeys(60);
    f_.groups.clear();
    f_.values.clear();
    std::vector<Rows> pushed;
    for (const uint64_t key : f_.keys) {
      const uint32_t p = f_.PartitionOf(key);
      if (f_.groups.empty() || f_.groups.back().partition != p) {
        f_.groups.push_back(f_.GroupOf(p, sequences_[rank][p] + 1, 0));
        pushed.emplace_back();
      }
      ++f_.groups.back().count;
      Row row = RandomRow(&random_, o_.dim);
      if (Pick(400) == 0) row[Pick(o_.dim)] = kNan;
      f_.values.insert(f_.values.end(), row.begin(), row.end());
      pushed.back()[key] = row;
    }
    const GroupsOutcome out = f_.engine->PushRows(f_.PushOf(rank));
    REQUIRE(out.group_status.size() == pushed.size());
    for (size_t i = 0; i < pushed.size(); ++i) {
      Settled(rank, f_.groups[i].partition, pushed[i], out.group_status[i]);
    }
    if (Pick(3) > 0) return;
    // The reply was lost.
    for (const Status s : f_.engine->PushRows(f_.PushOf(rank)).group_status) {
      CHECK(s == Status::kDuplicate);
    }
  }
  void Settled(uint32_t rank, uint32_t partition, const Rows& rows, Status status) {
    ++sequences_[rank][partition];
    bool bad = false;
    bool known = true;
    std::map<uint64_t, std::vector<Row>> contributions;
    for (const auto& [key, row] : rows) {
      bad |= std::any_of(row.begin(), row.end(), [](float x) { return x != x; });
      known &= model_.Has(key);
      contributions[key] = {row};
    }
    if (bad) {
      CHECK(status == Status::kNonFinite);
      return SettleRefused(rank, partition);
    }
    if (status == Status::kMemoryLimit) {
      CHECK_FALSE(known);
      CHECK(f_.allocator.limit != SIZE_MAX);
      return SettleRefused(rank, partition);
    }
    CHECK(status == Status::kOk);
    const bool mean = o_.reduction == v1::REDUCTION_MEAN;
    model_.Apply(partition, contributions, mean ? static_cast<float>(o_.workers) : 1);
  }

  void SettleRefused(uint32_t rank, uint32_t partition) {
    const auto groups = f_.groups;
    const auto keys = f_.keys;
    const auto values = f_.values;
    CHECK(f_.PushStatus(rank, partition, sequences_[rank][partition], {}) == Status::kOk);
    f_.groups = groups;
    f_.keys = keys;
    f_.values = values;
  }

  uint64_t LeastClock() const { return *std::min_element(clocks_.begin(), clocks_.end()); }
  bool Waits(uint64_t clock) const {
    return o_.consistency == v1::CONSISTENCY_SSP && clock > LeastClock() + o_.staleness;
  }
  void Lookup() {
    const uint32_t rank = Pick(o_.workers);
    const std::vector<uint64_t> keys = SomeKeys(100);
    const uint64_t clock = o_.consistency == v1::CONSISTENCY_SSP ? clocks_[rank] : 0;
    const uint32_t operation = next_operation_++;
    const PullOutcome out = f_.Lookup(kFirstWorker + rank, keys, clock, rank, operation);
    if (Waits(clock)) {
      REQUIRE(out.kind == Kind::kDeferred);
      deferred_[operation] = {clock, keys};
      return;
    }
    REQUIRE(out.kind == Kind::kReady);
    CHECK(out.view.bytes == keys.size() * o_.dim * sizeof(float));
    CHECK(SameRows(f_.RowsOf(keys, out.view), model_.Get(keys)));
    f_.engine->Unpin(out.view.pin);
  }

  void Scan() {
    const uint32_t p = Pick(o_.partitions);
    CHECK(SameRows(f_.Scan(p, 1 + Pick(50)), model_.Partition(p)));
  }

  // Everywhere, so that the least clock is the same in all partitions.
  void EndStep() {
    const uint32_t rank = Pick(o_.workers);
    ++clocks_[rank];
    for (uint32_t p = 0; p < o_.partitions; ++p) {
      CHECK(f_.EndStatus(rank, p, ++sequences_[rank][p], 0, clocks_[rank]) == Status::kOk);
    }
  }

  void NewEpoch() {
    const uint32_t p = Pick(o_.partitions);
    v1::Partition* partition = f_.view.mutable_partitions(static_cast<int>(p));
    partition->set_epoch(partition->epoch() + 1);
    failing_ = p;
    REQUIRE(f_.Apply().ok());
  }

  void TakeEvents() {
    for (const Event& e : f_.Events()) {
      const auto it = deferred_.find(e.token.operation);
      REQUIRE(it != deferred_.end());
      const std::vector<uint64_t>& keys = it->second.keys;
      CHECK(e.destination == 0x1000 + e.token.operation);
      if (e.kind == Event::Kind::kPullFailed) {
        CHECK(e.answer.status == Status::kWrongEpoch);
        CHECK(std::any_of(keys.begin(), keys.end(),
                          [&](uint64_t key) { return f_.PartitionOf(key) == failing_; }));
      } else {
        REQUIRE(e.kind == Event::Kind::kPullReady);
        CHECK_FALSE(Waits(it->second.clock));
        CHECK(SameRows(f_.RowsOf(keys, e.view), model_.Get(keys)));
        f_.engine->Unpin(e.view.pin);
      }
      deferred_.erase(it);
    }
    // Lookups that need not wait any more have been answered.
    for (const auto& [operation, lookup] : deferred_) CHECK(Waits(lookup.clock));
  }

  const RowOptions o_;
  RowFixture f_;
  RowModel model_;
  std::mt19937 random_;
  uint32_t universe_ = 1;
  std::vector<std::vector<uint64_t>> sequences_;  // by rank, by partition
  std::vector<uint64_t> clocks_;                  // by rank
  std::map<uint32_t, Deferred> deferred_;         // by operation
  uint32_t next_operation_ = 1;
  uint32_t failing_ = 0;
};

TEST_CASE("async embedding tables equal a std::map under random operations") {
  for (uint32_t seed = 1; seed <= test::SeedCount(200); ++seed) {
    INFO("seed " << seed);
    RowsRun(seed, v1::CONSISTENCY_ASYNC).Run(200);
  }
}

TEST_CASE("ssp embedding tables equal a std::map, and lookups wait for the clocks") {
  for (uint32_t seed = 1; seed <= test::SeedCount(200); ++seed) {
    INFO("seed " << seed);
    RowsRun(seed, v1::CONSISTENCY_SSP).Run(200);
  }
}

}  // namespace rows_model_test
}  // namespace verbena::shard
