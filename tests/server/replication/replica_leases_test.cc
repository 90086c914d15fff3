// Leases between a primary and its copies, with the time given by hand.
#include "server/replication/replica_leases.h"

#include <catch2/catch.hpp>
#include <initializer_list>
#include <vector>

namespace verbena::server {
namespace {

constexpr PeerId kA{10, 0}, kB{11, 0}, kC{12, 1}, kNobody{};
constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kLease = 1000 * kMilli;
constexpr int64_t kStart = 5000 * kMilli;
constexpr int64_t kReads = 800 * kMilli;  // 0.8 of the lease

enum class As { kFollower, kLearner };

struct Partition {
  PeerId primary;
  PeerId copy = kNobody;
  As as = As::kFollower;
  uint64_t since = 3;
  uint64_t epoch = 1;
  uint64_t configuration = 7;
};

v1::ClusterView View(const std::vector<Partition>& partitions) {
  v1::ClusterView view;
  view.set_lease_ms(1000);
  for (const Partition& p : partitions) {
    v1::Partition* out = view.add_partitions();
    out->set_id(static_cast<uint32_t>(view.partitions_size() - 1));
    out->set_epoch(p.epoch);
    out->set_configuration(p.configuration);
    out->set_primary(p.primary.server);
    out->set_shard(p.primary.shard);
    if (p.copy == kNobody) continue;
    v1::Replica* copy = p.as == As::kFollower ? out->add_followers() : out->add_learners();
    copy->set_server(p.copy.server);
    copy->set_shard(p.copy.shard);
    copy->set_since(p.since);
  }
  return view;
}

Group Of(uint32_t partition, uint64_t epoch = 1, uint64_t since = 3) {
  Group group = {};
  group.partition = partition;
  group.epoch = epoch;
  group.sequence = since;
  return group;
}

std::vector<v1::ConfigurationChange> Judged(ReplicaLeases* leases, int64_t now) {
  std::vector<v1::ConfigurationChange> changes;
  leases->Judge(now, &changes);
  return changes;
}

// Judges often enough for a side that runs; what the last look says.
std::vector<v1::ConfigurationChange> JudgedUntil(ReplicaLeases* leases, int64_t from, int64_t to) {
  for (int64_t now = from; now < to; now += kLease / 16) {
    if (!Judged(leases, now).empty()) FAIL("judged " << (to - now) / kMilli << " ms early");
  }
  return Judged(leases, to);
}

TEST_CASE("leases: a shard without copies has nothing to do") {
  ReplicaLeases leases;
  CHECK_FALSE(leases.active());
  leases.Follow(View({{kA}, {kB, kC}}), kA, kStart);
  CHECK_FALSE(leases.active());
  CHECK(leases.NextTimerNanos() == INT64_MAX);
  CHECK(leases.MayRead(0, kStart));
  CHECK(leases.MayServe(0, kStart));
  CHECK(leases.MayReadAll(kStart));
  CHECK(leases.TakeBeacons(kStart).empty());
  CHECK(Judged(&leases, kStart + 10 * kLease).empty());
}

TEST_CASE("leases: a primary reads under what its follower acknowledged") {
  ReplicaLeases leases;
  leases.Follow(View({{kA, kB}, {kA}}), kA, kStart);
  CHECK(leases.active());
  CHECK(leases.MayServe(0, kStart));
  CHECK_FALSE(leases.MayRead(0, kStart));
  CHECK_FALSE(leases.MayReadAll(kStart));
  CHECK(leases.MayRead(1, kStart));

  const int64_t sent = kStart + 20 * kMilli;
  leases.Acknowledged(kB, Of(0), sent);
  // As long after it was sent, however long its answer was under way.
  CHECK(leases.MayRead(0, sent + kReads - 1));
  CHECK(leases.MayReadAll(sent + kReads - 1));
  CHECK_FALSE(leases.MayRead(0, sent + kReads));
  CHECK_FALSE(leases.MayReadAll(sent + kReads));
  CHECK(leases.MayServe(0, sent + kReads));

  leases.Acknowledged(kB, Of(0), sent + kReads);
  CHECK(leases.MayReadAll(sent + 2 * kReads - 1));
  // An older answer that comes later takes nothing away.
  leases.Acknowledged(kB, Of(0), sent);
  CHECK(leases.MayRead(0, sent + 2 * kReads - 1));
  CHECK_FALSE(leases.MayRead(0, sent + 2 * kReads));
}

TEST_CASE("leases: what another beacon's answer says does not count") {
  ReplicaLeases leases;
  leases.Follow(View({{kA, kB, As::kFollower, 3, 2}}), kA, kStart);
  leases.Acknowledged(kC, Of(0, 2), kStart);
  leases.Acknowledged({kB.server, kB.shard + 1}, Of(0, 2), kStart);
  leases.Acknowledged(kB, Of(0, 1), kStart);
  leases.Acknowledged(kB, Of(0, 3), kStart);
  leases.Acknowledged(kB, Of(0, 2, 2), kStart);
  leases.Acknowledged(kB, Of(0, 2, 4), kStart);
  leases.Acknowledged(kB, Of(1, 2), kStart);
  CHECK_FALSE(leases.MayRead(0, kStart));
  leases.Acknowledged(kB, Of(0, 2), kStart);
  CHECK(leases.MayRead(0, kStart));
}

TEST_CASE("leases: a learner is no reason to wait until it may be a follower") {
  ReplicaLeases leases;
  const v1::ClusterView view = View({{kA, kB, As::kLearner}});
  leases.Follow(view, kA, kStart);
  CHECK(leases.active());
  CHECK(leases.MayRead(0, kStart + 10 * kLease));
  CHECK(leases.MayReadAll(kStart));
  leases.Admitting(0);
  CHECK_FALSE(leases.MayRead(0, kStart));
  CHECK_FALSE(leases.MayReadAll(kStart));
  // Whether the coordinator has made it one is not known.
  leases.Follow(view, kA, kStart + kMilli);
  CHECK_FALSE(leases.MayRead(0, kStart + kMilli));
  leases.Acknowledged(kB, Of(0), kStart);
  CHECK(leases.MayRead(0, kStart + kReads - 1));
  CHECK_FALSE(leases.MayRead(0, kStart + kReads));
  SECTION("it is one") {
    leases.Follow(View({{kA, kB, As::kFollower}}), kA, kStart + kMilli);
    CHECK(leases.MayRead(0, kStart + kReads - 1));
    CHECK_FALSE(leases.MayRead(0, kStart + kReads));
  }
  SECTION("it is gone") {
    leases.Follow(View({{kA}}), kA, kStart + kMilli);
    CHECK(leases.MayRead(0, kStart + kLease));
  }
  SECTION("it begins once more") {
    leases.Follow(View({{kA, kB, As::kLearner, 4}}), kA, kStart + kMilli);
    CHECK(leases.MayRead(0, kStart + kLease));
  }
}

TEST_CASE("leases: what a learner acknowledged before it was to be admitted counts") {
  ReplicaLeases leases;
  leases.Follow(View({{kA, kB, As::kLearner}}), kA, kStart);
  leases.Acknowledged(kB, Of(0), kStart);
  leases.Admitting(0);
  CHECK(leases.MayReadAll(kStart + kReads - 1));
  CHECK_FALSE(leases.MayReadAll(kStart + kReads));
}

TEST_CASE("regression: leases: a view whose lease is zero makes nobody send beacons for ever") {
  v1::ClusterView view = View({{kA, kB}});
  view.set_lease_ms(0);
  ReplicaLeases leases;
  leases.Follow(view, kA, kStart);
  CHECK(leases.TakeBeacons(kStart).size() == 1);
  CHECK(leases.TakeBeacons(kStart).empty());
  CHECK(leases.NextTimerNanos() > kStart);
}

TEST_CASE("leases: beacons are due every eighth of a lease") {
  ReplicaLeases leases;
  leases.Follow(View({{kA, kB}, {kA, kC, As::kLearner, 5, 2}, {kB, kA}, {kA}, {kA, kB}}), kA,
                kStart);
  CHECK(leases.NextTimerNanos() == kStart);
  const std::vector<ReplicaLeases::Beacon> beacons = leases.TakeBeacons(kStart);
  REQUIRE(beacons.size() == 2);
  CHECK(beacons[0].to == kB);
  REQUIRE(beacons[0].groups.size() == 2);
  CHECK(beacons[0].groups[0].partition == 0);
  CHECK(beacons[0].groups[1].partition == 4);
  CHECK(beacons[1].to == kC);
  REQUIRE(beacons[1].groups.size() == 1);
  CHECK(beacons[1].groups[0].partition == 1);
  CHECK(beacons[1].groups[0].epoch == 2);
  CHECK(beacons[1].groups[0].sequence == 5);
  CHECK(leases.NextTimerNanos() == kStart + kLease / 8);
  CHECK(leases.TakeBeacons(kStart + kLease / 8 - 1).empty());
  CHECK(leases.TakeBeacons(kStart + kLease / 8).size() == 2);
  // At once to who is new.
  const int64_t now = kStart + kLease / 8 + kMilli;
  leases.Follow(View({{kA, kC}}), kA, now);
  CHECK(leases.NextTimerNanos() == now);
  REQUIRE(leases.TakeBeacons(now).size() == 1);
  // Nobody is left.
  leases.Follow(View({{kA}}), kA, now);
  CHECK(leases.NextTimerNanos() == INT64_MAX);
  CHECK(leases.TakeBeacons(now + kLease).empty());
}

TEST_CASE("leases: a beacon has no more groups than a record can have") {
  ReplicaLeases leases;
  leases.Follow(View(std::vector<Partition>(2 * kMaxGroups + 1, {kA, kB})), kA, kStart);
  std::vector<bool> seen(2 * kMaxGroups + 1);
  const std::vector<ReplicaLeases::Beacon> beacons = leases.TakeBeacons(kStart);
  REQUIRE(beacons.size() == 3);
  for (const ReplicaLeases::Beacon& beacon : beacons) {
    CHECK(beacon.to == kB);
    CHECK(beacon.groups.size() <= kMaxGroups);
    for (const Group& group : beacon.groups) {
      CHECK_FALSE(seen[group.partition]);
      seen[group.partition] = true;
    }
  }
  CHECK(std::vector<bool>(seen.size(), true) == seen);
}

TEST_CASE("leases: what a copy answers to a beacon") {
  ReplicaLeases leases;
  CHECK(leases.OnBeacon(kB, Of(0), kStart) == ReplyStatus::kNotReady);
  leases.Follow(View({{kB, kA, As::kFollower, 3, 2}, {kB, kA, As::kLearner}, {kB, kC}, {kA, kB}}),
                kA, kStart);
  CHECK(leases.OnBeacon(kB, Of(0, 2), kStart) == ReplyStatus::kOk);
  CHECK(leases.OnBeacon(kB, Of(1), kStart) == ReplyStatus::kOk);
  // The view here is older than the sender's, or newer.
  CHECK(leases.OnBeacon(kB, Of(0, 3), kStart) == ReplyStatus::kNotReady);
  CHECK(leases.OnBeacon(kC, Of(0, 3), kStart) == ReplyStatus::kNotReady);
  CHECK(leases.OnBeacon(kB, Of(0, 1), kStart) == ReplyStatus::kWrongEpoch);
  CHECK(leases.OnBeacon(kB, Of(0, 2, 4), kStart) == ReplyStatus::kNotReady);
  CHECK(leases.OnBeacon(kB, Of(0, 2, 2), kStart) == ReplyStatus::kWrongEpoch);
  // No primary of this epoch.
  CHECK(leases.OnBeacon(kC, Of(0, 2), kStart) == ReplyStatus::kWrongEpoch);
  CHECK(leases.OnBeacon({kB.server, 1}, Of(0, 2), kStart) == ReplyStatus::kWrongEpoch);
  CHECK(leases.OnBeacon(kB, Of(3), kStart) == ReplyStatus::kWrongEpoch);
  // No copy, as far as is known here.
  CHECK(leases.OnBeacon(kB, Of(2), kStart) == ReplyStatus::kNotReady);
  CHECK(leases.OnBeacon(kB, Of(2, 1, 0), kStart) == ReplyStatus::kNotReady);
  CHECK(leases.OnBeacon(kB, Of(4), kStart) == ReplyStatus::kOutOfRange);
}

TEST_CASE("leases: a beacon that was refused is not heard") {
  ReplicaLeases leases;
  leases.Follow(View({{kB, kA, As::kFollower, 3, 2}}), kA, kStart);
  for (int64_t now = kStart; now < kStart + kLease; now += kLease / 16) {
    CHECK(Judged(&leases, now).empty());
    leases.OnBeacon(kB, Of(0, 1), now);
    leases.OnBeacon(kB, Of(0, 3), now);
    leases.OnBeacon(kB, Of(0, 2, 2), now);
    leases.OnBeacon(kB, Of(0, 2, 4), now);
    leases.OnBeacon(kC, Of(0, 2), now);
  }
  CHECK(Judged(&leases, kStart + kLease).size() == 1);
}

TEST_CASE("leases: who was a follower serves when the lease that it gave has passed") {
  ReplicaLeases leases;
  leases.Follow(View({{kB, kA}}), kA, kStart);
  const int64_t heard = kStart + 300 * kMilli;
  REQUIRE(leases.OnBeacon(kB, Of(0), heard) == ReplyStatus::kOk);
  leases.Follow(View({{kA, kNobody, As::kFollower, 3, 2}, {kA}}), kA, heard + kMilli);
  CHECK(leases.active());
  for (const bool again : {false, true}) {
    // A later view says the same, or that it has a copy.
    if (again) {
      leases.Follow(View({{kA, kC, As::kLearner, 9, 2, 9}, {kA}}), kA, heard + 2 * kMilli);
    }
    CHECK_FALSE(leases.MayServe(0, heard + kLease - 1));
    CHECK_FALSE(leases.MayRead(0, heard + kLease - 1));
    CHECK(leases.MayServe(1, heard + kMilli));
    CHECK(leases.MayRead(1, heard + kMilli));
    CHECK(leases.MayServe(0, heard + kLease));
    CHECK(leases.MayRead(0, heard + kLease));
  }
  // There is nothing more to wait for.
  leases.Follow(View({{kA, kNobody, As::kFollower, 3, 2}, {kA}}), kA, heard + kLease);
  CHECK_FALSE(leases.active());
}

TEST_CASE("leases: who was a learner gave none, nor did another incarnation") {
  ReplicaLeases leases;
  SECTION("a learner") {
    leases.Follow(View({{kB, kA, As::kLearner}}), kA, kStart);
    leases.OnBeacon(kB, Of(0), kStart);
    leases.Follow(View({{kA, kNobody, As::kFollower, 3, 2}}), kA, kStart);
    CHECK(leases.MayServe(0, kStart));
  }
  SECTION("another incarnation") {
    leases.Follow(View({{kB, kA}}), kA, kStart);
    leases.OnBeacon(kB, Of(0), kStart);
    leases.Follow(View({{kC, kNobody, As::kFollower, 3, 2}}), kC, kStart);
    CHECK(leases.MayServe(0, kStart));
  }
}

TEST_CASE("leases: a copy that answers nothing for a lease is dropped") {
  ReplicaLeases leases;
  const As as = GENERATE(As::kFollower, As::kLearner);
  leases.Follow(View({{kA}, {kA, kC, as}}), kA, kStart);
  int64_t silent = kStart;
  SECTION("from the beginning") {}
  SECTION("since the last beacon that it answered was sent") {
    silent += 300 * kMilli;
    leases.Acknowledged(kC, Of(1), silent);
  }
  const auto changes = JudgedUntil(&leases, kStart, silent + kLease);
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].kind() == v1::ConfigurationChange::DROP_REPLICA);
  CHECK(changes[0].partition() == 1);
  CHECK(changes[0].configuration() == 7);
  CHECK(changes[0].server() == kC.server);
  // As long as nothing is changed.
  CHECK(Judged(&leases, silent + kLease + kMilli).size() == 1);
  leases.Acknowledged(kC, Of(1), silent + kLease);
  CHECK(Judged(&leases, silent + kLease + 2 * kMilli).empty());
}

