// Sync embedding tables under random schedules, resends, departures and new epochs, against a
// std::map: equal bit for bit, and nothing uncommitted is ever seen.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/shard/row_model.h"
#include "tests/support/seed_count.h"

namespace verbena::shard {
namespace rows_sync_model_test {

using Status = ReplyStatus;
using Kind = PullOutcome::Kind;

class SyncRowsRun {
 public:
  explicit SyncRowsRun(uint32_t seed)
      : o_(RandomRowOptions(seed, v1::CONSISTENCY_SYNC)), f_(o_), model_(o_), random_(seed + 1) {
    universe_ = 1 + Pick(200);
    departures_ = Pick(2) == 0;
    workers_.resize(o_.workers);
    steps_.resize(o_.partitions);
    for (uint32_t r = 0; r < o_.workers; ++r) StartStep(r);
  }

  void Run() {
    for (int i = 0; i < 400; ++i) Act();
    // Faults stop; everybody finishes two more steps.
    f_.allocator.limit = SIZE_MAX;
    f_.allocator.scratch_limit = SIZE_MAX;
    uint64_t goal = 0;
    for (const Worker& w : workers_) goal = std::max(goal, w.step + 2);
    for (int i = 0; i < 10000 && !Finished(goal); ++i) {
      for (uint32_t r = 0; r < o_.workers; ++r) {
        if (!departed_.count(r) && workers_[r].step < goal) Work(r);
      }
    }
    CHECK(Finished(goal));
    CHECK(deferred_.empty());
    CHECK(f_.engine->counters().held == 0);
    CHECK(f_.engine->counters().deferred == 0);
    CHECK(f_.commits.size() == f_.engine->counters().commits);
  }

 private:
  struct Record {
    uint32_t partition;
    uint32_t index;
    Rows rows;
  };
  struct Worker {
    uint64_t step = 0;
    std::vector<Record> to_push;  // of this step, the next at the end
    std::vector<Record> pushed;
    std::set<uint32_t> ended;  // partitions
  };
  // The open step of a partition.
  struct Step {
    uint64_t version = 0;
    std::map<std::pair<uint32_t, uint32_t>, Rows> accepted;  // by (rank, index)
    std::set<uint32_t> listed;                               // ranks that have pushed anything
    std::set<uint32_t> ended;
  };
  struct Deferred {
    uint64_t min_version;
    std::vector<uint64_t> keys;
  };

  uint32_t Pick(size_t n) { return static_cast<uint32_t>(random_() % n); }

  void StartStep(uint32_t r) {
    Worker& w = workers_[r];
    w.pushed.clear();
    w.ended.clear();
    w.to_push.clear();
    std::vector<uint32_t> next(o_.partitions);
    for (uint32_t records = Pick(2 * o_.partitions + 1); records > 0; --records) {
      const uint32_t p = Pick(o_.partitions);
      Record record = {p, next[p]++, {}};
      for (uint32_t n = Pick(8); n > 0; --n) {
        const uint64_t key = Pick(universe_);
        if (f_.PartitionOf(key) != p) continue;
        record.rows[key] = RandomRow(&random_, o_.dim);
        if (Pick(200) == 0) record.rows[key][Pick(o_.dim)] = kNan;
      }
      w.to_push.push_back(record);
    }
    std::shuffle(w.to_push.begin(), w.to_push.end(), random_);
  }

  bool Finished(uint64_t goal) const {
    for (uint32_t r = 0; r < o_.workers; ++r) {
      if (!departed_.count(r) && workers_[r].step < goal) return false;
    }
    return true;
  }

  void Act() {
    const uint32_t what = Pick(40);
    const uint32_t r = Pick(o_.workers);
    if (what < 26) {
      if (!departed_.count(r)) Work(r);
    } else if (what < 29) {
      if (!departed_.count(r)) Resend(r);
    } else if (what < 34) {
      Lookup(r);
    } else if (what < 37) {
      Check();
    } else if (what == 37) {
      f_.allocator.limit = f_.allocator.limit == SIZE_MAX ? f_.allocator.used : SIZE_MAX;
      f_.allocator.scratch_limit = Pick(2) == 0 ? f_.allocator.used : SIZE_MAX;
    } else if (what == 38) {
      NewEpoch();
    } else if (departures_ && departed_.size() + 1 < o_.workers && !departed_.count(r) &&
               Pick(4) == 0) {
      departed_.insert(r);
      f_.Depart(r);
      for (auto it = deferred_.begin(); it != deferred_.end();) {
        it = it->second.first == r ? deferred_.erase(it) : std::next(it);
      }
      Commits();
    }
  }

