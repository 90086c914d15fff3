// An engine most of whose rows are not in memory, beside one that has all: the same requests, in
// the same order, have the same answers, bit for bit, whatever the cold store does when.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "shard/cold_events.h"
#include "shard/failpoints.h"
#include "tests/shard/checkpoint_rig.h"
#include "tests/shard/fake_cold_store.h"
#include "tests/shard/replica_cluster.h"
#include "tests/shard/row_model.h"
#include "tests/support/seed_count.h"

namespace verbena::shard {
namespace cold_tier_model_test {

using Status = ReplyStatus;
using Kind = PullOutcome::Kind;

constexpr uint32_t kRecordRows = 24;

// VERBENA_COLD_SEEDS=5000 of the program itself: more.
uint32_t Seeds(uint32_t usual) {
  const char* wanted = std::getenv("VERBENA_COLD_SEEDS");
  return wanted == nullptr ? test::SeedCount(usual)
                           : static_cast<uint32_t>(std::strtoul(wanted, nullptr, 10));
}

class TwinRun {
 public:
  TwinRun(uint32_t seed, v1::Consistency consistency)
      : random_(seed), store_(seed), o_(OptionsOf(seed, consistency)), plain_(o_) {
    RowOptions tiered = o_;
    tiered.cold = &store_;
    tiered.hot_bytes = 1;  // as little as may be
    tiered.record_rows = kRecordRows;
    tiered_ = std::make_unique<RowFixture>(tiered);
    REQUIRE(tiered_->applied == absl::OkStatus());
    sequences_.resize(o_.workers, std::vector<uint64_t>(o_.partitions));
    clocks_.resize(o_.workers);
  }

  void Run() {
    for (int i = 0; i < 250; ++i) {
      store_.slow = Pick(4) != 0;
      if (Pick(3) == 0) tiered_->Prefetch(kFirstWorker + Pick(o_.workers), SomeKeys(60));
      const uint32_t what = Pick(20);
      if (what < 10) {
        sync() ? Step() : Push();
      } else if (what < 14) {
        Lookup();
      } else if (what < 16) {
        CheckPartition(Pick(o_.partitions));
      } else if (what < 18) {
        if (!sync()) EndStep();
      } else if (what < 19) {
        NewEpoch();
      } else {
        Settle();
      }
    }
    Settle();
    for (uint32_t p = 0; p < o_.partitions; ++p) CheckPartition(p);
    CHECK(tiered_->engine->tables()[0].rows == plain_.engine->tables()[0].rows);
    const TableCounters a = plain_.engine->tables()[0].counters;
    const TableCounters b = tiered_->engine->tables()[0].counters;
    CHECK(a.evicted_rows == b.evicted_rows);
    CHECK(a.refused_keys == b.refused_keys);
    CHECK(store_.misses == 0);
    CHECK(tiered_->engine->counters().deferred == 0);
    const ColdCounters cold = tiered_->engine->cold().counters();
    CHECK(cold.waiting == 0);
    CHECK(cold.failures == 0);
    reads += cold.reads;
    waits += cold.waits;
    intended += cold.intended;
  }
  static uint64_t reads, waits, intended;

 private:
  static RowOptions OptionsOf(uint32_t seed, v1::Consistency consistency) {
    RowOptions o = RandomRowOptions(seed, consistency);
    o.dim = 1 + seed % 9;
    o.workers = 1 + seed % 3;
    std::mt19937 random(seed * 7);
    if (random() % 3 == 0) {
      o.admission.set_kind(v1::Admission::MIN_COUNT);
      o.admission.set_min_count(2);
      o.admission.set_sketch_bytes(1 << 16);
    }
    switch (random() % 4) {
      case 0:
        o.eviction.set_kind(v1::Eviction::LRU);
        o.eviction.set_max_rows(60 * o.partitions);
        break;
      case 1:
        o.eviction.set_kind(v1::Eviction::TTL_STEPS);
        o.eviction.set_ttl(9);
        break;
      default:
        break;
    }
    if (o.row_dtype != v1::DTYPE_F32) o.stochastic = random() % 2 == 0;
    return o;
  }

