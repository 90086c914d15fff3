// Leases between a primary and its copies, with the time given by hand.
#include "server/replication/replica_leases.h"

#include <catch2/catch.hpp>
#include <initializer_list>
#include <vector>

#include "shard/failpoints.h"

namespace verbena::server {
namespace {

constexpr PeerId kOne{10, 0}, kTwo{11, 0}, kThree{12, 1}, kNobody{};
constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kLeaseNanos = 1000 * kMilli;
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

// Judges as often as a server that runs; returns the changes of the last call.
std::vector<v1::ConfigurationChange> JudgedUntil(ReplicaLeases* leases, int64_t from, int64_t to) {
  for (int64_t now = from; now < to; now += kLeaseNanos / 16) {
    if (!Judged(leases, now).empty()) FAIL("judged " << (to - now) / kMilli << " ms early");
  }
  return Judged(leases, to);
}

TEST_CASE("leases: a shard without replicas has nothing to do") {
  ReplicaLeases leases;
  CHECK_FALSE(leases.active());
  leases.Follow(View({{kOne}, {kTwo, kThree}}), kOne, kStart);
  CHECK_FALSE(leases.active());
  CHECK(leases.NextTimerNanos() == INT64_MAX);
  CHECK(leases.MayRead(0, kStart));
  CHECK(leases.MayServe(0, kStart));
  CHECK(leases.MayReadAll(kStart));
  CHECK(leases.TakeBeacons(kStart).empty());
  CHECK(Judged(&leases, kStart + 10 * kLeaseNanos).empty());
}

TEST_CASE("leases: a primary reads under the beacons that its follower acknowledged") {
  ReplicaLeases leases;
  leases.Follow(View({{kOne, kTwo}, {kOne}}), kOne, kStart);
  CHECK(leases.active());
  CHECK(leases.MayServe(0, kStart));
  CHECK_FALSE(leases.MayRead(0, kStart));
  CHECK_FALSE(leases.MayReadAll(kStart));
  CHECK(leases.MayRead(1, kStart));

  const int64_t sent = kStart + 20 * kMilli;
  leases.Acknowledged(kTwo, Of(0), sent);
  // As long after it was sent, however long its answer was in progress.
  CHECK(leases.MayRead(0, sent + kReads - 1));
  CHECK(leases.MayReadAll(sent + kReads - 1));
  CHECK_FALSE(leases.MayRead(0, sent + kReads));
  CHECK_FALSE(leases.MayReadAll(sent + kReads));
  CHECK(leases.MayServe(0, sent + kReads));

  leases.Acknowledged(kTwo, Of(0), sent + kReads);
  CHECK(leases.MayReadAll(sent + 2 * kReads - 1));
  // An older answer that comes later takes nothing away.
  leases.Acknowledged(kTwo, Of(0), sent);
  CHECK(leases.MayRead(0, sent + 2 * kReads - 1));
  CHECK_FALSE(leases.MayRead(0, sent + 2 * kReads));
}

TEST_CASE("leases: a primary reads under the leases of all its followers, and judges each") {
  ReplicaLeases leases;
  v1::ClusterView view = View({{kOne, kTwo}});
  v1::Replica* const other = view.mutable_partitions(0)->add_followers();
  other->set_server(kThree.server);
  other->set_shard(kThree.shard);
  other->set_since(5);
  leases.Follow(view, kOne, kStart);
  REQUIRE(leases.TakeBeacons(kStart).size() == 2);
  leases.Acknowledged(kTwo, Of(0), kStart + kMilli);
  CHECK_FALSE(leases.MayRead(0, kStart + kMilli));
  leases.Acknowledged(kThree, Of(0, 1, 5), kStart + 20 * kMilli);
  CHECK(leases.MayRead(0, kStart + kMilli + kReads - 1));
  CHECK_FALSE(leases.MayRead(0, kStart + kMilli + kReads));
  // One of them is silent: it alone is given up.
  for (int64_t now = kStart; now < kStart + kLeaseNanos; now += kLeaseNanos / 16) {
    leases.Acknowledged(kThree, Of(0, 1, 5), now);
    CHECK(Judged(&leases, now).empty());
  }
  const auto changes = Judged(&leases, kStart + kLeaseNanos + kMilli);
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].kind() == v1::ConfigurationChange::DROP_REPLICA);
  CHECK(changes[0].server() == kTwo.server);
}