  // The next thing rank r would do: push, end the step on a partition, or go to the next step.
  void Work(uint32_t r) {
    Worker& w = workers_[r];
    if (!w.to_push.empty()) {
      if (Push(r, &w.to_push.back())) {
        w.pushed.push_back(w.to_push.back());
        w.to_push.pop_back();
      }
      return;
    }
    for (uint32_t p = 0; p < o_.partitions; ++p) {
      if (!w.ended.insert(p).second) continue;
      End(r, p);
      return;
    }
    for (const Step& s : steps_) {
      if (s.version <= w.step) return;
    }
    ++w.step;
    StartStep(r);
  }

  // False: it is to be sent again, if it was refused perhaps without rows.
  bool Push(uint32_t r, Record* sent) {
    const Record& record = *sent;
    Step& step = steps_[record.partition];
    const Status status =
        f_.PushStatus(r, record.partition, workers_[r].step, record.rows, record.index);
    bool bad = false;
    bool known = true;
    for (const auto& [key, row] : record.rows) {
      bad |= std::any_of(row.begin(), row.end(), [](float x) { return x != x; });
      known &= model_.Has(key);
    }
    if (status == Status::kResourceExhausted) {
      CHECK(f_.allocator.scratch_limit != SIZE_MAX);
      return false;
    }
    if (bad) {
      CHECK(status == Status::kNonFinite);
    } else if (status == Status::kMemoryLimit) {
      CHECK_FALSE(known);
      // Rows are not made either where reading them would find no memory.
      CHECK(std::min(f_.allocator.limit, f_.allocator.scratch_limit) != SIZE_MAX);
    }
    if (bad || status == Status::kMemoryLimit) {
      if (Pick(2) == 0) sent->rows.clear();
      return false;
    }
    CHECK(status == Status::kOk);
    step.accepted[{r, record.index}] = record.rows;
    step.listed.insert(r);
    return true;
  }

  void Resend(uint32_t r) {
    const Worker& w = workers_[r];
    if (w.pushed.empty()) return;
    const Record& record = w.pushed[Pick(w.pushed.size())];
    CHECK(f_.PushStatus(r, record.partition, w.step, record.rows, record.index) ==
          Status::kDuplicate);
  }

  void End(uint32_t r, uint32_t p) {
    const Worker& w = workers_[r];
    const auto pushed = static_cast<uint32_t>(
        std::count_if(w.pushed.begin(), w.pushed.end(),
                      [&](const Record& record) { return record.partition == p; }));
    const GroupsOutcome early = f_.EndStep(r, p, w.step, pushed + 2);
    CHECK(early.group_status[0] == Status::kTooEarly);
    CHECK(early.answer.detail == 2);
    CHECK(f_.EndStatus(r, p, w.step, pushed) == Status::kOk);
    steps_[p].ended.insert(r);
    Commits();
    const Status again = f_.EndStatus(r, p, w.step, pushed);
    CHECK(again == (steps_[p].version > w.step ? Status::kDuplicate : Status::kOk));
    if (steps_[p].version > w.step) return;
    CHECK(f_.PushStatus(r, p, w.step, {}, 99) == Status::kWrongStep);
  }

  // Commits of the model, and the events that follow.
  void Commits() {
    for (uint32_t p = 0; p < o_.partitions; ++p) {
      while (TryCommit(p)) {
      }
    }
    CHECK(f_.commits.size() == committed_);
    for (const Event& e : f_.Events()) {
      const auto it = deferred_.find(e.token.operation);
      if (it == deferred_.end()) {
        // A lookup of a departed worker, which may have been answered before.
        const bool no_memory =
            f_.allocator.scratch_limit != SIZE_MAX && e.answer.status == Status::kResourceExhausted;
        CHECK((e.kind == Event::Kind::kPullReady || no_memory ||
               e.answer.status == Status::kExpired));
        f_.engine->Unpin(e.view.pin);
        continue;
      }
      const Deferred& lookup = it->second.second;
      if (e.kind == Event::Kind::kPullFailed) {
        CHECK(f_.allocator.scratch_limit != SIZE_MAX);
        CHECK(e.answer.status == Status::kResourceExhausted);
      } else {
        CHECK(e.answer.version >= lookup.min_version);
        CheckAnswer(lookup.keys, e.answer.version, e.view);
      }
      deferred_.erase(it);
    }
    for (const auto& [operation, lookup] : deferred_) CHECK_FALSE(Readable(lookup.second));
  }
  bool TryCommit(uint32_t p) {
    Step& s = steps_[p];
    std::set<uint32_t> listed = s.listed;
    for (uint32_t r = 0; r < o_.workers; ++r) {
      if (departed_.count(r) > 0) continue;
      if (s.ended.count(r) == 0) return false;
      listed.insert(r);
    }
    std::map<uint64_t, std::vector<Row>> contributions;
    std::vector<uint64_t> contributors;
    for (const auto& [from, rows] : s.accepted) {
      for (const auto& [key, row] : rows) contributions[key].push_back(row);
      const uint64_t worker = kFirstWorker + from.first;
      if (!rows.empty() && (contributors.empty() || contributors.back() != worker)) {
        contributors.push_back(worker);
      }
    }
    const auto divisor = static_cast<uint32_t>(listed.size());
    model_.Apply(p, contributions,
                 o_.reduction == v1::REDUCTION_MEAN ? static_cast<float>(divisor) : 1);
    const auto commit = std::find_if(f_.commits.begin(), f_.commits.end(), [&](const auto& c) {
      return c.chunk == p && c.step == s.version;
    });
    REQUIRE(commit != f_.commits.end());
    CHECK(commit->divisor == divisor);
    CHECK(commit->contributors == contributors);
    ++committed_;
    s = {s.version + 1, {}, {}, {}};
    return true;
  }

