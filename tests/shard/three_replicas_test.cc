// A partition with two followers: what is acknowledged is on both, and when one of them becomes the
// primary, the other goes on with it if it has the same records.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "proto/protocol_version.h"
#include "shard/failpoints.h"
#include "shard/replica/copy_tails.h"
#include "tests/shard/engine_fixture.h"
#include "tests/shard/replica_pair.h"

namespace verbena::shard {
namespace {

constexpr uint64_t kFirst = kServer + 1, kSecond = kServer + 2, kThird = kServer + 3;

// A primary and two servers that may have replicas of its one partition.
class Trio {
 public:
  Trio() {
    for (const uint64_t server : {kServer, kFirst, kSecond, kThird}) {
      engines_[server] = std::make_unique<RowFixture>(OnePartition(v1::CONSISTENCY_ASYNC), server);
    }
    of(kServer).view.set_protocol(kProtocolVersion);
  }

  RowFixture& of(uint64_t server) { return *engines_.at(server); }
  v1::Partition* partition() { return of(kServer).view.mutable_partitions(0); }
  void Add(uint64_t server, bool learner) {
    partition()->set_configuration(partition()->configuration() + 1);
    v1::Replica* const r = learner ? partition()->add_learners() : partition()->add_followers();
    r->set_server(server);
    r->set_since(partition()->configuration() + 1);
  }
  void Apply() {
    for (auto& [server, fixture] : engines_) {
      fixture->view = of(kServer).view;
      if (server != kServer) REQUIRE(fixture->Apply().ok());
    }
    REQUIRE(of(kServer).Apply().ok());
  }
  // The first follower is the primary; the second stays.
  void Promote() {
    v1::Partition* const p = partition();
    const v1::Replica first = p->followers(0);
    p->mutable_followers()->DeleteSubrange(0, 1);
    p->set_primary(first.server());
    p->set_epoch(p->epoch() + 1);
    p->set_configuration(p->configuration() + 1);
    Apply();
  }
  // Sends what `from` has for its replicas; those in `cut` receive nothing. Returns the last answer
  // of each.
  std::map<uint64_t, ReplyStatus> Ship(uint64_t from, const std::set<uint64_t>& cut = {}) {
    std::map<uint64_t, ReplyStatus> last;
    for (int i = 0; i < 100; ++i) {
      std::vector<ReplicaRecord> records;
      of(from).engine->replicas().Take(&records, 1000);
      for (const ReplicaRecord& r : records) {
        kinds[r.to.server].push_back(r.header.kind);
        const bool refused = last.contains(r.to.server) && last[r.to.server] != ReplyStatus::kOk;
        if (cut.contains(r.to.server) || refused) continue;
        last[r.to.server] = Deliver(from, r);
      }
    }
    for (const Event& event : of(from).Events()) {
      acknowledged += event.kind == Event::Kind::kReplicated ? 1 : 0;
    }
    return last;
  }
  ReplyStatus Deliver(uint64_t from, const ReplicaRecord& record) {
    const ReplicaBytes bytes(record);
    const ReplyStatus status = of(record.to.server)
                                   .engine->copies()
                                   .Replicate({from, 0}, bytes.record(), bytes.payload())
                                   .status;
    of(from).engine->replicas().Answered(record.to, 0, record.group.sequence, status);
    return status;
  }
  // A push of ones.
  ReplyStatus Push(uint64_t to, const std::vector<uint64_t>& keys) {
    const ReplyStatus status = of(to).PushValue(0, 0, pushes_ + 1, keys, 1);
    if (status != ReplyStatus::kResourceExhausted) ++pushes_;
    return status;
  }

  ReplyStatus Lookup(uint64_t at, const std::vector<uint64_t>& keys) {
    const PullOutcome out = of(at).Lookup(of(at).job()->members(0).incarnation(), keys, 0);
    if (out.kind != PullOutcome::Kind::kReady) return out.group_status[0];
    of(at).engine->Unpin(out.view.pin);
    return ReplyStatus::kOk;
  }

  int acknowledged = 0;
  std::map<uint64_t, std::vector<ReplicaKind>> kinds;  // by receiver