TEST_CASE("leases: a follower that hears nothing for a lease asks to be the primary") {
  ReplicaLeases leases;
  leases.Follow(View({{kB, kA}, {kB, kA, As::kLearner}, {kC, kB}}), kA, kStart);
  int64_t silent = kStart;
  SECTION("from the beginning") {}
  SECTION("since the last beacon came") {
    silent += 300 * kMilli;
    REQUIRE(leases.OnBeacon(kB, Of(0), silent) == ReplyStatus::kOk);
  }
  const auto changes = JudgedUntil(&leases, kStart, silent + kLease);
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].kind() == v1::ConfigurationChange::PROMOTE);
  CHECK(changes[0].partition() == 0);
  CHECK(changes[0].configuration() == 7);
  // The primary comes back.
  REQUIRE(leases.OnBeacon(kB, Of(0), silent + kLease) == ReplyStatus::kOk);
  CHECK(Judged(&leases, silent + kLease + kMilli).empty());
}

TEST_CASE("leases: who did not run judges nobody by that time") {
  ReplicaLeases leases;
  leases.Follow(View({{kA, kB}, {kB, kA}}), kA, kStart);
  CHECK(Judged(&leases, kStart + kLease / 2).empty());
  const int64_t back = kStart + kLease + kMilli;
  CHECK(Judged(&leases, back).empty());
  const auto changes = JudgedUntil(&leases, back, back + kLease);
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].kind() == v1::ConfigurationChange::DROP_REPLICA);
  CHECK(changes[1].kind() == v1::ConfigurationChange::PROMOTE);
  // What may be answered is not more for it.
  CHECK_FALSE(leases.MayRead(0, back));
}

