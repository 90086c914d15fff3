// Shards of several servers with replicas of a partition: the answers to workers, and the requests
// to the coordinator, of which the test has only the answers.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "shard/failpoints.h"
#include "tests/server/replication/copies.h"

namespace verbena::server {
namespace {

TEST_CASE("replicas: a push is answered when the follower has it") {
  Copies copies;
  copies.Begin();
  TestWorker& worker = copies.Worker(copies.a);
  REQUIRE(copies.Pushed(&worker, 1, 1) == ReplyStatus::kOk);
  CHECK(Copies::Applied(copies.b) == 3);  // the first were kBegin and kFresh
  copies.b.paused = true;
  const uint64_t second = copies.Push(&worker, 2, 2);
  copies.Pass(kLease / 4);
  CHECK(worker.Answer(second) == nullptr);
  // Nor is it read.
  REQUIRE(copies.Pulled(&worker) == ReplyStatus::kOk);
  CHECK(worker.pulled()[0] == -1);
  copies.b.paused = false;
  REQUIRE(copies.Answer(worker, second) == ReplyStatus::kOk);
  CHECK(Copies::Applied(copies.b) == 4);
  REQUIRE(copies.Pulled(&worker) == ReplyStatus::kOk);
  CHECK(worker.pulled()[kElements - 1] == -3);
  CHECK(Copies::counters(copies.a).sent_records == 4);
  CHECK(Copies::counters(copies.b).applied_records == 4);
  copies.Pass(3 * kLease);
  CHECK(copies.asked.empty());
  CHECK(copies.Pulled(&worker) == ReplyStatus::kOk);
}

TEST_CASE("replicas: a follower that is silent ends the reads, then is given up") {
  Copies copies;
  copies.Begin();
  TestWorker& worker = copies.Worker(copies.a);
  REQUIRE(copies.Pushed(&worker, 1, 1) == ReplyStatus::kOk);
  const int64_t stopped = copies.world.now();
  copies.b.paused = true;
  const uint64_t second = copies.Push(&worker, 2, 2);
  REQUIRE(worker.Await(1, 1000).ok());
  CHECK(copies.Answer(worker, 1000) == ReplyStatus::kOk);
  // The last beacon that it acknowledged is at most as old as the next one is due.
  copies.PassUntil(stopped, kLease * 6 / 10);
  CHECK(copies.Pulled(&worker) == ReplyStatus::kOk);
  copies.PassUntil(stopped, kLease * 8 / 10);
  CHECK(copies.Pulled(&worker) == ReplyStatus::kNotReady);
  REQUIRE(worker.Await(1, 1001).ok());
  CHECK(copies.Answer(worker, 1001) == ReplyStatus::kNotReady);
  CHECK(copies.asked.empty());
  copies.makes = [](const Change&) { return true; };
  REQUIRE(copies.Until([&] { return !copies.asked.empty(); }));
  CHECK(Is(copies.asked[0], kA, Change::DROP_REPLICA, 2, kB.server));
  CHECK(copies.Since(stopped, copies.asked[0]) > kLease * 8 / 10);
  CHECK(copies.Since(stopped, copies.asked[0]) < kLease * 11 / 10);
  REQUIRE(copies.Until([&] { return Copies::counters(copies.a).dropped_copies == 1; }));
  CHECK(copies.Pulled(&worker) == ReplyStatus::kNotReady);
  CHECK(worker.Answer(second) == nullptr);
  // The view without the follower releases the push.
  copies.world.Apply(&copies.a, copies.View({kA, {}, {}}, 3, 0));
  CHECK(copies.Answer(worker, second) == ReplyStatus::kOk);
  CHECK(copies.Pulled(&worker) == ReplyStatus::kOk);
  CHECK(worker.pulled()[0] == -3);
}

TEST_CASE("replicas: a pull that waited for longer than the lease is refused without another") {
  Copies copies;
  copies.Begin();
  TestWorker& worker = copies.Worker(copies.a);
  REQUIRE(worker.Pull(1, 1000).ok());
  copies.Pass(absl::Milliseconds(10));
  copies.b.paused = true;
  const uint64_t first = copies.Push(&worker, 1, 1);
  copies.Pass(kLease * 3 / 2);
  CHECK(worker.Answer(1000) == nullptr);
  // The record is answered before any beacon that was not sent long ago.
  copies.b.paused = false;
  CHECK(copies.Answer(worker, first) == ReplyStatus::kOk);
  CHECK(copies.Answer(worker, 1000) == ReplyStatus::kNotReady);
  copies.Pass(kLease / 4);
  CHECK(copies.Pulled(&worker) == ReplyStatus::kOk);
  CHECK(copies.a.shard->Snapshot().counters.engine.deferred == 0);
}

TEST_CASE("replicas: a change that is not made is asked for again") {
  Copies copies;
  copies.Begin();
  copies.b.paused = true;
  REQUIRE(copies.Until([&] { return copies.asked.size() == 3; }));
  for (const Copies::Asked& asked : copies.asked) {
    CHECK(Is(asked, kA, Change::DROP_REPLICA, 2, kB.server));
  }
  CHECK(Copies::counters(copies.a).dropped_copies == 0);
  // It was only slow.
  copies.b.paused = false;
  copies.Pass(kLease / 4);
  copies.asked.clear();
  copies.Pass(2 * kLease);
  CHECK(copies.asked.empty());
}

TEST_CASE("replicas: an answer of the coordinator that is lost is not waited for") {
  Copies copies;
  copies.Begin();
  copies.b.paused = true;
  copies.world.control().Cut("coordinator", "server-10", true);
  REQUIRE(copies.Until([&] { return copies.asked.size() == 2; }));
  copies.world.control().Cut("coordinator", "server-10", false);
  copies.makes = [](const Change&) { return true; };
  CHECK(copies.Until([&] { return Copies::counters(copies.a).dropped_copies > 0; }));
}

TEST_CASE("replicas: a learner catches up, is admitted, and serves when it is promoted") {
  Copies copies;
  copies.world.Apply(copies.View({kA, {}, {}}, 1, 0));
  TestWorker& worker = copies.Worker(copies.a);
  REQUIRE(copies.Pushed(&worker, 1, 1) == ReplyStatus::kOk);
  REQUIRE(copies.Pushed(&worker, 2, 2) == ReplyStatus::kOk);
  copies.world.Apply(copies.View({kA, {}, {kC}}, 2, 2));
  // Pushes go on meanwhile.
  REQUIRE(copies.Pushed(&worker, 3, 4) == ReplyStatus::kOk);
  REQUIRE(copies.Until([&] { return !copies.asked.empty(); }, kLease));
  CHECK(Is(copies.asked[0], kA, Change::ADMIT, 2, kC.server));
  CHECK(copies.c.shard->Snapshot().replicas.at(0).role() == v1::ReplicaStatistics::ROLE_FOLLOWER);

  SECTION("while it is not known whether it is a follower, it has to answer for reads") {
    copies.Pass(kLease / 4);
    CHECK(copies.Pulled(&worker) == ReplyStatus::kOk);
    const int64_t stopped = copies.world.now();
    copies.c.paused = true;
    copies.PassUntil(stopped, kLease * 8 / 10);
    CHECK(copies.Pulled(&worker) == ReplyStatus::kNotReady);
    copies.c.paused = false;
    copies.Pass(kLease / 4);
    CHECK(copies.Pulled(&worker) == ReplyStatus::kOk);
    copies.asked.clear();
  }
  copies.makes = [](const Change&) { return true; };
  REQUIRE(copies.Until([&] { return Copies::counters(copies.a).admitted == 1; }));
  copies.world.Apply(copies.View({kA, {kC}, {}}, 3, 2));
  REQUIRE(copies.Pushed(&worker, 4, 8) == ReplyStatus::kOk);
  copies.a.paused = true;
  copies.asked.clear();
  REQUIRE(copies.Until([&] { return !copies.asked.empty(); }));
  CHECK(Is(copies.asked[0], kC, Change::PROMOTE, 3, 0));
  copies.world.Apply(&copies.c, copies.View({kC, {}, {}}, 4, 0, 2));
  TestWorker& other = copies.Worker(copies.c, 2);
  REQUIRE(copies.Pulled(&other) == ReplyStatus::kOk);
  CHECK(other.pulled()[0] == -15);
  CHECK(copies.Pushed(&other, 4, 8) == ReplyStatus::kDuplicate);
  CHECK(copies.Pushed(&other, 5, 16) == ReplyStatus::kOk);
}

TEST_CASE("replicas: a learner of a planned move is sent so many bytes a second at most") {
  const bool planned = GENERATE(true, false);
  Copies copies;
  copies.world.Apply(copies.View({kA, {}, {}}, 1, 0));
  TestWorker& worker = copies.Worker(copies.a);
  REQUIRE(copies.Pushed(&worker, 1, 1) == ReplyStatus::kOk);
  const uint64_t bytes = copies.a.shard->PartitionContents().at(0).bytes();
  REQUIRE(bytes > 0);
  auto view = copies.View({kA, {}, {kC}}, 2, 2);
  view->set_replicas(planned ? 1 : 2);
  // A record may go beyond the limit; what comes next waits for it.
  view->set_move_rate(bytes / 4);
  const int64_t begun = copies.world.now();
  copies.world.Apply(view);
  REQUIRE(copies.Until([&] { return !copies.asked.empty(); }));
  CHECK(Is(copies.asked[0], kA, Change::ADMIT, 2, kC.server));
  const absl::Duration took = copies.Since(begun, copies.asked[0]);
  CAPTURE(took, bytes);
  // Pushes are not limited, whatever is left to copy.
  CHECK(copies.Pushed(&worker, 2, 2) == ReplyStatus::kOk);
  // Of the virtual clock.
  CHECK((took > 3 * kLease) == planned);
}

TEST_CASE("replicas: a learner that does not answer is given up, and reads go on meanwhile") {
  Copies copies;
  copies.c.paused = true;
  const int64_t start = copies.world.now();
  copies.world.Apply(copies.View({kA, {}, {kC}}, 2, 2));
  TestWorker& worker = copies.Worker(copies.a);
  // There is little to copy: the next push would make it a follower without a gap.
  const uint64_t first = copies.Push(&worker, 1, 1);
  REQUIRE(copies.Until([&] { return !copies.asked.empty(); }));
  CHECK(Is(copies.asked[0], kA, Change::DROP_REPLICA, 2, kC.server));
  CHECK(copies.Since(start, copies.asked[0]) >= kLease);
  CHECK(copies.Since(start, copies.asked[0]) < kLease * 11 / 10);
  CHECK(copies.Pulled(&worker) == ReplyStatus::kOk);
  copies.world.Apply(&copies.a, copies.View({kA, {}, {}}, 3, 0));
  CHECK(copies.Answer(worker, first) == ReplyStatus::kOk);
}

TEST_CASE("replicas: a follower that hears nothing asks to be the primary, and is") {
  Copies copies;
  copies.Begin();
  TestWorker& worker = copies.Worker(copies.a);
  REQUIRE(copies.Pushed(&worker, 1, 1) == ReplyStatus::kOk);
  const int64_t stopped = copies.world.now();
  bool crashed = false;
  SECTION("it does not run") { copies.a.paused = true; }
  SECTION("it is gone") {
    crashed = true;
    copies.world.Remove(&copies.a);
  }
  copies.makes = [](const Change&) { return true; };
  REQUIRE(copies.Until([&] { return Copies::counters(copies.b).promotions == 1; }));
  CHECK(Is(copies.asked[0], kB, Change::PROMOTE, 2, 0));
  CHECK(copies.Since(stopped, copies.asked[0]) > kLease * 8 / 10);
  CHECK(copies.Since(stopped, copies.asked[0]) < kLease * 11 / 10);
  const auto view = copies.View({kB, {}, {kC}}, 3, 3, 2);
  copies.world.Apply(&copies.b, view);
  copies.world.Apply(&copies.c, view);
  TestWorker& other = copies.Worker(copies.b, 2);
  REQUIRE(copies.Pulled(&other) == ReplyStatus::kOk);
  CHECK(other.pulled()[0] == -1);
  CHECK(copies.Pushed(&other, 1, 1) == ReplyStatus::kDuplicate);
  CHECK(copies.Pushed(&other, 2, 2) == ReplyStatus::kOk);
  // And gets a copy in turn.
  copies.asked.clear();
  REQUIRE(copies.Until([&] { return !copies.asked.empty(); }));
  CHECK(Is(copies.asked[0], kB, Change::ADMIT, 3, kC.server));
  if (crashed) return;
  // The old primary, back without having heard of it, answers nothing.
  const uint64_t late = copies.Push(&worker, 2, 32);
  copies.a.paused = false;
  CHECK(copies.Pulled(&worker) == ReplyStatus::kNotReady);
  copies.Pass(3 * kLease);
  CHECK(worker.Answer(late) == nullptr);
  CHECK(copies.Pulled(&worker) == ReplyStatus::kNotReady);
  copies.world.Apply(&copies.a, view);
  CHECK(copies.Answer(worker, late) == ReplyStatus::kWrongEpoch);
  REQUIRE(copies.Pulled(&other) == ReplyStatus::kOk);
  CHECK(other.pulled()[0] == -3);
}

TEST_CASE("replicas: a follower that is promoted early waits until its own lease has passed") {
  Copies copies;
  copies.Begin();
  TestWorker& worker = copies.Worker(copies.a);
  REQUIRE(copies.Pushed(&worker, 1, 1) == ReplyStatus::kOk);
  const int64_t stopped = copies.world.now();
  copies.a.paused = true;
  copies.world.Apply(&copies.b, copies.View({kB, {}, {}}, 3, 0, 2));
  TestWorker& other = copies.Worker(copies.b, 2);
  copies.PassUntil(stopped, kLease * 8 / 10);
  CHECK(copies.Pulled(&other) == ReplyStatus::kNotReady);
  CHECK(copies.Pushed(&other, 2, 2) == ReplyStatus::kNotReady);
  copies.PassUntil(stopped, kLease + absl::Milliseconds(1));
  CHECK(copies.Pulled(&other) == ReplyStatus::kOk);
  CHECK(other.pulled()[0] == -1);
  CHECK(copies.Pushed(&other, 2, 2) == ReplyStatus::kOk);
}

// The learner did not grant the lease. As a follower it could be promoted, and would not wait.
TEST_CASE(
    "regression: replicas: no learner is admitted before the former primary's lease has passed") {
  Copies copies;
  copies.Begin();
  TestWorker& worker = copies.Worker(copies.a);
  REQUIRE(copies.Pushed(&worker, 1, 1) == ReplyStatus::kOk);
  // The next primary is not heard by the former one's follower, and the former one reads on.
  const int64_t stopped = copies.world.now();
  copies.a.paused = true;
  copies.world.Apply(&copies.b, copies.View({kB, {}, {kC}}, 3, 3, 2));
  copies.world.Apply(&copies.c, copies.View({kB, {}, {kC}}, 3, 3, 2));
  const auto has_everything = [&] {
    const auto replicas = copies.c.shard->Snapshot().replicas;
    return !replicas.empty() && replicas[0].role() == v1::ReplicaStatistics::ROLE_FOLLOWER;
  };
  REQUIRE(copies.Until(has_everything, kLease / 2));
  copies.PassUntil(stopped, kLease * 8 / 10);
  CHECK(copies.asked.empty());
  REQUIRE(copies.Until([&] { return !copies.asked.empty(); }, kLease));
  CHECK(Is(copies.asked[0], kB, Change::ADMIT, 3, kC.server));
}

TEST_CASE("replicas: a record refused for an older view is sent again") {
  Copies copies;
  copies.Begin();
  // The follower is one anew, and does not know it yet.
  const auto view = copies.View({kA, {kB}, {}}, 5, 5);
  copies.world.Apply(&copies.a, view);
  TestWorker& worker = copies.Worker(copies.a);
  const uint64_t first = copies.Push(&worker, 1, 1);
  const uint64_t second = copies.Push(&worker, 2, 2);
  copies.Pass(kLease / 4);
  CHECK(worker.Answer(first) == nullptr);
  CHECK(Copies::counters(copies.a).refused > 1);
  CHECK(Copies::counters(copies.a).resent > 1);
  copies.world.Apply(&copies.b, view);
  REQUIRE(copies.Until([&] { return worker.Answer(second) != nullptr; }, kLease / 4));
  CHECK(copies.Answer(worker, first) == ReplyStatus::kOk);
  CHECK(copies.Answer(worker, second) == ReplyStatus::kOk);
  CHECK(copies.asked.empty());
  // Nothing is refused any more.
  const uint64_t resent = Copies::counters(copies.a).resent;
  copies.Pass(kLease);
  CHECK(Copies::counters(copies.a).resent == resent);
  REQUIRE(copies.Pulled(&worker) == ReplyStatus::kOk);
  CHECK(worker.pulled()[0] == -3);
}

TEST_CASE("replicas: records in flight on a lost link are sent again") {
  Copies copies;
  copies.Begin();
  TestWorker& worker = copies.Worker(copies.a);
  copies.b.paused = true;
  const uint64_t first = copies.Push(&worker, 1, 1);
  copies.Pass(absl::Milliseconds(10));
  copies.world.CloseLanes(&copies.b);
  copies.b.paused = false;
  CHECK(copies.Answer(worker, first) == ReplyStatus::kOk);
  CHECK(copies.world.counters(copies.a).lost == 1);
  CHECK(Copies::Applied(copies.b) == 3);
  copies.Pass(2 * kLease);
  CHECK(copies.asked.empty());
}

TEST_CASE("replicas: a replica that cannot go on is dropped at once") {
  Copies copies;
  const auto view = copies.View({kA, {kB}, {}}, 2, 2);
  copies.world.Apply(&copies.a, view);
  // Its table is another one.
  auto other = std::make_shared<v1::ClusterView>(*view);
  other->mutable_tables(0)->mutable_spec()->set_shape(0, 2 * kElements);
  copies.world.Apply(&copies.b, other);
  REQUIRE(copies.Until([&] { return copies.a.shard->links().IsOpen(kB); }));
  TestWorker& worker = copies.Worker(copies.a);
  const int64_t start = copies.world.now();
  const uint64_t first = copies.Push(&worker, 1, 1);
  REQUIRE(copies.Until([&] { return !copies.asked.empty(); }, kLease / 8));
  CHECK(Is(copies.asked[0], kA, Change::DROP_REPLICA, 2, kB.server));
  CHECK(copies.Since(start, copies.asked[0]) < kLease / 8);
  CHECK(worker.Answer(first) == nullptr);
  copies.world.Apply(&copies.a, copies.View({kA, {}, {}}, 3, 0));
  CHECK(copies.Answer(worker, first) == ReplyStatus::kOk);
}

TEST_CASE("replicas: a replica that answers, but takes no record for a lease, is dropped") {
  Copies copies;
  const auto view = copies.View({kA, {kB}, {}}, 2, 2);
  copies.world.Apply(&copies.a, view);
  // It has not heard of the table.
  auto older = std::make_shared<v1::ClusterView>(*view);
  older->clear_tables();
  copies.world.Apply(&copies.b, older);
  REQUIRE(copies.Until([&] { return copies.a.shard->links().IsOpen(kB); }));
  copies.Pass(2 * kLease);
  CHECK(copies.asked.empty());
  TestWorker& worker = copies.Worker(copies.a);
  const int64_t start = copies.world.now();
  const uint64_t first = copies.Push(&worker, 1, 1);
  REQUIRE(copies.Until([&] { return !copies.asked.empty(); }));
  CHECK(Is(copies.asked[0], kA, Change::DROP_REPLICA, 2, kB.server));
  CHECK(copies.Since(start, copies.asked[0]) >= kLease);
  CHECK(copies.Since(start, copies.asked[0]) < kLease * 12 / 10);
  CHECK(worker.Answer(first) == nullptr);
  // It keeps its lease meanwhile.
  CHECK(copies.Pulled(&worker) == ReplyStatus::kOk);
}

// A follower that answers every record with "no room now", until the end of the scope.
struct BusyReplicas {
  BusyReplicas() { shard::failpoints().refuse_replicas = true; }
  ~BusyReplicas() { shard::failpoints().refuse_replicas = false; }
};

// Whether a follower without room for three leases is kept, and takes the push afterwards.
bool KeepsBusyReplica() {
  Copies copies;
  copies.Begin();
  TestWorker& worker = copies.Worker(copies.a);
  uint64_t first = 0;
  {
    const BusyReplicas busy;
    first = copies.Push(&worker, 1, 1);
    copies.Pass(3 * kLease);
    CHECK(worker.Answer(first) == nullptr);
    CHECK(copies.Pulled(&worker) == ReplyStatus::kOk);
    if (!copies.asked.empty()) return false;
  }
  CHECK(copies.Answer(worker, first) == ReplyStatus::kOk);
  CHECK(Copies::Applied(copies.b) == 3);
  copies.Pass(2 * kLease);
  return copies.asked.empty();
}

TEST_CASE("regression: replicas: a replica without room for some leases is kept") {
  CHECK(KeepsBusyReplica());
  shard::failpoints().drop_the_busy = true;
  const bool keeps = KeepsBusyReplica();
  shard::failpoints().drop_the_busy = false;
  CHECK_FALSE(keeps);
}

TEST_CASE(
    "regression: replicas: beacons have room on a lane with one small slot and much to send") {
  Copies copies(1);
  copies.Begin();
  TestWorker& worker = copies.Worker(copies.a);
  std::fill_n(worker.values(), kElements, 1.0f);
  uint64_t pushes = 0;
  const int64_t end = copies.world.now() + absl::ToInt64Nanoseconds(kLease * 5 / 4);
  copies.Until([&] {
    // As many as there are slots for.
    while (worker.lane().CanPost(1, kElements * sizeof(float))) {
      REQUIRE(worker.Push(pushes + 1, 1'000'000 + pushes).ok());
      ++pushes;
    }
    return copies.world.now() >= end || !copies.asked.empty();
  });
  CHECK(copies.asked.empty());
  CHECK(pushes > 1000);
  REQUIRE(copies.Until([&] { return worker.lane().CanPost(1, kElements * sizeof(float)); }));
  CHECK(copies.Pulled(&worker) == ReplyStatus::kOk);
}

TEST_CASE("replicas: a replica that never has room does not delay pushes for ever") {
  Copies copies;
  copies.Begin();
  TestWorker& worker = copies.Worker(copies.a);
  const BusyReplicas busy;
  const int64_t start = copies.world.now();
  const uint64_t first = copies.Push(&worker, 1, 1);
  copies.makes = [](const Change&) { return true; };
  REQUIRE(copies.Until([&] { return Copies::counters(copies.a).dropped_copies == 1; }));
  CHECK(Is(copies.asked[0], kA, Change::DROP_REPLICA, 2, kB.server));
  const ReplicaPatience patience;
  CHECK(copies.Since(start, copies.asked[0]) >= patience.no_room_leases * kLease);
  CHECK(copies.Since(start, copies.asked[0]) < (patience.no_room_leases + 1) * kLease);
  copies.world.Apply(&copies.a, copies.View({kA, {}, {}}, 3, 0));
  CHECK(copies.Answer(worker, first) == ReplyStatus::kOk);
}

TEST_CASE("regression: replicas: a primary that did not run gives no replica up for that time") {
  Copies copies;
  copies.Begin();
  TestWorker& worker = copies.Worker(copies.a);
  copies.b.paused = true;
  const uint64_t first = copies.Push(&worker, 1, 1);
  copies.Pass(absl::Milliseconds(10));
  copies.a.paused = true;
  copies.b.paused = false;
  copies.Pass(2 * kLease);
  copies.asked.clear();  // the follower may ask for a promotion
  copies.a.paused = false;
  CHECK(copies.Answer(worker, first) == ReplyStatus::kOk);
  const auto dropped = [](const Copies::Asked& asked) {
    return asked.change.kind() == Change::DROP_REPLICA;
  };
  copies.Pass(kLease / 4);
  CHECK(std::none_of(copies.asked.begin(), copies.asked.end(), dropped));
}

}  // namespace
}  // namespace verbena::server