TEST_CASE("leases: an acknowledgement of another server, partition, epoch or role does not count") {
  ReplicaLeases leases;
  leases.Follow(View({{kOne, kTwo, As::kFollower, 3, 2}}), kOne, kStart);
  leases.Acknowledged(kThree, Of(0, 2), kStart);
  leases.Acknowledged({kTwo.server, kTwo.shard + 1}, Of(0, 2), kStart);
  leases.Acknowledged(kTwo, Of(0, 1), kStart);
  leases.Acknowledged(kTwo, Of(0, 3), kStart);
  leases.Acknowledged(kTwo, Of(0, 2, 2), kStart);
  leases.Acknowledged(kTwo, Of(0, 2, 4), kStart);
  leases.Acknowledged(kTwo, Of(1, 2), kStart);
  CHECK_FALSE(leases.MayRead(0, kStart));
  leases.Acknowledged(kTwo, Of(0, 2), kStart);
  CHECK(leases.MayRead(0, kStart));
}

TEST_CASE("leases: a learner is no reason to wait until it may be a follower") {
  ReplicaLeases leases;
  const v1::ClusterView view = View({{kOne, kTwo, As::kLearner}});
  leases.Follow(view, kOne, kStart);
  CHECK(leases.active());
  CHECK(leases.MayRead(0, kStart + 10 * kLeaseNanos));
  CHECK(leases.MayReadAll(kStart));
  leases.Admitting(0, kTwo.server);
  CHECK_FALSE(leases.MayRead(0, kStart));
  CHECK_FALSE(leases.MayReadAll(kStart));
  // Whether the coordinator has made it one is not known.
  leases.Follow(view, kOne, kStart + kMilli);
  CHECK_FALSE(leases.MayRead(0, kStart + kMilli));
  leases.Acknowledged(kTwo, Of(0), kStart);
  CHECK(leases.MayRead(0, kStart + kReads - 1));
  CHECK_FALSE(leases.MayRead(0, kStart + kReads));
  SECTION("it is one") {
    leases.Follow(View({{kOne, kTwo, As::kFollower}}), kOne, kStart + kMilli);
    CHECK(leases.MayRead(0, kStart + kReads - 1));
    CHECK_FALSE(leases.MayRead(0, kStart + kReads));
  }
  SECTION("it is gone") {
    leases.Follow(View({{kOne}}), kOne, kStart + kMilli);
    CHECK(leases.MayRead(0, kStart + kLeaseNanos));
  }
  SECTION("it begins once more") {
    leases.Follow(View({{kOne, kTwo, As::kLearner, 4}}), kOne, kStart + kMilli);
    CHECK(leases.MayRead(0, kStart + kLeaseNanos));
  }
}

TEST_CASE("leases: acknowledgements before a learner was to be admitted count") {
  ReplicaLeases leases;
  leases.Follow(View({{kOne, kTwo, As::kLearner}}), kOne, kStart);
  leases.Acknowledged(kTwo, Of(0), kStart);
  leases.Admitting(0, kTwo.server);
  CHECK(leases.MayReadAll(kStart + kReads - 1));
  CHECK_FALSE(leases.MayReadAll(kStart + kReads));
}

TEST_CASE("regression: leases: a view with a lease of zero causes no endless beacons") {
  v1::ClusterView view = View({{kOne, kTwo}});
  view.set_lease_ms(0);
  ReplicaLeases leases;
  leases.Follow(view, kOne, kStart);
  CHECK(leases.TakeBeacons(kStart).size() == 1);
  CHECK(leases.TakeBeacons(kStart).empty());
  CHECK(leases.NextTimerNanos() > kStart);
}

