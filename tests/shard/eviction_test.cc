// Eviction: the rows of an embedding table that are dropped, the times of drops, and later pushes
// to their keys.
#include "shard/table/eviction.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shard/checkpoint/checkpoints.h"
#include "shard/failpoints.h"
#include "shard/replica/copies.h"
#include "shard/replica/replicas.h"
#include "tests/shard/replica_bytes.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace {

RowOptions Evicting(v1::Eviction::Kind kind, v1::Consistency consistency = v1::CONSISTENCY_ASYNC) {
  RowOptions o;
  o.consistency = consistency;
  o.partitions = 1;
  o.initializer.set_kind(v1::Initializer::CONSTANT);
  o.initializer.set_a(100);
  o.eviction.set_kind(kind);
  return o;
}

std::vector<uint64_t> KeysThere(RowFixture* f, uint32_t partition = 0) {
  std::vector<uint64_t> keys;
  f->Scan(partition, 100, &keys);
  std::sort(keys.begin(), keys.end());
  return keys;
}

TEST_CASE("TTL in steps: rows without a push for that many applies are dropped, and start anew") {
  RowOptions o = Evicting(v1::Eviction::TTL_STEPS);
  o.eviction.set_ttl(3);
  RowFixture f(o);
  REQUIRE(f.PushValue(0, 0, 1, {7, 8}, 1) == ReplyStatus::kOk);
  for (uint64_t sequence = 2; sequence <= 4; ++sequence) {
    REQUIRE(f.PushValue(0, 0, sequence, {8}, 1) == ReplyStatus::kOk);
    CHECK(f.ReadRow(7) == f.Filled(99));
  }
  REQUIRE(f.PushValue(0, 0, 5, {8}, 1) == ReplyStatus::kOk);
  CHECK(KeysThere(&f) == std::vector<uint64_t>{8});
  CHECK(f.ReadRow(7) == f.Filled(100));
  CHECK(f.engine->tables()[0].rows == 1);
  CHECK(f.engine->tables()[0].counters.evicted_rows == 1);
  REQUIRE(f.PushValue(0, 0, 6, {7}, 5) == ReplyStatus::kOk);
  CHECK(f.ReadRow(7) == f.Filled(95));
  CHECK(f.ReadRow(8) == f.Filled(95));
}

TEST_CASE("TTL in seconds: rows without a push for that long are dropped by the next push") {
  RowOptions o = Evicting(v1::Eviction::TTL_SECONDS);
  o.eviction.set_ttl(60);
  RowFixture f(o);
  f.engine->SetSeconds(1000);
  REQUIRE(f.PushValue(0, 0, 1, {7, 8}, 1) == ReplyStatus::kOk);
  f.engine->SetSeconds(1060);
  REQUIRE(f.PushValue(0, 0, 2, {8}, 1) == ReplyStatus::kOk);
  CHECK(KeysThere(&f) == std::vector<uint64_t>{7, 8});
  f.engine->SetSeconds(1070);
  CHECK(KeysThere(&f) == std::vector<uint64_t>{7, 8});
  REQUIRE(f.PushValue(0, 0, 3, {9}, 1) == ReplyStatus::kOk);
  CHECK(KeysThere(&f) == std::vector<uint64_t>{8, 9});
  // A table created after SetSeconds() knows the clock, too; a clock that is set back by some
  // seconds, as that of another server, drops nothing.
  f.engine->SetSeconds(1065);
  REQUIRE(f.PushValue(0, 0, 4, {10}, 1) == ReplyStatus::kOk);
  CHECK(KeysThere(&f) == std::vector<uint64_t>{8, 9, 10});
}

TEST_CASE("LRU: over the limit the rows pushed longest ago are dropped, with sync too") {
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC);
  const bool sync = consistency == v1::CONSISTENCY_SYNC;
  RowOptions o = Evicting(v1::Eviction::LRU, consistency);
  o.workers = 1;
  o.eviction.set_max_rows(32);
  RowFixture f(o);
  const auto push = [&](uint64_t step, const std::vector<uint64_t>& keys) {
    REQUIRE(f.PushValue(0, 0, sync ? step : step + 1, keys, 1) == ReplyStatus::kOk);
    if (sync) REQUIRE(f.EndStatus(0, 0, step, 1) == ReplyStatus::kOk);
  };
  uint64_t step = 0;
  for (; step < 32; ++step) push(step, {step});
  CHECK(KeysThere(&f).size() == 32);
  push(step++, {0});
  push(step++, {100});
  // To a sixteenth below the limit.
  const std::vector<uint64_t> keys = KeysThere(&f);
  REQUIRE(keys.size() == 30);
  CHECK(keys[0] == 0);
  CHECK(keys[1] == 4);
  CHECK(keys.back() == 100);
  CHECK(f.ReadRow(0) == f.Filled(98));
  // All rows of a push stay, however many they are.
  std::vector<uint64_t> many;
  for (uint64_t key = 1000; key < 1100; ++key) many.push_back(key);
  push(step++, many);
  CHECK(KeysThere(&f) == many);
  // And of these only so many go with the next that the limit is met again.
  push(step++, {5});
  const std::vector<uint64_t> left = KeysThere(&f);
  REQUIRE(left.size() == 30);
  CHECK(left.front() == 5);
  CHECK(std::includes(many.begin(), many.end(), left.begin() + 1, left.end()));
}