  bool sync() const { return o_.consistency == v1::CONSISTENCY_SYNC; }
  uint32_t Pick(size_t n) { return static_cast<uint32_t>(random_() % n); }
  std::vector<uint64_t> SomeKeys(size_t most) {
    std::vector<uint64_t> keys;
    for (size_t n = 1 + Pick(most); keys.size() < n;) keys.push_back(Pick(400) * 0x10001);
    return plain_.Order(keys);
  }
  // Both get the same push; false: the tiered one has refused a group, which is pushed again later.
  void PushBoth(uint32_t rank, const std::vector<uint64_t>& keys) {
    for (RowFixture* f : {&plain_, tiered_.get()}) {
      f->keys = keys;
      f->values = values_;
      f->groups.clear();
      for (const uint64_t key : keys) {
        const uint32_t p = f->PartitionOf(key);
        if (f->groups.empty() || f->groups.back().partition != p) {
          f->groups.push_back(
              f->GroupOf(p, sync() ? sequences_[0][p] : sequences_[rank][p] + 1, 0, index_[p]));
        }
        ++f->groups.back().count;
      }
    }
    const GroupsOutcome a = plain_.engine->PushRows(plain_.PushOf(rank));
    const GroupsOutcome b = tiered_->engine->PushRows(tiered_->PushOf(rank));
    REQUIRE(std::equal(a.group_status.begin(), a.group_status.end(), b.group_status.begin(),
                       b.group_status.end()));
    if (b.replicating) ++deferred_;
    for (size_t i = 0; i < plain_.groups.size(); ++i) {
      const uint32_t partition = plain_.groups[i].partition;
      ++index_[partition];
      if (!sync()) ++sequences_[rank][partition];
      if (a.group_status[i] == Status::kNonFinite) SettleRefused(rank, partition);
    }
  }
  // Settles them with an empty push to both. The contents of the push are kept.
  void SettleRefused(uint32_t rank, uint32_t partition) {
    for (RowFixture* f : {&plain_, tiered_.get()}) {
      const auto groups = f->groups;
      const auto keys = f->keys;
      const auto values = f->values;
      const GroupsOutcome out = f->Push(rank, partition, sequences_[sync() ? 0 : rank][partition],
                                        {}, sync() ? index_[partition] - 1 : 0);
      CHECK(out.group_status[0] == Status::kOk);
      if (out.replicating) ++deferred_;
      f->groups = groups;
      f->keys = keys;
      f->values = values;
    }
  }
  void MakeValues(size_t keys) {
    values_.clear();
    for (size_t i = 0; i < keys; ++i) {
      Row row = RandomRow(&random_, o_.dim);
      if (Pick(300) == 0) row[Pick(o_.dim)] = kNan;
      values_.insert(values_.end(), row.begin(), row.end());
    }
  }
  void Push() {
    const uint32_t rank = Pick(o_.workers);
    const std::vector<uint64_t> keys = SomeKeys(kRecordRows);
    MakeValues(keys.size());
    PushBoth(rank, keys);
    // The dropped rows depend on the pushes that are applied by then.
    if (o_.eviction.kind() != v1::Eviction::KIND_UNSPECIFIED) Settle();
    if (Pick(4) > 0) return;
    // The reply was lost: it waits for the same, or is a duplicate at once.
    const GroupsOutcome again = tiered_->engine->PushRows(tiered_->PushOf(rank));
    for (const Status s : again.group_status) CHECK(s == Status::kDuplicate);
    if (again.replicating) ++deferred_;
  }
  // All workers push to all partitions and end the step.
  void Step() {
    std::map<uint32_t, std::map<uint32_t, uint32_t>> pushed;  // by rank, by partition
    const std::vector<uint64_t> universe = SomeKeys(kRecordRows);
    index_.clear();
    for (uint32_t rank = 0; rank < o_.workers; ++rank) {
      index_.clear();
      for (uint32_t n = Pick(3); n > 0; --n) {
        std::vector<uint64_t> keys;
        for (const uint64_t key : universe) {
          if (Pick(2) == 0) keys.push_back(key);
        }
        if (keys.empty()) continue;
        MakeValues(keys.size());
        PushBoth(rank, keys);
      }
      pushed[rank] = index_;
    }
    for (uint32_t p = 0; p < o_.partitions; ++p) {
      for (uint32_t rank = 0; rank < o_.workers; ++rank) {
        const uint32_t count = pushed[rank][p];
        REQUIRE(plain_.EndStatus(rank, p, sequences_[0][p], count) == Status::kOk);
        REQUIRE(tiered_->EndStatus(rank, p, sequences_[0][p], count) == Status::kOk);
      }
      ++sequences_[0][p];
    }
    index_.clear();
    if (Pick(2) == 0) Lookup();  // some of it may not be committed yet
    // Workers wait for the commit.
    for (uint32_t p = 0; p < o_.partitions; ++p) Reach(p);
  }
  void Reach(uint32_t p) {
    for (int i = 0; i < 100000; ++i) {
      const GroupsOutcome out = tiered_->Await(kFirstWorker, {p}, sequences_[0][p], 77);
      if (!out.deferred) return;
      Pump();
      tiered_->engine->ForgetLane(77);
    }
    FAIL("a step does not commit");
  }
  void EndStep() {
    const uint32_t rank = Pick(o_.workers);
    ++clocks_[rank];
    for (uint32_t p = 0; p < o_.partitions; ++p) {
      const uint64_t sequence = ++sequences_[rank][p];
      CHECK(plain_.EndStatus(rank, p, sequence, 0, clocks_[rank]) == Status::kOk);
      const GroupsOutcome out = tiered_->EndStep(rank, p, sequence, 0, clocks_[rank]);
      CHECK(out.group_status[0] == Status::kOk);
      if (out.replicating) ++deferred_;
    }
  }