TEST_CASE("leases: beacons are due every eighth of a lease") {
  ReplicaLeases leases;
  leases.Follow(
      View({{kOne, kTwo}, {kOne, kThree, As::kLearner, 5, 2}, {kTwo, kOne}, {kOne}, {kOne, kTwo}}),
      kOne, kStart);
  CHECK(leases.NextTimerNanos() == kStart);
  const std::vector<ReplicaLeases::Beacon> beacons = leases.TakeBeacons(kStart);
  REQUIRE(beacons.size() == 2);
  CHECK(beacons[0].to == kTwo);
  REQUIRE(beacons[0].groups.size() == 2);
  CHECK(beacons[0].groups[0].partition == 0);
  CHECK(beacons[0].groups[1].partition == 4);
  CHECK(beacons[1].to == kThree);
  REQUIRE(beacons[1].groups.size() == 1);
  CHECK(beacons[1].groups[0].partition == 1);
  CHECK(beacons[1].groups[0].epoch == 2);
  CHECK(beacons[1].groups[0].sequence == 5);
  CHECK(leases.NextTimerNanos() == kStart + kLeaseNanos / 8);
  CHECK(leases.TakeBeacons(kStart + kLeaseNanos / 8 - 1).empty());
  CHECK(leases.TakeBeacons(kStart + kLeaseNanos / 8).size() == 2);
  // A new follower gets one at once.
  const int64_t now = kStart + kLeaseNanos / 8 + kMilli;
  leases.Follow(View({{kOne, kThree}}), kOne, now);
  CHECK(leases.NextTimerNanos() == now);
  REQUIRE(leases.TakeBeacons(now).size() == 1);
  // Nobody is left.
  leases.Follow(View({{kOne}}), kOne, now);
  CHECK(leases.NextTimerNanos() == INT64_MAX);
  CHECK(leases.TakeBeacons(now + kLeaseNanos).empty());
}

TEST_CASE("leases: a beacon has no more groups than a record can have") {
  ReplicaLeases leases;
  leases.Follow(View(std::vector<Partition>(2 * kMaxGroups + 1, {kOne, kTwo})), kOne, kStart);
  std::vector<bool> seen(2 * kMaxGroups + 1);
  const std::vector<ReplicaLeases::Beacon> beacons = leases.TakeBeacons(kStart);
  REQUIRE(beacons.size() == 3);
  for (const ReplicaLeases::Beacon& beacon : beacons) {
    CHECK(beacon.to == kTwo);
    CHECK(beacon.groups.size() <= kMaxGroups);
    for (const Group& group : beacon.groups) {
      CHECK_FALSE(seen[group.partition]);
      seen[group.partition] = true;
    }
  }
  CHECK(std::vector<bool>(seen.size(), true) == seen);
}