TEST_CASE("leases: who did not run serves no earlier for it, promoted") {
  ReplicaLeases leases;
  leases.Follow(View({{kB, kA}}), kA, kStart);
  const int64_t back = kStart + 3 * kLease;
  CHECK(Judged(&leases, back).empty());
  // What lies in its lanes, and is looked at now, was heard now.
  REQUIRE(leases.OnBeacon(kB, Of(0), back) == ReplyStatus::kOk);
  leases.Follow(View({{kA, kNobody, As::kFollower, 3, 2}}), kA, back);
  CHECK_FALSE(leases.MayServe(0, back + kLease - 1));
  CHECK(leases.MayServe(0, back + kLease));
}

TEST_CASE("leases: the time without copies is none in which somebody was silent") {
  ReplicaLeases leases;
  leases.Follow(View({{kA}}), kA, kStart);
  CHECK(Judged(&leases, kStart).empty());
  const int64_t later = kStart + 10 * kLease;
  leases.Follow(View({{kA, kB}}), kA, later);
  CHECK(JudgedUntil(&leases, later, later + kLease).size() == 1);
}

TEST_CASE("leases: a view that says the same of a copy changes nothing") {
  ReplicaLeases leases;
  leases.Follow(View({{kA, kB}, {kB, kA, As::kLearner}}), kA, kStart);
  leases.Acknowledged(kB, Of(0), kStart);
  REQUIRE(leases.OnBeacon(kB, Of(1), kStart) == ReplyStatus::kOk);
  const int64_t later = kStart + 500 * kMilli;
  CHECK(Judged(&leases, kStart + 250 * kMilli).empty());
  // The learner there is a follower now: what was heard before counts for it, too.
  leases.Follow(View({{kA, kB}, {kB, kA, As::kFollower, 3, 1, 8}}), kA, later);
  CHECK(leases.MayRead(0, kStart + kReads - 1));
  CHECK_FALSE(leases.MayRead(0, kStart + kReads));
  const auto changes = JudgedUntil(&leases, later, kStart + kLease);
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].kind() == v1::ConfigurationChange::DROP_REPLICA);
  CHECK(changes[1].kind() == v1::ConfigurationChange::PROMOTE);
  CHECK(changes[1].configuration() == 8);
}