  // Compares a lookup by `rank` of both; sometimes of bags.
  void Lookup() {
    const uint32_t rank = Pick(o_.workers);
    const std::vector<uint64_t> keys = SomeKeys(Pick(6) == 0 ? 200 : 20);
    const bool ssp = o_.consistency == v1::CONSISTENCY_SSP;
    const uint64_t version = ssp ? clocks_[rank] : 0;
    // Async reads the applied pushes: both are the same only with nothing in progress.
    if (!sync()) Settle();
    if (sync()) {
      for (const uint64_t key : keys) Reach(plain_.PartitionOf(key));
    }
    const uint32_t operation = next_operation_++;
    const PullOutcome a = Ask(&plain_, rank, keys, version, operation);
    const PullOutcome b = Ask(tiered_.get(), rank, keys, version, operation);
    if (a.kind == Kind::kDeferred) {  // by its clock
      REQUIRE(b.kind == Kind::kDeferred);
      plain_.engine->ForgetLane(rank);
      tiered_->engine->ForgetLane(rank);
      return;
    }
    REQUIRE(a.kind == Kind::kReady);
    ChunkView view = b.view;
    if (b.kind == Kind::kDeferred) {
      if (Pick(8) == 0) {
        tiered_->engine->ForgetLane(rank);
        plain_.engine->Unpin(a.view.pin);
        return Settle();
      }
      expected_ = operation;
      for (int i = 0; i < 100000 && expected_ != 0; ++i) Pump();
      REQUIRE(expected_ == 0);
      view = answered_;
    } else {
      REQUIRE(b.kind == Kind::kReady);
    }
    REQUIRE(view.bytes == a.view.bytes);
    CHECK(std::memcmp(view.buffer.data, a.view.buffer.data, view.bytes) == 0);
    plain_.engine->Unpin(a.view.pin);
    tiered_->engine->Unpin(view.pin);
  }
  PullOutcome Ask(RowFixture* f, uint32_t rank, const std::vector<uint64_t>& keys, uint64_t version,
                  uint32_t operation) {
    const uint64_t worker = kFirstWorker + rank;
    if (operation % 3 != 0) return f->Lookup(worker, keys, version, rank, operation);
    f->keys = keys;
    f->groups.clear();
    std::vector<BagUse> uses;
    for (const uint64_t key : keys) {
      const uint32_t p = f->PartitionOf(key);
      if (f->groups.empty() || f->groups.back().partition != p) {
        f->groups.push_back(f->GroupOf(p, 0, 0));
      }
      ++f->groups.back().count;
      uses.push_back({static_cast<uint32_t>(key % 5), 0.5f + static_cast<float>(key % 3)});
    }
    LookupRequest r;
    r.token = {rank, operation, 0};
    r.worker = worker;
    r.table = kTable;
    r.groups = f->groups;
    r.keys = f->keys;
    r.min_version = version;
    r.bags = {5, uses};
    return f->engine->Lookup(r);
  }

  void CheckPartition(uint32_t p) {
    if (!sync()) Settle();
    std::vector<uint64_t> a, b;
    const uint32_t count = 1 + Pick(60);
    CHECK(SameRows(plain_.Scan(p, count, &a), tiered_->Scan(p, count, &b)));
    CHECK(a == b);
  }
  void NewEpoch() {
    Settle();
    const uint32_t p = Pick(o_.partitions);
    for (RowFixture* f : {&plain_, tiered_.get()}) {
      v1::Partition* partition = f->view.mutable_partitions(static_cast<int>(p));
      partition->set_epoch(partition->epoch() + 1);
      REQUIRE(f->Apply().ok());
    }
  }