 private:
  std::map<uint64_t, std::unique_ptr<RowFixture>> engines_;
  uint64_t pushes_ = 0;
};

TEST_CASE("three replicas: a push is acknowledged when both followers have it") {
  Trio trio;
  trio.Add(kFirst, false);
  trio.Add(kSecond, false);
  trio.Apply();
  const std::vector<uint64_t> keys = trio.of(kServer).KeysIn(0, 3);
  trio.Ship(kServer);
  trio.Push(kServer, keys);
  const uint64_t slow = GENERATE(kFirst, kSecond);
  trio.Ship(kServer, {slow});
  CHECK(trio.acknowledged == 0);
  SECTION("it answers") {
    trio.of(kServer).engine->replicas().Resend({slow, 0}, 0);
    trio.Ship(kServer);
  }
  SECTION("it is a follower no more") {
    auto* followers = trio.partition()->mutable_followers();
    followers->DeleteSubrange(followers->Get(0).server() == slow ? 0 : 1, 1);
    trio.partition()->set_configuration(trio.partition()->configuration() + 1);
    trio.Apply();
    trio.Ship(kServer);
  }
  CHECK(trio.acknowledged == 1);
}

TEST_CASE("three replicas: a learner gets contents beside a follower, which gets none of them") {
  Trio trio;
  trio.Add(kFirst, false);
  trio.Apply();
  const std::vector<uint64_t> keys = trio.of(kServer).KeysIn(0, 8);
  trio.Push(kServer, keys);
  trio.Ship(kServer);
  trio.Add(kSecond, true);
  trio.Apply();
  for (int i = 0; i < 20; ++i) {
    trio.Push(kServer, {keys[static_cast<size_t>(i) % 8]});
    trio.Ship(kServer);
  }
  CHECK(trio.acknowledged == 21);
  CHECK(trio.of(kServer).engine->replicas().CaughtUp(0));
  const auto count = [&](uint64_t server, ReplicaKind kind) {
    return std::count(trio.kinds[server].begin(), trio.kinds[server].end(), kind);
  };
  CHECK(count(kSecond, ReplicaKind::kRowStates) > 0);
  CHECK(count(kFirst, ReplicaKind::kRowStates) == 0);
  CHECK(count(kFirst, ReplicaKind::kBegin) == 1);
  CHECK(count(kFirst, ReplicaKind::kNothing) > 0);
  CHECK(count(kFirst, ReplicaKind::kRows) == 21);
}

TEST_CASE("three replicas: the other follower goes on under the next primary") {
  Trio trio;
  trio.Add(kFirst, false);
  trio.Add(kSecond, false);
  trio.Apply();
  const std::vector<uint64_t> keys = trio.of(kServer).KeysIn(0, 3);
  trio.Push(kServer, keys);
  trio.Ship(kServer);
  REQUIRE(trio.acknowledged == 1);
  SECTION("at the same record") {
    trio.Promote();
    trio.Push(kFirst, keys);
    CHECK(trio.Ship(kFirst).at(kSecond) == ReplyStatus::kOk);
    CHECK(trio.acknowledged == 2);
    CHECK(trio.kinds[kSecond].back() == ReplicaKind::kRows);
    // It has both pushes: 3 less 2.
    trio.Promote();
    CHECK(trio.of(kSecond).ReadRow(keys[0])[0] == 1);
  }
  SECTION("with a record that the primary lacks it is no replica of it") {
    trio.Push(kServer, keys);
    trio.Ship(kServer, {kFirst});
    CHECK(trio.acknowledged == 1);
    trio.Promote();
    CHECK(trio.Ship(kFirst).at(kSecond) == ReplyStatus::kOutOfRange);
  }
  SECTION("records that it lacks come with the first one of the primary") {
    for (int i = 0; i < 3; ++i) trio.Push(kServer, keys);
    trio.Ship(kServer, {kSecond});
    CHECK(trio.acknowledged == 1);
    trio.Promote();
    CHECK(trio.Lookup(kFirst, keys) == ReplyStatus::kNotReady);
    CHECK(trio.Ship(kFirst).at(kSecond) == ReplyStatus::kOk);
    CHECK(trio.Lookup(kFirst, keys) == ReplyStatus::kOk);
    // The next primary is lost before there is another copy: 3 less 5.
    trio.Push(kFirst, keys);
    trio.Ship(kFirst);
    CHECK(trio.acknowledged == 2);
    trio.Promote();
    CHECK(trio.of(kSecond).ReadRow(keys[0])[0] == -2);
  }
  SECTION("a server of an earlier protocol gets no such records") {
    trio.of(kServer).view.set_protocol(10);
    trio.Push(kServer, keys);
    trio.Ship(kServer, {kSecond});
    trio.Promote();
    CHECK(trio.Ship(kFirst).at(kSecond) == ReplyStatus::kOutOfRange);
  }
  SECTION("nothing is read of the primary before the other one is known to have it") {
    trio.Push(kServer, keys);
    trio.Ship(kServer, {kFirst});
    trio.Promote();
    CHECK(trio.Lookup(kFirst, keys) == ReplyStatus::kNotReady);
    CHECK(trio.Ship(kFirst).at(kSecond) == ReplyStatus::kOutOfRange);
    CHECK(trio.Lookup(kFirst, keys) == ReplyStatus::kNotReady);
    // It is a follower no more.
    trio.partition()->clear_followers();
    trio.partition()->set_configuration(trio.partition()->configuration() + 1);
    trio.Apply();
    CHECK(trio.Lookup(kFirst, keys) == ReplyStatus::kOk);
    CHECK(trio.of(kFirst).ReadRow(keys[0])[0] == 2);
  }
  SECTION("and if it takes over itself, with that record, it loses nothing") {
    trio.Push(kServer, keys);
    trio.Ship(kServer, {kFirst});
    trio.Promote();
    trio.Promote();
    CHECK(trio.of(kSecond).ReadRow(keys[0])[0] == 1);
  }
}

TEST_CASE("a follower with as many records of another primary is no replica of the next one") {
  Trio trio;
  for (const uint64_t server : {kFirst, kSecond, kThird}) trio.Add(server, false);
  trio.Apply();
  const std::vector<uint64_t> keys = trio.of(kServer).KeysIn(0, 3);
  trio.Push(kServer, keys);
  trio.Ship(kServer);
  // Two records reach the second one alone; the next primary begins the third one with two.
  trio.Push(kServer, keys);
  trio.Push(kServer, keys);
  trio.Ship(kServer, {kFirst, kThird});
  trio.Promote();
  trio.Ship(kFirst, {kSecond});
  REQUIRE(trio.of(kSecond).engine->replicas().Status()[0].sequence ==
          trio.of(kThird).engine->replicas().Status()[0].sequence);
  trio.Promote();
  CHECK(trio.Ship(kSecond).at(kThird) == ReplyStatus::kOutOfRange);
}

// The coordinator places partitions anew when the first table is created, without data to keep.
TEST_CASE("three replicas: new followers of a partition that is placed anew are accepted") {
  Trio trio;
  trio.Add(kFirst, false);
  trio.Add(kSecond, false);
  trio.Apply();
  trio.Push(kServer, trio.of(kServer).KeysIn(0, 3));
  trio.Ship(kServer);
  // All tables are dropped, servers join, and a table is created (Become() in configurations.cc).
  v1::ClusterView& view = trio.of(kServer).view;
  v1::Table table = view.tables(0);
  view.clear_tables();
  trio.Apply();
  table.set_id(table.id() + 1);
  *view.add_tables() = table;
  v1::Partition* const p = trio.partition();
  p->set_primary(kFirst);
  p->set_epoch(p->epoch() + 1);
  p->set_renewed_epoch(p->epoch());
  p->set_configuration(p->configuration() + 10);
  p->clear_followers();
  for (const uint64_t server : {kServer, kSecond}) {
    v1::Replica* const r = p->add_followers();
    r->set_server(server);
    r->set_since(p->configuration());
  }
  trio.Apply();
  const std::map<uint64_t, ReplyStatus> answers = trio.Ship(kFirst);
  CHECK(answers.at(kServer) == ReplyStatus::kOk);
  CHECK(answers.at(kSecond) == ReplyStatus::kOk);
}

// Whether a learner becomes a follower while there is a push in flight to the other one at each
// look.
bool CatchesUpUnderLoad() {
  Trio trio;
  trio.Add(kFirst, false);
  trio.Apply();
  const std::vector<uint64_t> keys = trio.of(kServer).KeysIn(0, 8);
  trio.Push(kServer, keys);
  trio.Ship(kServer);
  trio.Add(kSecond, true);
  trio.Apply();
  std::vector<ReplicaRecord> sent;
  for (size_t i = 0; i < 3000 && !trio.of(kServer).engine->replicas().CaughtUp(0); ++i) {
    trio.Push(kServer, {keys[i % 8]});
    std::vector<ReplicaRecord> records;
    trio.of(kServer).engine->replicas().Take(&records, 1000);
    for (const ReplicaRecord& r : sent) trio.Deliver(kServer, r);
    sent = std::move(records);
  }
  return trio.of(kServer).engine->replicas().CaughtUp(0);
}

TEST_CASE("three replicas: a learner catches up though there is always a push in flight") {
  CHECK(CatchesUpUnderLoad());
}

TEST_CASE("failpoint: three replicas: catch-up never makes applies wait") {
  const Planted failpoint(&Failpoints::never_quiet);
  CHECK_FALSE(CatchesUpUnderLoad());
}

// A learner is copied one record at a time, while a follower has what is pushed to the chunks.
void LearnUnderPushes(uint32_t chunks) {
  FixtureOptions o;
  o.workers = o.partitions = 1;
  o.chunks = chunks;
  o.consistency = v1::CONSISTENCY_ASYNC;
  std::map<uint64_t, std::unique_ptr<Fixture>> all;
  for (const uint64_t server : {kServer, kFirst, kSecond}) {
    all[server] = std::make_unique<Fixture>(o);
    EngineOptions options;
    options.server = server;
    options.replica_log.catch_up_bytes = 1;  // one record at a time
    all[server]->engine = std::make_unique<Engine>(options);
  }
  Fixture& primary = *all[kServer];
  v1::Partition* const p = primary.view.mutable_partitions(0);
  const auto apply = [&] {
    for (auto& [server, fixture] : all) {
      fixture->view = primary.view;
      if (server != kServer) REQUIRE(fixture->Apply().ok());
    }
    REQUIRE(primary.Apply().ok());
  };
  bool begun = false;  // the learner has the table
  const auto turn = [&] {
    std::vector<ReplicaRecord> records;
    primary.engine->replicas().Take(&records, 1000);
    for (const ReplicaRecord& r : records) {
      const ReplicaBytes bytes(r);
      const ReplyStatus status = all[r.to.server]
                                     ->engine->copies()
                                     .Replicate({kServer, 0}, bytes.record(), bytes.payload())
                                     .status;
      CAPTURE(r.to.server, r.group.sequence, static_cast<int>(r.header.kind));
      REQUIRE(status == ReplyStatus::kOk);
      begun |= r.header.kind == ReplicaKind::kBeginPartition;
      primary.engine->replicas().Answered(r.to, 0, r.group.sequence, status);
    }
    primary.Events();
  };
  p->add_followers()->set_server(kFirst);
  p->mutable_followers(0)->set_since(2);
  apply();
  turn();
  uint64_t pushes = 0;
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    primary.Push(0, chunk, ++pushes, 1);
    turn();
  }
  p->add_learners()->set_server(kSecond);
  p->mutable_learners(0)->set_since(3);
  apply();
  while (!begun) turn();
  for (uint32_t i = 0; i < 3 * chunks; ++i) {
    primary.Push(0, i % chunks, ++pushes, 1);
    turn();
  }
  for (int i = 0; i < 100 && !primary.engine->replicas().CaughtUp(0); ++i) turn();
  CHECK(primary.engine->replicas().CaughtUp(0));
}

// The learner had the progress of workers by then, with the table.
TEST_CASE("regression: a push between a table and its chunks reaches a learner as progress") {
  LearnUnderPushes(1);
}

TEST_CASE(
    "regression: async dense pushes reach a learner for the chunks that it has, and no others") {
  LearnUnderPushes(6);
}

// A follower that lacks three records of the next primary, and its kBegin.
class Behind {
 public:
  Behind() {
    trio.Add(kFirst, false);
    trio.Add(kSecond, false);
    trio.Apply();
    keys = trio.of(kServer).KeysIn(0, 3);
    trio.Push(kServer, keys);
    trio.Ship(kServer);
    for (int i = 0; i < 3; ++i) trio.Push(kServer, keys);
    trio.Ship(kServer, {kSecond});
    trio.Promote();
    std::vector<ReplicaRecord> records;
    trio.of(kFirst).engine->replicas().Take(&records, 1000);
    for (const ReplicaRecord& r : records) {
      if (r.header.kind == ReplicaKind::kBegin) begin = r;
    }
    REQUIRE(begin.to.server == kSecond);
    REQUIRE(begin.header.total_bytes > 3 * sizeof(TailRecord));
  }
  ReplyStatus Deliver(const ReplicaRecord& record) {
    const ReplicaBytes bytes(record);
    return trio.of(kSecond)
        .engine->copies()
        .Replicate({kFirst, 0}, bytes.record(), bytes.payload())
        .status;
  }
  // When it is the primary itself.
  float value() {
    trio.Promote();
    return trio.of(kSecond).ReadRow(keys[0])[0];
  }