TEST_CASE("leases: a replica answers a beacon by its own view") {
  ReplicaLeases leases;
  CHECK(leases.OnBeacon(kTwo, Of(0), kStart) == ReplyStatus::kNotReady);
  leases.Follow(View({{kTwo, kOne, As::kFollower, 3, 2},
                      {kTwo, kOne, As::kLearner},
                      {kTwo, kThree},
                      {kOne, kTwo}}),
                kOne, kStart);
  CHECK(leases.OnBeacon(kTwo, Of(0, 2), kStart) == ReplyStatus::kOk);
  CHECK(leases.OnBeacon(kTwo, Of(1), kStart) == ReplyStatus::kOk);
  // The view here is older than the sender's, or newer.
  CHECK(leases.OnBeacon(kTwo, Of(0, 3), kStart) == ReplyStatus::kNotReady);
  CHECK(leases.OnBeacon(kThree, Of(0, 3), kStart) == ReplyStatus::kNotReady);
  CHECK(leases.OnBeacon(kTwo, Of(0, 1), kStart) == ReplyStatus::kWrongEpoch);
  CHECK(leases.OnBeacon(kTwo, Of(0, 2, 4), kStart) == ReplyStatus::kNotReady);
  CHECK(leases.OnBeacon(kTwo, Of(0, 2, 2), kStart) == ReplyStatus::kWrongEpoch);
  // No primary of this epoch.
  CHECK(leases.OnBeacon(kThree, Of(0, 2), kStart) == ReplyStatus::kWrongEpoch);
  CHECK(leases.OnBeacon({kTwo.server, 1}, Of(0, 2), kStart) == ReplyStatus::kWrongEpoch);
  CHECK(leases.OnBeacon(kTwo, Of(3), kStart) == ReplyStatus::kWrongEpoch);
  // No copy, as far as is known here.
  CHECK(leases.OnBeacon(kTwo, Of(2), kStart) == ReplyStatus::kNotReady);
  CHECK(leases.OnBeacon(kTwo, Of(2, 1, 0), kStart) == ReplyStatus::kNotReady);
  CHECK(leases.OnBeacon(kTwo, Of(4), kStart) == ReplyStatus::kOutOfRange);
}

TEST_CASE("leases: a refused beacon does not count as heard") {
  ReplicaLeases leases;
  leases.Follow(View({{kTwo, kOne, As::kFollower, 3, 2}}), kOne, kStart);
  for (int64_t now = kStart; now < kStart + kLeaseNanos; now += kLeaseNanos / 16) {
    CHECK(Judged(&leases, now).empty());
    leases.OnBeacon(kTwo, Of(0, 1), now);
    leases.OnBeacon(kTwo, Of(0, 3), now);
    leases.OnBeacon(kTwo, Of(0, 2, 2), now);
    leases.OnBeacon(kTwo, Of(0, 2, 4), now);
    leases.OnBeacon(kThree, Of(0, 2), now);
  }
  CHECK(Judged(&leases, kStart + kLeaseNanos).size() == 1);
}

TEST_CASE("leases: a promoted follower serves when the lease that it gave has passed") {
  ReplicaLeases leases;
  leases.Follow(View({{kTwo, kOne}}), kOne, kStart);
  const int64_t heard = kStart + 300 * kMilli;
  REQUIRE(leases.OnBeacon(kTwo, Of(0), heard) == ReplyStatus::kOk);
  leases.Follow(View({{kOne, kNobody, As::kFollower, 3, 2}, {kOne}}), kOne, heard + kMilli);
  CHECK(leases.active());
  for (const bool again : {false, true}) {
    // A later view is the same, or has a learner.
    if (again) {
      leases.Follow(View({{kOne, kThree, As::kLearner, 9, 2, 9}, {kOne}}), kOne,
                    heard + 2 * kMilli);
    }
    CHECK_FALSE(leases.MayServe(0, heard + kLeaseNanos - 1));
    CHECK_FALSE(leases.MayRead(0, heard + kLeaseNanos - 1));
    CHECK(leases.MayServe(1, heard + kMilli));
    CHECK(leases.MayRead(1, heard + kMilli));
    CHECK(leases.MayServe(0, heard + kLeaseNanos));
    CHECK(leases.MayRead(0, heard + kLeaseNanos));
  }
  // There is nothing more to wait for.
  leases.Follow(View({{kOne, kNobody, As::kFollower, 3, 2}, {kOne}}), kOne, heard + kLeaseNanos);
  CHECK_FALSE(leases.active());
}

// The roles of kOne after it gave a lease at `given` as a copy of kTwo; whether it serves before
// that lease has passed. At the end it has to serve.
bool ServesEarly(As first, const std::vector<Partition>& then) {
  ReplicaLeases leases;
  leases.Follow(View({{kTwo, kOne, first}}), kOne, kStart);
  const int64_t given = kStart + 300 * kMilli;
  REQUIRE(leases.OnBeacon(kTwo, Of(0), given) == ReplyStatus::kOk);
  int64_t now = given;
  for (const Partition& partition : then) {
    now += 10 * kMilli;
    leases.Follow(View({partition}), kOne, now);
  }
  CHECK(leases.MayServe(0, given + kLeaseNanos));
  CHECK(leases.MayRead(0, given + kLeaseNanos));
  return leases.MayServe(0, given + kLeaseNanos - 1) || leases.MayRead(0, given + kLeaseNanos - 1);
}