  bool Readable(const Deferred& lookup) const {
    return std::all_of(lookup.keys.begin(), lookup.keys.end(), [&](uint64_t key) {
      return steps_[f_.PartitionOf(key)].version >= lookup.min_version;
    });
  }
  void CheckAnswer(const std::vector<uint64_t>& keys, uint64_t version, const ChunkView& view) {
    uint64_t least = UINT64_MAX;
    for (const uint64_t key : keys) {
      least = std::min(least, steps_[f_.PartitionOf(key)].version);
    }
    CHECK(version == least);
    CHECK(SameRows(f_.RowsOf(keys, view), model_.Get(keys)));
    f_.engine->Unpin(view.pin);
  }
  void Lookup(uint32_t r) {
    if (departed_.count(r) > 0) return;
    std::vector<uint64_t> keys;
    for (uint32_t n = 1 + Pick(30); n > 0; --n) keys.push_back(Pick(universe_));
    keys = f_.Order(keys);
    const Deferred lookup = {workers_[r].step + Pick(2), keys};
    const uint32_t operation = next_operation_++;
    const PullOutcome out = f_.Lookup(kFirstWorker + r, keys, lookup.min_version, r, operation);
    if (out.kind == Kind::kAnswer) {
      CHECK(out.answer.status == Status::kResourceExhausted);
      CHECK(f_.allocator.scratch_limit != SIZE_MAX);
      return;
    }
    REQUIRE((out.kind == Kind::kReady) == Readable(lookup));
    if (out.kind == Kind::kDeferred) {
      deferred_[operation] = {r, lookup};
    } else {
      CheckAnswer(keys, out.answer.version, out.view);
    }
  }

  void NewEpoch() {
    const uint32_t p = Pick(o_.partitions);
    v1::Partition* partition = f_.view.mutable_partitions(static_cast<int>(p));
    partition->set_epoch(partition->epoch() + 1);
    REQUIRE(f_.Apply().ok());
    // Accepted pushes stay; lookups that name the partition are sent again elsewhere.
    for (const Event& e : f_.Events()) {
      CHECK(e.kind == Event::Kind::kPullFailed);
      CHECK(e.answer.status == Status::kWrongEpoch);
      CHECK(deferred_.erase(e.token.operation) == 1);
    }
  }

  // Committed rows, no others.
  void Check() {
    f_.allocator.scratch_limit = SIZE_MAX;
    for (uint32_t p = 0; p < o_.partitions; ++p) {
      CHECK(SameRows(f_.Scan(p, 7), model_.Partition(p)));
    }
  }

  const RowOptions o_;
  RowFixture f_;
  RowModel model_;
  std::mt19937 random_;
  uint32_t universe_ = 1;
  bool departures_ = false;
  std::vector<Worker> workers_;  // by rank
  std::vector<Step> steps_;      // by partition
  std::set<uint32_t> departed_;
  std::map<uint32_t, std::pair<uint32_t, Deferred>> deferred_;  // operation -> rank, lookup
  uint32_t next_operation_ = 1;
  size_t committed_ = 0;
};

TEST_CASE("sync embedding tables equal a std::map under random schedules") {
  for (uint32_t seed = 1; seed <= test::SeedCount(300); ++seed) {
    INFO("seed " << seed);
    SyncRowsRun(seed).Run();
  }
}

}  // namespace rows_sync_model_test
}  // namespace verbena::shard
