// The other end of links: the servers to which a shard grants lanes, and the records they may
// carry.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "rdma/lane/lane_request.h"
#include "rdma/lane/worker_lane.h"
#include "tests/server/replication/peer_fixture.h"

namespace verbena::server {
namespace {

using Catch::Matchers::Contains;
using Node = PeerWorld::Node;

absl::Status Opens(PeerWorld* world, Node* node, uint64_t opener) {
  return node->shard->OpenLane(world->Request({opener, 0}, node->id)).status();
}

TEST_CASE("lanes of servers: granted to those of the view") {
  PeerWorld world(false);
  Node& a = world.Add(kA);
  Node& b = world.Add(kB);
  world.Configure({{kA, {kB}, {}}});
  CHECK(Opens(&world, &b, kA.server).ok());
  // A server without replicas may ask, too: its view may be newer.
  CHECK(Opens(&world, &a, kB.server).ok());

  absl::Status status = Opens(&world, &b, 9);
  CHECK(status.code() == absl::StatusCode::kNotFound);
  status = Opens(&world, &b, kB.server);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Contains("incarnation 11 is this server itself"));
  v1::OpenLaneRequest request = world.Request({9, 0}, kB);
  request.set_revision(request.revision() + 1);
  CHECK(absl::IsUnavailable(b.shard->OpenLane(request).status()));
  request = world.Request(kA, {12, 0});
  CHECK(absl::IsFailedPrecondition(b.shard->OpenLane(request).status()));
}

TEST_CASE("lanes of servers: another incarnation is refused until the view has it") {
  const bool shm = GENERATE(false, true);
  PeerWorld world(shm);
  Node& a = world.Add(kA);
  Node& b = world.Add(kB);
  const std::shared_ptr<v1::ClusterView> old = world.View({});
  world.Apply(&b, old);
  a.id.server = 20;
  const std::shared_ptr<v1::ClusterView> view = world.View({{{20, 0}, {kB}, {}}});
  world.Apply(&a, view);
  CHECK(world.Until([&] { return b.opens > 1; }));
  CHECK(b.shard->Snapshot().lanes.empty());
  CHECK_FALSE(a.shard->links().IsOpen(kB));
  world.Apply(&b, view);
  CHECK(world.Until([&] { return a.shard->links().IsOpen(kB); }));
  // The old incarnation is refused now.
  CHECK(absl::IsNotFound(Opens(&world, &b, kA.server)));
}

TEST_CASE("lanes of servers: a silent server keeps its lanes to its partitions' replicas") {
  PeerWorld world(false);
  Node& a = world.Add(kA);
  Node& b = world.Add(kB);
  world.Configure({{kA, {kB}, {}}});
  REQUIRE(world.Until([&] { return a.shard->links().IsOpen(kB); }));
  world.Apply(&b, world.View({{kA, {kB}, {}}}, {kA.server}));
  world.Pass(absl::Milliseconds(50));
  CHECK(a.recorder.dead.empty());
  CHECK(Opens(&world, &b, kA.server).ok());
  SECTION("another one has taken over") {
    world.Apply(&b, world.View({{kB, {}, {}}}, {kA.server}));
    const absl::Status status = Opens(&world, &b, kA.server);
    CHECK(status.code() == absl::StatusCode::kNotFound);
    CHECK_THAT(std::string(status.message()), Contains("server 's10' (incarnation 10) is silent"));
  }
  SECTION("it is not in the cluster any more") {
    auto view = world.View({{kB, {}, {}}});
    view->mutable_servers()->DeleteSubrange(0, 1);
    world.Apply(&b, view);
  }
  REQUIRE(world.Until([&] { return a.recorder.dead.size() == 1; }));
  CHECK(b.shard->Snapshot().lanes.empty());
}

// A lane whose opener sends any record.
struct RawLane {
  RawLane(PeerWorld* on, Node* node, uint64_t opener)
      : world(on), to(node), endpoint(on->NewEndpoint("raw")) {
    const auto granted = node->shard->OpenLane(on->Request({opener, 3}, node->id));
    REQUIRE(granted.ok());
    auto opened = rdma::WorkerLane::Open(endpoint.get(), *rdma::TicketOf(*granted, opener));
    REQUIRE(opened.ok());
    lane = *std::move(opened);
    REQUIRE(Until([&] { return lane->state() == rdma::WorkerLane::State::kOpen; }));
  }
  bool Until(const std::function<bool()>& condition) {
    return world->Until([&] {
      rdma::ConnectionEvent event;
      while (endpoint->PollEvents({&event, 1}) == 1) lane->OnEvent(event);
      rdma::Completion completion;
      while (endpoint->Poll({&completion, 1}) == 1) lane->OnCompletion(completion, &answers);
      lane->RunOnce();
      return condition();
    });
  }
  void Post(RecordType type, absl::Span<const std::byte> prefix = {}) {
    const Group group = {
        .partition = 0, .index = 0, .epoch = 1, .sequence = 1, .count = 0, .admission = 0};
    rdma::WorkerLane::Request request;
    request.header.type = type;
    request.header.table = 1;
    request.groups = absl::MakeConstSpan(&group, 1);
    request.prefix = prefix;
    request.cookie = 1;
    REQUIRE(lane->Post(request).ok());
  }
  bool dead() const { return lane->state() == rdma::WorkerLane::State::kDead; }