// How many rows are left when another push comes in place of one that was refused after its sweep
// was decided.
size_t RowsAfterRefusedSweep(v1::Eviction::Kind kind) {
  RowOptions o = Evicting(kind);
  o.eviction.set_max_rows(16);
  RowFixture f(o);
  uint64_t sequence = 0;
  for (uint64_t key = 0; key < 16; ++key) {
    REQUIRE(f.PushValue(0, 0, ++sequence, {key}, 1) == ReplyStatus::kOk);
  }
  PartitionCheckpointRequest save;
  save.id = 1;
  save.memory_bytes = 0;
  save.tables.push_back({kTable, 0, 0, false});
  std::vector<uint64_t> newest;
  REQUIRE(f.engine->checkpoints().Begin(save, &newest).ok());
  // It names most of the rows that a sweep takes first.
  REQUIRE(f.PushValue(0, 0, sequence + 1, {0, 1, 2, 3, 4, 5, 100}, 1) ==
          ReplyStatus::kResourceExhausted);
  f.engine->checkpoints().Abort(1);
  REQUIRE(f.PushValue(1, 0, 1, {200}, 1) == ReplyStatus::kOk);
  return KeysThere(&f).size();
}

TEST_CASE("regression: a refused push does not affect the rows that the next one drops") {
  const v1::Eviction::Kind kind = GENERATE(v1::Eviction::LRU, v1::Eviction::LFU);
  CHECK(RowsAfterRefusedSweep(kind) == 15);
  failpoints().keep_refused_sweep = true;
  const size_t left = RowsAfterRefusedSweep(kind);
  failpoints().keep_refused_sweep = false;
  CHECK(left < 15);
}

TEST_CASE("rows of an abandoned step are dropped first, and no others in their place") {
  const v1::Eviction::Kind kind = GENERATE(v1::Eviction::LRU, v1::Eviction::LFU);
  const bool planted = GENERATE(false, true);
  failpoints().count_unnamed = planted;
  RowOptions o = Evicting(kind, v1::CONSISTENCY_SYNC);
  o.workers = 1;
  o.eviction.set_max_rows(32);
  RowFixture f(o);
  const auto push = [&](uint64_t step, const std::vector<uint64_t>& keys) {
    REQUIRE(f.PushValue(0, 0, step, keys, 1) == ReplyStatus::kOk);
  };
  for (uint64_t step = 0; step < 28; ++step) {
    push(step, {step});
    REQUIRE(f.EndStatus(0, 0, step, 1) == ReplyStatus::kOk);
  }
  push(28, {200, 201, 202, 203, 204, 205, 206, 207});
  f.job()->set_generation(2);
  REQUIRE(f.Apply().ok());
  push(0, {28});
  REQUIRE(f.EndStatus(0, 0, 0, 1) == ReplyStatus::kOk);
  std::vector<uint64_t> expected;
  for (uint64_t key = 0; key <= 28; ++key) expected.push_back(key);
  CHECK((KeysThere(&f) == expected) == !planted);
  CHECK((f.engine->tables()[0].rows == 29) == !planted);
  failpoints().count_unnamed = false;
}