struct RoleChange {
  As first;
  std::vector<Partition> then;
};
// Each ends with kOne as the primary.
std::vector<RoleChange> RoleChanges() {
  const Partition primary{kOne, kNobody, As::kFollower, 3, 9, 20};
  const Partition follower{kTwo, kOne, As::kFollower, 3, 1, 8};
  const Partition again{kTwo, kOne, As::kLearner, 5, 3, 10};
  const Partition none{kTwo, kThree, As::kFollower, 5, 1, 9};
  return {{As::kFollower, {primary}},
          {As::kLearner, {primary}},
          {As::kLearner, {follower, primary}},
          {As::kLearner, {none, primary}},
          {As::kFollower, {none, primary}},
          {As::kFollower, {again, primary}},
          {As::kLearner, {again, primary}},
          {As::kLearner, {{kOne, kTwo, As::kLearner, 4, 2, 9}, again, primary}}};
}

TEST_CASE("regression: leases: whatever its roles were, a primary waits for the lease it gave") {
  for (const RoleChange& change : RoleChanges()) {
    CAPTURE(static_cast<int>(change.first), change.then.size());
    CHECK_FALSE(ServesEarly(change.first, change.then));
  }
}

TEST_CASE("failpoint: leases: a learner that becomes the primary forgets the lease it gave") {
  shard::failpoints().skip_given_lease = true;
  size_t early = 0;
  for (const RoleChange& change : RoleChanges()) early += ServesEarly(change.first, change.then);
  shard::failpoints().skip_given_lease = false;
  CHECK(early >= 4);
}

TEST_CASE(
    "regression: leases: who was handed a partition over waits for no lease, whatever views came") {
  const As as = GENERATE(As::kFollower, As::kLearner);
  ReplicaLeases leases;
  leases.Follow(View({{kTwo, kOne, as}}), kOne, kStart);
  CHECK(leases.OnBeacon(kTwo, Of(0), kStart) == ReplyStatus::kOk);
  v1::ClusterView view = View({{kOne, kTwo, As::kFollower, 3, 2}});
  SECTION("planned") {
    view.mutable_partitions(0)->set_released_epoch(2);
    leases.Follow(view, kOne, kStart);
    CHECK(leases.MayServe(0, kStart));
  }
  SECTION("planned, once before") {
    view.mutable_partitions(0)->set_released_epoch(1);
    leases.Follow(view, kOne, kStart);
    CHECK_FALSE(leases.MayServe(0, kStart));
  }
}

TEST_CASE("leases: a learner that answered no beacon gave no lease, nor did another incarnation") {
  ReplicaLeases leases;
  SECTION("a learner") {
    leases.Follow(View({{kTwo, kOne, As::kLearner}}), kOne, kStart);
    leases.Follow(View({{kOne, kNobody, As::kFollower, 3, 2}}), kOne, kStart);
    CHECK(leases.MayServe(0, kStart));
  }
  SECTION("another incarnation") {
    leases.Follow(View({{kTwo, kOne}}), kOne, kStart);
    leases.OnBeacon(kTwo, Of(0), kStart);
    leases.Follow(View({{kThree, kNobody, As::kFollower, 3, 2}}), kThree, kStart);
    CHECK(leases.MayServe(0, kStart));
  }
}