  Trio trio;
  std::vector<uint64_t> keys;
  ReplicaRecord begin = {};
};

TEST_CASE("three replicas: of a tail that is none, nothing is applied") {
  Behind behind;
  const bool resent = GENERATE(false, true);
  ReplicaRecord wrong = behind.begin;
  std::vector<std::byte> bytes(wrong.data.data, wrong.data.data + wrong.header.total_bytes);
  wrong.data.data = bytes.data();
  const auto field = [&](size_t record, size_t offset) {
    size_t at = sizeof(TailBase);
    for (size_t r = 0; r < record; ++r) {
      TailRecord skipped;
      std::memcpy(&skipped, bytes.data() + at, sizeof(skipped));
      at += sizeof(skipped) +
            (skipped.header.total_bytes + kTailAlignment - 1) / kTailAlignment * kTailAlignment;
    }
    return bytes.data() + at + offset;
  };
  ReplyStatus expected = ReplyStatus::kMalformed;
  SECTION("cut") { wrong.header.total_bytes -= 1; }
  SECTION("the last record's kind") { *field(2, offsetof(TailRecord, header)) = std::byte(0xff); }
  SECTION("the last record's partition") { *field(2, offsetof(TailRecord, group)) = std::byte(1); }
  SECTION("the last record's sequence") {
    *field(2, offsetof(TailRecord, group) + offsetof(Group, sequence)) ^= std::byte(0x40);
  }
  SECTION("the last record's epoch") {
    *field(2, offsetof(TailRecord, group) + offsetof(Group, epoch)) ^= std::byte(0x40);
    expected = ReplyStatus::kOutOfRange;
  }
  SECTION("it ends before the primary's last record") {
    wrong.header.total_bytes = static_cast<uint32_t>(field(2, 0) - bytes.data());
    expected = ReplyStatus::kOutOfRange;
  }
  CHECK(behind.Deliver(wrong) == expected);
  if (resent) {
    CHECK(behind.Deliver(behind.begin) == ReplyStatus::kOk);
    CHECK(behind.Deliver(behind.begin) == ReplyStatus::kDuplicate);
  }
  // 3 less 4, or less 1.
  CHECK(behind.value() == (resent ? -1 : 2));
}

TEST_CASE("failpoint: three replicas: a primary's tail is not applied") {
  const Planted failpoint(&Failpoints::skip_tail);
  Trio trio;
  trio.Add(kFirst, false);
  trio.Add(kSecond, false);
  trio.Apply();
  const std::vector<uint64_t> keys = trio.of(kServer).KeysIn(0, 3);
  trio.Push(kServer, keys);
  trio.Ship(kServer);
  trio.Push(kServer, keys);
  trio.Ship(kServer, {kSecond});
  trio.Promote();
  CHECK(trio.Ship(kFirst).at(kSecond) == ReplyStatus::kOk);
  trio.Promote();
  CHECK(trio.of(kSecond).ReadRow(keys[0])[0] == 2);  // of two pushes one
}

TEST_CASE("failpoint: three replicas: a replica goes on from another record") {
  const Planted failpoint(&Failpoints::resume_unequal);
  Trio trio;
  trio.Add(kFirst, false);
  trio.Add(kSecond, false);
  trio.Apply();
  const std::vector<uint64_t> keys = trio.of(kServer).KeysIn(0, 3);
  trio.Ship(kServer);
  trio.Push(kServer, keys);
  trio.Ship(kServer, {kFirst});
  trio.Promote();
  CHECK(trio.Ship(kFirst).at(kSecond) == ReplyStatus::kOk);
}

}  // namespace
}  // namespace verbena::shard