// A sweep is decided while applies wait that name some rows, and is made after them. Empty: it
// drops as many rows as there are over the limit, those that are first by stamp and hash then.
std::string SweepAfterWaitingApplies(uint32_t seed, v1::Eviction::Kind kind) {
  std::mt19937 random(seed);
  const auto below = [&random](uint32_t most) { return static_cast<uint32_t>(random() % most); };
  RowAllocator allocator;
  uint64_t resident = 0;
  BufferPool pool(&allocator, 0, &resident);
  const RowShape shape(1, 0, /*counts_applies=*/true, /*has_stamps=*/true);
  RowArena arena(shape.few_bytes(), shape.many_bytes(), &pool, nullptr);
  v1::Initializer zero;
  RowStore rows(shape, &zero, &arena);
  v1::Eviction spec;
  spec.set_kind(kind);
  const uint64_t limit = 2 + below(30);
  spec.set_max_rows(limit);
  Eviction eviction(spec, 1, sizeof(float));
  // Restored rows may have the stamp of the next apply.
  const uint64_t applies = below(5);
  std::vector<uint64_t> keys(limit + 1 + below(20));
  for (uint64_t& key : keys) key = random();
  std::vector<uint32_t> numbers(keys.size());
  if (!rows.FindOrCreate(keys, numbers.data())) return "no memory";
  std::vector<Eviction::WaitingRow> waiting;
  uint64_t next = applies;
  for (uint32_t i = below(4); i > 0; --i) {
    ++next;
    for (uint32_t k = 1 + below(4); k > 0; --k) {
      waiting.push_back({numbers[below(static_cast<uint32_t>(numbers.size()))], next});
    }
  }
  const auto waits = [&](uint32_t row) {
    return std::any_of(waiting.begin(), waiting.end(), [&](const auto& w) { return w.row == row; });
  };
  for (const uint32_t row : numbers) {
    if (waits(row) && below(2) == 0) continue;  // it was made for the apply that waits
    rows.SetStamp(row, eviction.Stamp(0, rows.key(row), 1 + below(applies + 1), 0));
  }
  const std::set<uint32_t> named = {numbers[below(static_cast<uint32_t>(numbers.size()))]};
  uint32_t last_sweep = 0;
  const std::vector<uint32_t> list(named.begin(), named.end());
  const ApplyStamp keep = eviction.Decide(
      rows, list, [&](std::vector<Eviction::WaitingRow>* to) { *to = waiting; }, next + 1, 0,
      &last_sweep);
  for (const auto& [row, apply] : waiting) {
    rows.SetStamp(row, eviction.Stamp(rows.stamp(row), rows.key(row), apply, 0));
  }
  size_t gone = 0, earlier = 0;
  for (const uint32_t row : numbers) {
    gone += !named.contains(row) && Eviction::Goes(keep, rows.stamp(row), rows.key(row)) ? 1 : 0;
    // Made for the apply that is to drop rows, or it has a stamp.
    if (!named.contains(row) && rows.stamp(row) == 0) return "a row has no stamp";
    earlier += rows.stamp(row) < keep.keep_from && !named.contains(row) ? 1 : 0;
  }
  const size_t over = keys.size() - (limit - limit / 16);
  if (gone != over) return absl::StrCat(gone, " rows go, and not ", over);
  return earlier > over ? "rows with greater stamps go" : "";
}

TEST_CASE("regression: a sweep includes the stamps of applies that come before it") {
  const v1::Eviction::Kind kind = GENERATE(v1::Eviction::LRU, v1::Eviction::LFU);
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed, static_cast<int>(kind));
    REQUIRE(SweepAfterWaitingApplies(seed, kind) == "");
  }
  failpoints().waiting_rows_are_latest = true;
  uint32_t found = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    found += SweepAfterWaitingApplies(seed, kind).empty() ? 0 : 1;
  }
  failpoints().waiting_rows_are_latest = false;
  CHECK((found > 0) == (kind == v1::Eviction::LRU));
}