TEST_CASE("leases: a replica that answers nothing for a lease is dropped") {
  ReplicaLeases leases;
  const As as = GENERATE(As::kFollower, As::kLearner);
  leases.Follow(View({{kOne}, {kOne, kThree, as}}), kOne, kStart);
  int64_t silent = kStart;
  SECTION("from the beginning") {}
  SECTION("since the last beacon that it answered was sent") {
    silent += 300 * kMilli;
    leases.Acknowledged(kThree, Of(1), silent);
  }
  const auto changes = JudgedUntil(&leases, kStart, silent + kLeaseNanos);
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].kind() == v1::ConfigurationChange::DROP_REPLICA);
  CHECK(changes[0].partition() == 1);
  CHECK(changes[0].configuration() == 7);
  CHECK(changes[0].server() == kThree.server);
  // As long as nothing is changed.
  CHECK(Judged(&leases, silent + kLeaseNanos + kMilli).size() == 1);
  leases.Acknowledged(kThree, Of(1), silent + kLeaseNanos);
  CHECK(Judged(&leases, silent + kLeaseNanos + 2 * kMilli).empty());
}

TEST_CASE("leases: a follower that hears nothing for a lease asks to be the primary") {
  ReplicaLeases leases;
  leases.Follow(View({{kTwo, kOne}, {kTwo, kOne, As::kLearner}, {kThree, kTwo}}), kOne, kStart);
  int64_t silent = kStart;
  SECTION("from the beginning") {}
  SECTION("since the last beacon came") {
    silent += 300 * kMilli;
    REQUIRE(leases.OnBeacon(kTwo, Of(0), silent) == ReplyStatus::kOk);
  }
  const auto changes = JudgedUntil(&leases, kStart, silent + kLeaseNanos);
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].kind() == v1::ConfigurationChange::PROMOTE);
  CHECK(changes[0].partition() == 0);
  CHECK(changes[0].configuration() == 7);
  // The primary comes back.
  REQUIRE(leases.OnBeacon(kTwo, Of(0), silent + kLeaseNanos) == ReplyStatus::kOk);
  CHECK(Judged(&leases, silent + kLeaseNanos + kMilli).empty());
}

TEST_CASE("leases: a server judges no peer by time in which it did not run itself") {
  ReplicaLeases leases;
  leases.Follow(View({{kOne, kTwo}, {kTwo, kOne}}), kOne, kStart);
  CHECK(Judged(&leases, kStart + kLeaseNanos / 2).empty());
  const int64_t back = kStart + kLeaseNanos + kMilli;
  CHECK(Judged(&leases, back).empty());
  const auto changes = JudgedUntil(&leases, back, back + kLeaseNanos);
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].kind() == v1::ConfigurationChange::DROP_REPLICA);
  CHECK(changes[1].kind() == v1::ConfigurationChange::PROMOTE);
  // The pause extends no lease for reads.
  CHECK_FALSE(leases.MayRead(0, back));
}

TEST_CASE("leases: a promoted server that did not run still waits for the lease that it gave") {
  ReplicaLeases leases;
  leases.Follow(View({{kTwo, kOne}}), kOne, kStart);
  const int64_t back = kStart + 3 * kLeaseNanos;
  CHECK(Judged(&leases, back).empty());
  // A beacon that waited in its lanes counts as heard when it is handled.
  REQUIRE(leases.OnBeacon(kTwo, Of(0), back) == ReplyStatus::kOk);
  leases.Follow(View({{kOne, kNobody, As::kFollower, 3, 2}}), kOne, back);
  CHECK_FALSE(leases.MayServe(0, back + kLeaseNanos - 1));
  CHECK(leases.MayServe(0, back + kLeaseNanos));
}

TEST_CASE("leases: time without replicas does not count as silence") {
  ReplicaLeases leases;
  leases.Follow(View({{kOne}}), kOne, kStart);
  CHECK(Judged(&leases, kStart).empty());
  const int64_t later = kStart + 10 * kLeaseNanos;
  leases.Follow(View({{kOne, kTwo}}), kOne, later);
  CHECK(JudgedUntil(&leases, later, later + kLeaseNanos).size() == 1);
}

