// Which partitions of planned moves stop at one time, with the time given by hand.
#include "server/replication/hand_overs.h"

#include <catch2/catch.hpp>
#include <vector>

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

  // Whether all of it is at the heir.
  bool Ready(uint32_t partition, int64_t now, bool may_ask = true) {
    Group group = {};
    group.partition = partition;
    group.epoch = 1;
    group.sequence = 3;
    leases_.Acknowledged(kHeir, group, now);
    return hand_overs_.Ready(partition, {now, may_ask}, leases_, engine_.engine.get(), now) ==
           kHeir.server;
  }
  // The heir has not answered the records of the partition.
  void KeepBusy(uint32_t partition) {
    v1::Replica* const follower =
        engine_.view.mutable_partitions(static_cast<int>(partition))->add_followers();
    follower->set_server(kHeir.server);
    follower->set_since(3);
    engine_.view.set_revision(engine_.view.revision() + 1);
    REQUIRE(engine_.engine->ApplyView(engine_.view).ok());
  }
  void AnswerOf(uint32_t partition) {
    while (engine_.engine->replicas().Take(&records_, 16)) {
    }
    for (const shard::ReplicaRecord& record : records_) {
      if (record.group.partition != partition) continue;
      engine_.engine->replicas().Answered(record.to, record.group.partition, record.group.sequence,
                                          ReplyStatus::kOk);
    }
  }
  void Asked(uint32_t partition, int64_t now) { hand_overs_.Asked(partition, now); }
  int64_t AskNanos(int64_t now) const { return hand_overs_.AskNanos(now); }
  bool waits_for_call() const { return hand_overs_.waits_for_call(); }
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
  std::vector<shard::ReplicaRecord> records_;  // that were sent
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

TEST_CASE("hand-overs: none stops while a call to the coordinator is in flight") {
  Moving moving;
  CHECK_FALSE(moving.Ready(0, kStart, /*may_ask=*/false));
  CHECK_FALSE(moving.Stopped(0));
  // Its end is the next occasion.
  CHECK(moving.waits_for_call());
  CHECK(moving.Ready(0, kStart + kMilli));
  CHECK(moving.Stopped(0));
}

TEST_CASE("hand-overs: a partition is not asked for again before its view may have come") {
  Moving moving;
  CHECK(moving.Ready(0, kStart));
  moving.Asked(0, kStart);
  CHECK_FALSE(moving.Ready(0, kStart + kMilli));
  CHECK(moving.Stopped(0));
  // The call may be lost.
  CHECK(moving.Ready(0, kStart + 63 * kMilli));
}

TEST_CASE("hand-overs: those that stopped together are asked for in one call") {
  Moving moving;
  for (const uint32_t partition : {0u, 1u}) moving.KeepBusy(partition);
  CHECK_FALSE(moving.Ready(0, kStart));
  CHECK_FALSE(moving.Ready(1, kStart));
  CHECK(moving.AskNanos(kStart) == kNever);
  moving.AnswerOf(0);
  const int64_t later = kStart + 4 * kMilli;
  CHECK(moving.Ready(0, later));
  CHECK_FALSE(moving.Ready(1, later));
  CHECK(moving.AskNanos(later) > later);
  moving.AnswerOf(1);
  CHECK(moving.Ready(1, later + kMilli));
  CHECK(moving.AskNanos(later + kMilli) == later + kMilli);
}

TEST_CASE("hand-overs: one that is ready waits for another no longer than it took") {
  Moving moving;
  for (const uint32_t partition : {0u, 1u}) moving.KeepBusy(partition);
  CHECK_FALSE(moving.Ready(0, kStart));
  CHECK_FALSE(moving.Ready(1, kStart));
  CHECK(moving.AskNanos(kStart) == kNever);
  moving.AnswerOf(0);
  CHECK(moving.Ready(0, kStart + 4 * kMilli));
  CHECK_FALSE(moving.Ready(1, kStart + 4 * kMilli));
  CHECK(moving.waits_for_call());
  CHECK(moving.AskNanos(kStart + 4 * kMilli) == kStart + 8 * kMilli);
  CHECK(moving.AskNanos(kStart + 9 * kMilli) == kStart + 9 * kMilli);
}

}  // namespace hand_overs_test
}  // namespace verbena::server