TEST_CASE("LFU: frequently pushed rows stay, though most keys come once and later") {
  RowOptions o = Evicting(v1::Eviction::LFU);
  o.eviction.set_max_rows(64);
  RowFixture f(o);
  uint64_t sequence = 0;
  std::set<uint64_t> often;
  for (uint64_t key = 0; key < 16; ++key) often.insert(key);
  for (uint64_t i = 0; i < 4000; ++i) {
    REQUIRE(f.PushValue(0, 0, ++sequence, {1000 + i}, 1) == ReplyStatus::kOk);
    if (i % 2 == 0) {
      REQUIRE(f.PushValue(0, 0, ++sequence, {i / 2 % 16}, 1) == ReplyStatus::kOk);
    }
    CHECK(f.engine->tables()[0].rows <= 65);
  }
  std::vector<uint64_t> keys = KeysThere(&f);
  CHECK(std::includes(keys.begin(), keys.end(), often.begin(), often.end()));
  // 125 pushes each, none of them lost.
  CHECK(f.ReadRow(3) == f.Filled(100 - 125));
  // Rows that were frequent long ago are dropped when others are frequent.
  for (uint64_t i = 0; i < 20000; ++i) {
    REQUIRE(f.PushValue(0, 0, ++sequence, {100'000 + i % 80}, 1) == ReplyStatus::kOk);
  }
  keys = KeysThere(&f);
  CHECK_FALSE(std::any_of(often.begin(), often.end(), [&](uint64_t key) {
    return std::binary_search(keys.begin(), keys.end(), key);
  }));
}

TEST_CASE("a limit in bytes counts rows with their state") {
  RowOptions o = Evicting(v1::Eviction::LRU);
  o.optimizer.set_name("adagrad");
  o.eviction.set_max_bytes(20 * 2 * o.dim * sizeof(float));
  RowFixture f(o);
  for (uint64_t sequence = 1; sequence <= 100; ++sequence) {
    REQUIRE(f.PushValue(0, 0, sequence, {sequence}, 1) == ReplyStatus::kOk);
    CHECK(f.engine->tables()[0].rows <= 20);
  }
  CHECK(f.engine->tables()[0].counters.evicted_rows >= 80);
}

// Compared with a map, under random pushes of groups of several partitions: rows that are there
// have the right bits, and dropped rows were pushed before all that stayed.
void RunAgainstMap(uint32_t seed, v1::Eviction::Kind kind) {
  RowOptions o = Evicting(kind);
  o.partitions = 1 + seed % 3;
  const uint64_t limit = 20;
  if (kind == v1::Eviction::TTL_STEPS) {
    o.eviction.set_ttl(limit);
  } else {
    o.eviction.set_max_rows(limit * o.partitions);
  }
  RowFixture f(o);
  std::mt19937 random(seed);
  struct Known {
    Row row;
    uint64_t apply = 0;
  };
  std::vector<std::map<uint64_t, Known>> known(o.partitions);
  std::vector<uint64_t> sequence(o.partitions);
  uint64_t gone = 0;
  for (int i = 0; i < 600; ++i) {
    const uint32_t p = random() % o.partitions;
    Rows rows;
    const std::vector<uint64_t> some = f.KeysIn(p, 12, random() % 300);
    for (const uint64_t key : some) {
      if (random() % 3 == 0) rows[key] = f.Filled(static_cast<float>(random() % 100));
    }
    if (rows.empty()) continue;
    const uint64_t apply = ++sequence[p];
    REQUIRE(f.PushStatus(0, p, apply, rows) == ReplyStatus::kOk);
    for (const auto& [key, gradient] : rows) {
      Known& k = known[p].try_emplace(key, Known{f.Filled(100), 0}).first->second;
      for (size_t d = 0; d < k.row.size(); ++d) k.row[d] -= gradient[d];
      k.apply = apply;
    }
    const Rows there = f.Scan(p, 1 + random() % 40);
    uint64_t newest_gone = 0, oldest_there = UINT64_MAX;
    for (auto it = known[p].begin(); it != known[p].end();) {
      const auto found = there.find(it->first);
      if (found != there.end()) {
        REQUIRE(found->second == it->second.row);
        oldest_there = std::min(oldest_there, it->second.apply);
        ++it;
      } else {
        newest_gone = std::max(newest_gone, it->second.apply);
        ++gone;
        it = known[p].erase(it);
      }
    }
    CHECK(there.size() == known[p].size());
    // Rows of one push may go in part.
    CHECK(newest_gone <= oldest_there);
    if (kind == v1::Eviction::TTL_STEPS) {
      CHECK((newest_gone == 0 || newest_gone + limit < apply));
      CHECK(oldest_there + limit + limit / 8 >= apply);
    } else {
      CHECK(there.size() <= limit + rows.size());
    }
  }
  CHECK(gone > 100);
  CHECK(f.engine->tables()[0].counters.evicted_rows == gone);
}

TEST_CASE("rows that are dropped and pushed again equal those of a map") {
  const v1::Eviction::Kind kind = GENERATE(v1::Eviction::TTL_STEPS, v1::Eviction::LRU);
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed, static_cast<int>(kind));
    RunAgainstMap(seed, kind);
  }
}

TEST_CASE("memory of dropped rows is used again") {
  RowOptions o = Evicting(v1::Eviction::LRU);
  o.dim = 64;
  o.eviction.set_max_rows(500);
  RowFixture f(o);
  uint64_t sequence = 0;
  std::vector<uint64_t> keys(50);
  size_t used = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    for (uint64_t& key : keys) key = i * 50 + static_cast<uint64_t>(&key - keys.data());
    REQUIRE(f.PushValue(0, 0, ++sequence, keys, 1) == ReplyStatus::kOk);
    if (i == 30) used = f.allocator.used;
  }
  CHECK(f.allocator.used <= used + used / 8);
  // Without memory for more, rows that went make room for others: none is left behind half made.
  f.allocator.limit = f.allocator.used;
  f.allocator.scratch_limit = SIZE_MAX;
  for (uint64_t i = 400; i < 450; ++i) {
    for (uint64_t& key : keys) key = i * 50 + static_cast<uint64_t>(&key - keys.data());
    const ReplyStatus status = f.PushValue(0, 0, ++sequence, keys, 1);
    CHECK((status == ReplyStatus::kOk || status == ReplyStatus::kMemoryLimit));
    if (status != ReplyStatus::kOk) --sequence;  // which a refused push does not take
    const Rows there = f.Read(keys);
    for (const auto& [key, row] : there) {
      CHECK(row == f.Filled(status == ReplyStatus::kOk ? 99 : 100));
    }
  }
}