TEST_CASE("leases: a view with the same replicas changes nothing") {
  ReplicaLeases leases;
  leases.Follow(View({{kOne, kTwo}, {kTwo, kOne, As::kLearner}}), kOne, kStart);
  leases.Acknowledged(kTwo, Of(0), kStart);
  REQUIRE(leases.OnBeacon(kTwo, Of(1), kStart) == ReplyStatus::kOk);
  const int64_t later = kStart + 500 * kMilli;
  CHECK(Judged(&leases, kStart + 250 * kMilli).empty());
  // The learner there is a follower now: earlier beacons count for it, too.
  leases.Follow(View({{kOne, kTwo}, {kTwo, kOne, As::kFollower, 3, 1, 8}}), kOne, later);
  CHECK(leases.MayRead(0, kStart + kReads - 1));
  CHECK_FALSE(leases.MayRead(0, kStart + kReads));
  const auto changes = JudgedUntil(&leases, later, kStart + kLeaseNanos);
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].kind() == v1::ConfigurationChange::DROP_REPLICA);
  CHECK(changes[1].kind() == v1::ConfigurationChange::PROMOTE);
  CHECK(changes[1].configuration() == 8);
}

TEST_CASE("leases: a replica that joined again starts without a lease") {
  ReplicaLeases leases;
  leases.Follow(View({{kOne, kTwo}, {kTwo, kOne}}), kOne, kStart);
  leases.Acknowledged(kTwo, Of(0), kStart);
  REQUIRE(leases.OnBeacon(kTwo, Of(1), kStart) == ReplyStatus::kOk);
  CHECK(Judged(&leases, kStart + 250 * kMilli).empty());
  const int64_t later = kStart + 500 * kMilli;
  leases.Follow(View({{kOne, kTwo, As::kFollower, 4}, {kTwo, kOne, As::kFollower, 4}}), kOne,
                later);
  CHECK_FALSE(leases.MayRead(0, later));
  leases.Acknowledged(kTwo, Of(0), later);
  CHECK_FALSE(leases.MayRead(0, later));
  CHECK(JudgedUntil(&leases, later, later + kLeaseNanos).size() == 2);
}

TEST_CASE("leases: all of a shard's partitions may be read when each may") {
  ReplicaLeases leases;
  leases.Follow(
      View({{kOne, kTwo}, {kOne, kThree}, {kOne, kThree, As::kLearner}, {kOne}, {kTwo, kOne}}),
      kOne, kStart);
  CHECK_FALSE(leases.MayReadAll(kStart));
  leases.Acknowledged(kTwo, Of(0), kStart);
  CHECK_FALSE(leases.MayReadAll(kStart));
  leases.Acknowledged(kThree, Of(1), kStart + 100 * kMilli);
  CHECK(leases.MayReadAll(kStart + kReads - 1));
  CHECK_FALSE(leases.MayReadAll(kStart + kReads));
  leases.Acknowledged(kTwo, Of(0), kStart + 400 * kMilli);
  CHECK(leases.MayReadAll(kStart + 100 * kMilli + kReads - 1));
  CHECK_FALSE(leases.MayReadAll(kStart + 100 * kMilli + kReads));
  leases.Admitting(2, kThree.server);
  CHECK_FALSE(leases.MayReadAll(kStart + 100 * kMilli));
  leases.Follow(View({{kOne}, {kOne}, {kOne}, {kOne}, {kTwo, kOne}}), kOne, kStart);
  CHECK(leases.MayReadAll(kStart + 100 * kLeaseNanos));
}

Group Settled(uint64_t sequence) {
  Group group = Of(0);
  SetSettled(sequence, &group);
  return group;
}