  void Pump() {
    for (const Event& e : tiered_->Events()) {
      if (e.kind == Event::Kind::kReplicated) {
        --deferred_;
        for (const Status s : *e.group_status) {
          CHECK((s == Status::kOk || s == Status::kNonFinite || s == Status::kDuplicate));
        }
      } else if (e.kind == Event::Kind::kPullReady && e.token.operation == expected_) {
        expected_ = 0;
        answered_ = e.view;
      } else if (e.kind != Event::Kind::kAwaitDone) {
        FAIL("an event that nobody waits for");
      }
    }
    plain_.Events();
  }
  // Until nothing is in progress.
  void Settle() {
    for (int i = 0; i < 100000; ++i) {
      Pump();
      if (deferred_ == 0 && store_.idle() && tiered_->engine->cold().counters().waiting == 0)
        return;
    }
    FAIL("something is never done");
  }

  std::mt19937 random_;
  FakeColdStore store_;
  const RowOptions o_;
  RowFixture plain_;
  std::unique_ptr<RowFixture> tiered_;
  std::vector<float> values_;
  std::vector<std::vector<uint64_t>> sequences_;  // by rank, by partition; sync: steps, of rank 0
  std::map<uint32_t, uint32_t> index_;            // of a step's next push, by partition
  std::vector<uint64_t> clocks_;
  int deferred_ = 0;
  uint32_t next_operation_ = 1;
  uint32_t expected_ = 0;
  ChunkView answered_;
};
uint64_t TwinRun::reads = 0;
uint64_t TwinRun::waits = 0;
uint64_t TwinRun::intended = 0;

TEST_CASE("a tiered table has the bits of a table in memory, under random operations") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  TwinRun::reads = TwinRun::waits = TwinRun::intended = 0;
  for (uint32_t seed = 1; seed <= Seeds(80); ++seed) {
    INFO("seed " << seed << " consistency " << static_cast<int>(consistency));
    TwinRun(seed, consistency).Run();
  }
  CHECK(TwinRun::reads > test::SeedCount(10'000));
  CHECK(TwinRun::waits > test::SeedCount(1000));
  CHECK(TwinRun::intended > test::SeedCount(1000));
}

// The difference between a tiered table under faults and one in memory without them; or an empty
// string.
std::string FindingWithCopies(ReplicaPlan plan, Failpoint* planted, uint64_t* reads) {
  ReplicaPlan alone = plan;
  alone.replicas = 1;
  alone.faults = false;
  ReplicaCluster memory(alone);
  REQUIRE(memory.Run());
  const auto expected = memory.Contents();
  plan.cold = true;
  if (planted != nullptr) *planted = true;
  ReplicaCluster cluster(plan);
  const bool ended = cluster.Run();
  if (planted != nullptr) *planted = false;
  *reads += cluster.cold_reads();
  if (!cluster.error.empty()) return cluster.error;
  if (!ended) return "workers did not go on";
  if (cluster.Contents() != expected) return "primaries have something else";
  cluster.PromoteAll();
  return cluster.Contents() == expected ? cluster.error : "copies have something else";
}

TEST_CASE("replicas of tiered tables equal those of tables in memory, under failures") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  uint64_t reads = 0;
  for (uint32_t seed = 1; seed <= Seeds(60); ++seed) {
    CAPTURE(seed, static_cast<int>(consistency));
    REQUIRE(FindingWithCopies(MakeReplicaPlan(seed, /*rows=*/true, consistency), nullptr, &reads) ==
            "");
  }
  CHECK(reads > test::SeedCount(1000));
}

TEST_CASE("failpoint: a row that changes while it is written counts as written") {
  uint64_t reads = 0;
  std::string finding;
  for (uint32_t seed = 1; seed <= 20 && finding.empty(); ++seed) {
    finding = FindingWithCopies(MakeReplicaPlan(seed, /*rows=*/true, v1::CONSISTENCY_ASYNC),
                                &failpoints().forget_cold_changes, &reads);
  }
  // The contents at the end, or the comparison of a replica before.
  CHECK_THAT(finding, Catch::Contains("something else") || Catch::Contains("data loss"));
}

CheckpointPlan ColdPlan(uint32_t seed, v1::Consistency consistency) {
  CheckpointPlan plan = MakeCheckpointPlan(seed, /*rows=*/true, consistency);
  plan.partitions = std::max(plan.partitions, 5u);
  plan.keys = 200;
  // Rows that are dropped before the checkpoint has taken them.
  if (consistency == v1::CONSISTENCY_SYNC && seed % 2 == 0) {
    plan.eviction.set_kind(seed % 4 == 0 ? v1::Eviction::LRU : v1::Eviction::TTL_STEPS);
    plan.servers = 1;  // there are more rows than frames still
    if (seed % 4 == 0) plan.eviction.set_max_rows(uint64_t{plan.partitions} * 32);
    if (seed % 4 == 2) plan.eviction.set_ttl(6);
  }
  return plan;
}

TEST_CASE("a tiered table is saved exactly at its step, and restored, as a table in memory") {
  uint64_t reads = 0;
  for (uint32_t seed = 1; seed <= Seeds(60); ++seed) {
    CheckpointPlan plan = ColdPlan(seed, v1::CONSISTENCY_SYNC);
    CAPTURE(seed);
    const auto at = [&](uint64_t step) {
      CheckpointRig rig(plan);
      rig.SetGoal(step);
      REQUIRE(rig.Finish());
      return rig.CheckpointIdle();
    };
    CheckpointPlan cold = plan;
    cold.cold = true;
    CheckpointRig rig(cold);
    rig.SetGoal(10);
    for (uint32_t i = 0; i < seed * 7 % 200; ++i) rig.Act();
    REQUIRE(rig.Begin(rig.Newest() + seed % 3, seed % 2 == 0 ? 1000 : 1 << 20) == absl::OkStatus());
    const uint64_t step = rig.step();
    rig.SetGoal(std::max<uint64_t>(10, step));
    REQUIRE(rig.FinishCheckpoint());
    REQUIRE(rig.error == "");
    REQUIRE(rig.saved() == at(step));
    const Saved whole = at(std::max<uint64_t>(10, step));
    REQUIRE(rig.CheckpointIdle() == whole);

    CheckpointPlan elsewhere = cold;
    elsewhere.servers = 1 + seed % 2;
    elsewhere.copies = elsewhere.servers > 1;
    elsewhere.first_step = step;
    elsewhere.restoring = true;
    CheckpointRig other(elsewhere);
    other.SetGoal(std::max<uint64_t>(10, step));
    other.Load(rig.saved(), ElementType::kF32, step);
    REQUIRE(other.error == "");
    REQUIRE(other.FinishRestore() == absl::OkStatus());
    other.DeliverAll();
    other.Serve();
    REQUIRE(other.CheckpointIdle().rows == rig.saved().rows);
    REQUIRE(other.Finish());
    // When rows were pushed is not saved: others may be dropped.
    if (plan.eviction.kind() == v1::Eviction::KIND_UNSPECIFIED)
      REQUIRE(other.CheckpointIdle().rows == whole.rows);
    for (size_t e = 0; e < rig.engines(); ++e) reads += rig.engine(e).cold().counters().reads;
  }
  CHECK(reads > test::SeedCount(1000));
}

TEST_CASE("an async tiered table is saved as it is when the checkpoint begins") {
  const bool copies = GENERATE(false, true);
  for (uint32_t seed = 1; seed <= Seeds(40); ++seed) {
    CheckpointPlan plan = ColdPlan(seed, v1::CONSISTENCY_ASYNC);
    plan.cold = true;
    plan.copies = copies;
    if (copies) plan.servers = std::max(plan.servers, 2u);
    CAPTURE(seed, copies);
    CheckpointRig rig(plan);
    rig.SetGoal(20);
    for (uint32_t i = 0; i < seed * 11 % 300; ++i) rig.Act();
    const Saved now = rig.CheckpointIdle();
    const auto acknowledged = rig.acknowledged();
    REQUIRE(rig.Begin(0, seed % 2 == 0 ? 1000 : 1 << 20) == absl::OkStatus());
    REQUIRE(rig.FinishCheckpoint());
    REQUIRE(rig.error == "");
    if (!copies) REQUIRE(rig.saved() == now);
    for (const auto& [of, sequence] : acknowledged) {
      const auto slice = rig.saved().slices.find(of.second);
      if (slice != rig.saved().slices.end()) REQUIRE(slice->second.prefix.at(of.first) >= sequence);
    }
  }
}

}  // namespace cold_tier_model_test
}  // namespace verbena::shard