// Records of `from` for its copy, as far as there are some now.
void Deliver(RowFixture* from, RowFixture* to) {
  std::vector<ReplicaRecord> records;
  from->engine->replicas().Take(&records, 8);
  for (const ReplicaRecord& r : records) {
    const ReplicaBytes bytes(r);
    const Answer answer =
        to->engine->copies().Replicate({kServer, 0}, bytes.record(), bytes.payload());
    REQUIRE(answer.status == ReplyStatus::kOk);
    from->engine->replicas().Answered(r.to, 0, r.group.sequence, answer.status);
  }
}

TEST_CASE("a learner has the row that reused the number of a dropped one") {
  RowOptions o = Evicting(v1::Eviction::LRU);
  o.dim = 1024;  // so that it takes several records, and more than may be unanswered
  o.eviction.set_max_rows(3000);
  RowFixture primary(o);
  uint64_t sequence = 0;
  const auto push = [&](uint64_t first) {
    std::vector<uint64_t> keys(50);
    for (uint64_t& key : keys) key = first + static_cast<uint64_t>(&key - keys.data());
    REQUIRE(primary.PushValue(0, 0, ++sequence, keys, 1) == ReplyStatus::kOk);
  };
  for (uint64_t first = 0; first < 3000; first += 50) push(first);
  v1::Replica* learner = primary.view.mutable_partitions(0)->add_learners();
  learner->set_server(kServer + 1);
  learner->set_since(2);
  REQUIRE(primary.Apply().ok());
  RowFixture copy(o, kServer + 1);
  copy.view = primary.view;
  REQUIRE(copy.Apply().ok());
  for (int i = 0; i < 4; ++i) Deliver(&primary, &copy);  // some of them
  for (uint64_t first = 10'000; first < 11'000; first += 50) {
    push(first);
    Deliver(&primary, &copy);
  }
  for (int i = 0; i < 1000 && !primary.engine->replicas().CaughtUp(0); ++i)
    Deliver(&primary, &copy);
  REQUIRE(primary.engine->replicas().CaughtUp(0));
  REQUIRE(primary.engine->tables()[0].counters.evicted_rows > 500);
  const Rows there = primary.Scan(0, 1000);
  v1::Partition* partition = copy.view.mutable_partitions(0);
  partition->clear_learners();
  partition->set_primary(kServer + 1);
  partition->set_epoch(2);
  REQUIRE(copy.Apply().ok());
  CHECK(copy.Scan(0, 1000) == there);
}

TEST_CASE("stamps of applies start again before 32 bits are full, and keep their order") {
  v1::Eviction spec;
  spec.set_kind(v1::Eviction::LRU);
  spec.set_max_rows(10);
  const Eviction eviction(spec, 1, 4);
  const uint64_t half = uint64_t{1} << 31;
  const std::vector<uint64_t> applies = {
      1, 2, half - 1, half, half + 1, 2 * half - 1, 2 * half, 3 * half, 9 * half, 9 * half + 5};
  uint32_t before = 0;
  uint64_t last = 0;
  for (const uint64_t apply : applies) {
    CAPTURE(apply);
    // The stamp of the row that was stamped last, after all applies in between that rebase stamps.
    for (uint64_t a = (last / half + 1) * half; a <= apply; a += half) {
      const uint32_t by = eviction.Rebase(a);
      before = before > by ? before - by : 1;
    }
    const uint32_t stamp = eviction.Stamp(0, 7, apply, 0);
    CHECK(stamp > before);
    CHECK(stamp < RowStore::kFreeStamp);
    before = stamp;
    last = apply;
  }
}

}  // namespace
}  // namespace verbena::shard