TEST_CASE("leases: a copy since another configuration starts anew") {
  ReplicaLeases leases;
  leases.Follow(View({{kA, kB}, {kB, kA}}), kA, kStart);
  leases.Acknowledged(kB, Of(0), kStart);
  REQUIRE(leases.OnBeacon(kB, Of(1), kStart) == ReplyStatus::kOk);
  CHECK(Judged(&leases, kStart + 250 * kMilli).empty());
  const int64_t later = kStart + 500 * kMilli;
  leases.Follow(View({{kA, kB, As::kFollower, 4}, {kB, kA, As::kFollower, 4}}), kA, later);
  CHECK_FALSE(leases.MayRead(0, later));
  leases.Acknowledged(kB, Of(0), later);
  CHECK_FALSE(leases.MayRead(0, later));
  CHECK(JudgedUntil(&leases, later, later + kLease).size() == 2);
}

TEST_CASE("leases: all of a shard's partitions may be read when each may") {
  ReplicaLeases leases;
  leases.Follow(View({{kA, kB}, {kA, kC}, {kA, kC, As::kLearner}, {kA}, {kB, kA}}), kA, kStart);
  CHECK_FALSE(leases.MayReadAll(kStart));
  leases.Acknowledged(kB, Of(0), kStart);
  CHECK_FALSE(leases.MayReadAll(kStart));
  leases.Acknowledged(kC, Of(1), kStart + 100 * kMilli);
  CHECK(leases.MayReadAll(kStart + kReads - 1));
  CHECK_FALSE(leases.MayReadAll(kStart + kReads));
  leases.Acknowledged(kB, Of(0), kStart + 400 * kMilli);
  CHECK(leases.MayReadAll(kStart + 100 * kMilli + kReads - 1));
  CHECK_FALSE(leases.MayReadAll(kStart + 100 * kMilli + kReads));
  leases.Admitting(2);
  CHECK_FALSE(leases.MayReadAll(kStart + 100 * kMilli));
  leases.Follow(View({{kA}, {kA}, {kA}, {kA}, {kB, kA}}), kA, kStart);
  CHECK(leases.MayReadAll(kStart + 100 * kLease));
}

}  // namespace
}  // namespace verbena::server
