// Three servers with copies of one partition, workers with lanes to them, and a coordinator that is
// not there but for its answers.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SERVER_REPLICATION_COPIES_H_
#define VERBENA_TESTS_SERVER_REPLICATION_COPIES_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/replication/replication.h"
#include "tests/server/replication/peer_fixture.h"
#include "tests/server/shard_executor_fixture.h"

namespace verbena::server {

using Change = v1::ConfigurationChange;
using Node = PeerWorld::Node;

inline constexpr char kCoordinator[] = "coordinator:1";
inline constexpr absl::Duration kLease = absl::Seconds(1);

// Three servers, one partition, workers with a lane to a server each.
class Copies {
 public:
  struct Asked {
    int64_t at = 0;
    uint64_t server = 0;  // the caller
    Change change;
  };
  const uint32_t small_slots;  // of lanes to B
  PeerWorld world{false};
  Node& a = world.Add(kA, true);
  Node& b = world.Add(kB, true, small_slots);
  Node& c = world.Add(kC, true);
  std::vector<Asked> asked;
  std::function<bool(const Change&)> makes = [](const Change&) { return false; };

  Copies() : Copies(PeerLaneConfig().small_slots) {}
  explicit Copies(uint32_t small) : small_slots(small) {
    world.control().Serve(kCoordinator, [this](const std::string& method, const std::string& bytes,
                                               test::SimControl::Respond respond) {
      Reconfigure(method, bytes, std::move(respond));
    });
    for (Node* node : {&a, &b, &c}) node->shard->SetCoordinator(kCoordinator);
    world.Pass(absl::Milliseconds(10));
  }

  // A view of this configuration; copies are such `since` it.
  std::shared_ptr<v1::ClusterView> View(const PeerWorld::Configuration& wanted,
                                        uint64_t configuration, uint64_t since,
                                        uint64_t epoch = 1) {
    std::shared_ptr<v1::ClusterView> view = world.View({wanted});
    view->set_lease_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(kLease)));
    v1::Partition* partition = view->mutable_partitions(0);
    partition->set_epoch(epoch);
    partition->set_configuration(configuration);
    for (v1::Replica& copy : *partition->mutable_followers()) copy.set_since(since);
    for (v1::Replica& copy : *partition->mutable_learners()) copy.set_since(since);
    return view;
  }
  // A is the primary, B its follower.
  void Begin() {
    world.Apply(View({kA, {kB}, {}}, 2, 2));
    REQUIRE(Until([&] { return a.shard->links().IsOpen(kB); }));
    Pass(kLease / 4);
  }

  TestWorker& Worker(const Node& node, uint64_t epoch = 1) {
    workers_.push_back(std::make_unique<TestWorker>(
        &world.network(), "worker-" + std::to_string(workers_.size()), kPeerWorker));
    TestWorker& worker = *workers_.back();
    worker.set_epoch(epoch);
    const auto granted = node.shard->OpenLane(world.Request({kPeerWorker, 0}, node.id));
    INFO(granted.status());
    REQUIRE(granted.ok());
    worker.Open(*granted);
    REQUIRE(Until([&] { return worker.open(); }));
    return worker;
  }
  bool Until(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(30)) {
    return world.Until(
        [&] {
          for (const auto& worker : workers_) worker->Pump();
          return condition();
        },
        limit);
  }
  void Pass(absl::Duration time) {
    Until([] { return false; }, time);
  }
  // Until that long after `start`.
  void PassUntil(int64_t start, absl::Duration time) {
    Pass(absl::Nanoseconds(start - world.now()) + time);
  }

  uint64_t Push(TestWorker* worker, uint64_t sequence, float value) {
    std::fill_n(worker->values(), kElements, value);
    REQUIRE(worker->Push(sequence, ++cookies_).ok());
    return cookies_;
  }
  ReplyStatus Answer(const TestWorker& worker, uint64_t cookie) {
    REQUIRE(Until([&] { return worker.Answer(cookie) != nullptr; }));
    return worker.Answer(cookie)->status;
  }
  ReplyStatus Pushed(TestWorker* worker, uint64_t sequence, float value) {
    return Answer(*worker, Push(worker, sequence, value));
  }
  ReplyStatus Pulled(TestWorker* worker) {
    REQUIRE(worker->Pull(0, ++cookies_).ok());
    return Answer(*worker, cookies_);
  }
  // The last record of the partition that the copy has applied.
  static uint64_t Applied(const Node& node) {
    const ShardSnapshot snapshot = node.shard->Snapshot();
    return snapshot.replicas.empty() ? 0 : snapshot.replicas[0].sequence();
  }
  static ReplicationCounters counters(const Node& node) {
    return node.shard->Snapshot().counters.replication;
  }
  absl::Duration Since(int64_t start, const Asked& one) const {
    return absl::Nanoseconds(one.at - start);
  }

 private:
  void Reconfigure(const std::string& method, const std::string& bytes,
                   test::SimControl::Respond respond) {
    REQUIRE(method == "/verbena.v1.Cluster/Reconfigure");
    v1::ReconfigureRequest request;
    REQUIRE(request.ParseFromString(bytes));
    CHECK(ids_.insert(request.request_id()).second);
    v1::ReconfigureResponse response;
    for (const Change& change : request.changes()) {
      asked.push_back({world.now(), request.incarnation(), change});
      response.add_made(makes(change));
    }
    respond(response.SerializeAsString());
  }

  std::vector<std::unique_ptr<TestWorker>> workers_;
  std::set<std::string> ids_;
  uint64_t cookies_ = 0;
};

inline bool Is(const Copies::Asked& asked, const PeerId& who, Change::Kind kind,
               uint64_t configuration, uint64_t of) {
  return asked.server == who.server && asked.change.kind() == kind &&
         asked.change.partition() == 0 && asked.change.configuration() == configuration &&
         asked.change.server() == of;
}

}  // namespace verbena::server

#endif  // VERBENA_TESTS_SERVER_REPLICATION_COPIES_H_
