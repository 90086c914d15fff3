// Which partitions of planned moves stop at one time, with the time given by hand.
#include "server/replication/hand_overs.h"

#include <catch2/catch.hpp>

#include "shard/replica/replicas.h"
#include "tests/shard/engine_fixture.h"

namespace verbena::server {
namespace hand_overs_test {

constexpr PeerId kSelf{shard::kServer, 0}, kHeir{99, 0};
constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kStart = 5000 * kMilli;

// Partitions that are all to be handed over to a follower, which is heard all the time.
class Moving {
 public:
  Moving() : engine_(Options()) {
    view_.set_lease_ms(1000);
    view_.set_replicas(2);
    for (const PeerId& server : {kSelf, kHeir}) {
      v1::Server* const out = view_.add_servers();
      out->set_incarnation(server.server);
      out->set_state(v1::Server::ALIVE);
    }
    for (uint32_t id = 0; id < kPartitions; ++id) {
      v1::Partition* const partition = view_.add_partitions();
      partition->set_id(id);
      partition->set_epoch(1);
      partition->set_configuration(7);
      partition->set_primary(kSelf.server);
      partition->set_move_to(kHeir.server);
      v1::Replica* const follower = partition->add_followers();
      follower->set_server(kHeir.server);
      follower->set_since(3);
    }
    leases_.Follow(view_, kSelf, kStart);
    Follow(kStart);
  }

  // Whether HAND_OVER is to be asked for.
  bool Ready(uint32_t partition, int64_t now) {
    Group group = {};
    group.partition = partition;
    group.epoch = 1;
    group.sequence = 3;
    leases_.Acknowledged(kHeir, group, now);
    return hand_overs_.Ready(partition, now, leases_, engine_.engine.get(), now) == kHeir.server;
  }
  bool Stopped(uint32_t partition) const { return engine_.engine->replicas().sealed(partition); }
  // The heir is the primary.
  void HandedOver(uint32_t partition, int64_t now) {
    v1::Partition* const moved = view_.mutable_partitions(static_cast<int>(partition));
    moved->set_configuration(moved->configuration() + 1);
    moved->set_primary(kHeir.server);
    moved->clear_move_to();
    moved->clear_followers();
    Follow(now);
  }
  int64_t NextNanos(int64_t now) const { return hand_overs_.NextNanos(now); }

 private:
  static constexpr uint32_t kPartitions = 4;

  static shard::FixtureOptions Options() {
    shard::FixtureOptions options;
    options.partitions = kPartitions;
    options.consistency = v1::CONSISTENCY_ASYNC;
    return options;
  }
  void Follow(int64_t now) { hand_overs_.Follow(view_, kSelf, engine_.engine.get(), now); }

  shard::Fixture engine_;
  v1::ClusterView view_;
  ReplicaLeases leases_;
  HandOvers hand_overs_;
};

TEST_CASE("hand-overs: partitions stop together, and the next ones after a pause") {
  Moving moving;
  CHECK(moving.Ready(0, kStart));
  CHECK(moving.Ready(1, kStart));
  // It could be handed over only later: until then calls with keys of both would wait.
  CHECK_FALSE(moving.Ready(2, kStart + kMilli));
  CHECK_FALSE(moving.Stopped(2));
  moving.HandedOver(0, kStart + 8 * kMilli);
  CHECK_FALSE(moving.Ready(2, kStart + 9 * kMilli));
  CHECK(moving.Stopped(1));
  CHECK(moving.NextNanos(kStart + 9 * kMilli) == kNever);
  moving.HandedOver(1, kStart + 10 * kMilli);
  const int64_t resumes = kStart + (10 + 10 * HandOvers::kPauseFactor) * kMilli;
  CHECK(moving.NextNanos(kStart + 10 * kMilli) == resumes);
  CHECK_FALSE(moving.Ready(2, resumes - 1));
  CHECK_FALSE(moving.Stopped(2));
  CHECK(moving.Ready(2, resumes));
  CHECK(moving.Ready(3, resumes));
  CHECK(moving.NextNanos(resumes) == kNever);
}

TEST_CASE("hand-overs: the pause is bounded") {
  Moving moving;
  CHECK(moving.Ready(0, kStart));
  const int64_t handed_over = kStart + 450 * kMilli;
  moving.HandedOver(0, handed_over);
  CHECK_FALSE(moving.Ready(1, handed_over + HandOvers::kLongestPause - 1));
  CHECK(moving.Ready(1, handed_over + HandOvers::kLongestPause));
}

TEST_CASE("regression: hand-overs: after a stop that is given up the next ones pause, too") {
  Moving moving;
  CHECK(moving.Ready(0, kStart));
  const int64_t given_up = kStart + 501 * kMilli;  // it was not asked for within half a lease
  CHECK_FALSE(moving.Ready(0, given_up));
  CHECK_FALSE(moving.Stopped(0));
  CHECK_FALSE(moving.Ready(1, given_up));
  CHECK_FALSE(moving.Stopped(1));
  CHECK(moving.Ready(1, given_up + HandOvers::kLongestPause));
}

}  // namespace hand_overs_test
}  // namespace verbena::server