  PeerWorld* world;
  Node* to;
  std::unique_ptr<rdma::Endpoint> endpoint;
  std::unique_ptr<rdma::WorkerLane> lane;
  std::vector<rdma::WorkerLane::Answer> answers;
};

absl::Span<const std::byte> Bytes(const ReplicaHeader& header) {
  return {reinterpret_cast<const std::byte*>(&header), sizeof(header)};
}

void ExpectClosed(RawLane* raw, const std::string& says) {
  REQUIRE(raw->Until([&] { return raw->dead(); }));
  CHECK(raw->answers.empty());
  REQUIRE_FALSE(raw->to->log.empty());
  CHECK_THAT(raw->to->log.back(), Contains(says));
  CHECK(raw->Until([&] { return raw->to->shard->Snapshot().lanes.empty(); }));
}

TEST_CASE("lanes of servers carry replicates and beacons alone, workers' lanes all else") {
  const bool shm = GENERATE(false, true);
  PeerWorld world(shm);
  Node& b = world.Add(kB);
  world.Add(kA);
  world.Configure({{kA, {}, {}}});
  ReplicaHeader header = {};
  header.kind = ReplicaKind::kSettle;
  SECTION("a server's") {
    RawLane raw(&world, &b, kA.server);
    raw.Post(RecordType::kReplicate, Bytes(header));
    REQUIRE(raw.Until([&] { return raw.answers.size() == 1; }));
    CHECK(raw.answers[0].reply.status == ReplyStatus::kWrongEpoch);  // of another shard's partition
    raw.answers.clear();
    raw.Post(RecordType::kBeacon);
    REQUIRE(raw.Until([&] { return raw.answers.size() == 1; }));
    CHECK(raw.answers[0].reply.status == ReplyStatus::kWrongEpoch);
    raw.answers.clear();
    const auto type = GENERATE(RecordType::kEndStep, RecordType::kAwait, RecordType::kNorms);
    raw.Post(type);
    ExpectClosed(&raw, "allowed on a server's lane: replicate, beacon");
    CHECK_THAT(b.log.back(), Contains("of shard 3 of server 's10' (incarnation 10)"));
  }
  SECTION("a server's, with a malformed replicate record") {
    RawLane raw(&world, &b, kA.server);
    header.reserved0 = 1;
    raw.Post(RecordType::kReplicate, Bytes(header));
    ExpectClosed(&raw, "reserved0");
  }
  SECTION("a worker's") {
    const bool beacon = GENERATE(false, true);
    RawLane raw(&world, &b, kPeerWorker);
    raw.Post(RecordType::kAwait);
    REQUIRE(raw.Until([&] { return raw.answers.size() == 1; }));
    raw.answers.clear();
    if (beacon) {
      raw.Post(RecordType::kBeacon);
    } else {
      raw.Post(RecordType::kReplicate, Bytes(header));
    }
    ExpectClosed(&raw, "allowed on a worker's lane: push, pull, end-step, await, ");
    CHECK_THAT(b.log.back(), Contains("of worker 500"));
  }
}

TEST_CASE("lanes of servers: a shard's next lane takes the place of its last, not of another's") {
  PeerWorld world(false);
  Node& b = world.Add(kB);
  world.Add(kA);
  world.Configure({{kA, {}, {}}});
  RawLane first(&world, &b, kA.server);
  RawLane worker(&world, &b, kPeerWorker);
  RawLane second(&world, &b, kA.server);
  REQUIRE(first.Until([&] { return first.dead(); }));
  CHECK(worker.lane->state() == rdma::WorkerLane::State::kOpen);
  CHECK(b.shard->Snapshot().lanes.size() == 2);
}

}  // namespace
}  // namespace verbena::server