TEST_CASE("leases: a follower reads what its primary had a bounded time ago") {
  ReplicaLeases leases;
  leases.Follow(View({{kOne, kTwo}}), kTwo, kStart);
  constexpr int64_t kAge = 100 * kMilli, kShown = 80 * kMilli;  // clocks may differ by a quarter
  CHECK_FALSE(leases.IsFresh(Of(0), kAge, kStart));
  // A beacon that lay unread for long is as old as the answer before it.
  REQUIRE(leases.OnBeacon(kOne, Settled(4), kStart + 500 * kMilli, kStart) == ReplyStatus::kOk);
  CHECK_FALSE(leases.IsFresh(Of(0), kAge, kStart + 500 * kMilli));
  CHECK(leases.IsFresh(Of(0), 1000 * kMilli, kStart + 500 * kMilli));
  const int64_t answered = kStart + 600 * kMilli;
  REQUIRE(leases.OnBeacon(kOne, Settled(4), answered + 9, answered) == ReplyStatus::kOk);
  CHECK(leases.IsFresh(Of(0), kAge, answered + kShown));
  CHECK_FALSE(leases.IsFresh(Of(0), kAge, answered + kShown + 1));
  SECTION("a primary that may not read vouches for nothing") {
    REQUIRE(leases.OnBeacon(kOne, Settled(0), answered + 900, answered + 800 * kMilli) ==
            ReplyStatus::kOk);
    CHECK_FALSE(leases.IsFresh(Of(0), kAge, answered + 850 * kMilli));
  }
  SECTION("a clock value that this side did not have yet counts as now") {
    REQUIRE(leases.OnBeacon(kOne, Settled(4), answered + kAge, INT64_MAX) == ReplyStatus::kOk);
    CHECK_FALSE(leases.IsFresh(Of(0), kAge, answered + 2 * kAge));
  }
  SECTION("another epoch begins anew") {
    leases.Follow(View({{kOne, kTwo, As::kFollower, 3, 2}}), kTwo, answered + 10);
    CHECK_FALSE(leases.IsFresh(Of(0, 2), kAge, answered + 10));
    CHECK_FALSE(leases.IsFresh(Of(0), kAge, answered + 10));
  }
  SECTION("a learner reads nothing") {
    leases.Follow(View({{kOne, kTwo, As::kLearner, 8}}), kTwo, answered + 10);
    REQUIRE(leases.OnBeacon(kOne, Of(0, 1, 8), answered + 20, answered + 15) == ReplyStatus::kOk);
    CHECK_FALSE(leases.IsFresh(Of(0), kAge, answered + 20));
  }
  SECTION("failpoint: content of any age") {
    shard::failpoints().follower_answers_stale = true;
    CHECK(leases.IsFresh(Of(0), kAge, answered + 1000 * kMilli));
    shard::failpoints().follower_answers_stale = false;
  }
}

TEST_CASE("leases: a primary vouches for its followers while it may read") {
  ReplicaLeases leases;
  leases.Follow(View({{kOne, kTwo}}), kOne, kStart);
  CHECK_FALSE(leases.Vouches(kTwo, Of(0), kStart));
  leases.Acknowledged(kTwo, Of(0), kStart);
  CHECK(leases.Vouches(kTwo, Of(0), kStart + kReads - 1));
  CHECK_FALSE(leases.Vouches(kTwo, Of(0), kStart + kReads));
  CHECK_FALSE(leases.Vouches(kThree, Of(0), kStart));
  CHECK_FALSE(leases.Vouches(kTwo, Of(0, 2), kStart));
  CHECK_FALSE(leases.Vouches(kTwo, Of(0, 1, 4), kStart));
}

TEST_CASE("leases: a primary vouches for a learner once that may be a follower") {
  ReplicaLeases leases;
  leases.Follow(View({{kOne, kTwo, As::kLearner, 8}}), kOne, kStart);
  leases.Acknowledged(kTwo, Of(0, 1, 8), kStart);
  CHECK_FALSE(leases.Vouches(kTwo, Of(0, 1, 8), kStart));
  leases.Admitting(0, kTwo.server);
  CHECK(leases.Vouches(kTwo, Of(0, 1, 8), kStart));
}

}  // namespace
}  // namespace verbena::server
