// Links between shards: opening, records, replies, loss.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "tests/server/replication/peer_fixture.h"

namespace verbena::server {
namespace {

using Catch::Matchers::Contains;
using Node = PeerWorld::Node;

constexpr PeerId kB1{11, 1};

int64_t Count(const std::vector<PeerId>& told, const PeerId& peer) {
  return std::count(told.begin(), told.end(), peer);
}

bool Said(const std::vector<std::string>& log, const std::string& text) {
  return std::any_of(log.begin(), log.end(),
                     [&](const auto& line) { return line.find(text) != std::string::npos; });
}

// The data of records: bytes that differ.
struct Source {
  static constexpr size_t kBytes = 512 * 1024;
  Source() {
    auto made = rdma::MemoryBlock::Allocate(kBytes, "test");
    REQUIRE(made.ok());
    block = *std::move(made);
    std::mt19937_64 random(7);
    for (size_t i = 0; i < kBytes; ++i) block->data()[i] = static_cast<std::byte>(random());
  }
  std::shared_ptr<rdma::MemoryBlock> block;
};

// Replicate number `sequence`, which is its cookie, with `bytes` of the source.
bool SendReplicate(Node* from, const PeerId& to, const Source& source, uint64_t sequence,
                   uint32_t bytes) {
  ReplicaHeader header = {};
  header.kind = ReplicaKind::kSettle;
  header.total_bytes = bytes;
  header.version = sequence;
  const Group group = {
      .partition = 0, .index = 0, .epoch = 1, .sequence = sequence, .count = 0, .admission = 0};
  PeerRecord record;
  record.table = 1;
  record.groups = absl::MakeConstSpan(&group, 1);
  record.header = &header;
  if (bytes > 0) record.data = {source.block->data() + 64 * sequence, bytes, source.block.get()};
  record.cookie = sequence;
  return from->shard->links().Send(to, record);
}

bool SendBeacon(Node* from, const PeerId& to, size_t groups, uint64_t cookie) {
  const std::vector<Group> all(groups, Group{});
  PeerRecord record;
  record.type = RecordType::kBeacon;
  record.groups = all;
  record.cookie = cookie;
  return from->shard->links().Send(to, record);
}

bool IsReplicate(const SpyEndpoint::Arrived& record, const Source& source, uint64_t sequence,
                 uint32_t bytes) {
  return record.header.type == RecordType::kReplicate && record.header.table == 1 &&
         record.header.incarnation == kA.server && record.group.sequence == sequence &&
         record.replica.kind == ReplicaKind::kSettle && record.replica.version == sequence &&
         record.data.size() == bytes &&
         std::equal(record.data.begin(), record.data.end(), source.block->data() + 64 * sequence);
}

// Two servers; the second keeps a copy of the first one's partition.
struct Two {
  explicit Two(bool shm) : world(shm), a(world.Add(kA)), b(world.Add(kB)) {
    world.Configure({{kA, {kB}, {}}});
    REQUIRE(world.Until([&] { return a.shard->links().IsOpen(kB); }));
  }
  PeerLinks& links() { return a.shard->links(); }
  PeerWorld world;
  Node& a;
  Node& b;
  Source source;
};

#define VERBENA_SIM_AND_SHM()             \
  const bool shm = GENERATE(false, true); \
  INFO((shm ? "shm" : "sim"))

TEST_CASE("links: without followers nothing is opened, asked or waited for") {
  VERBENA_SIM_AND_SHM();
  PeerWorld world(shm);
  Node& a = world.Add(kA);
  Node& b = world.Add(kB);
  world.Configure({{kA, {}, {}}, {kB, {}, {}}});
  world.Pass(absl::Milliseconds(50));
  CHECK(a.opens + b.opens == 0);
  CHECK(a.shard->NextTimerNanos() == std::numeric_limits<int64_t>::max());
  CHECK_FALSE(a.shard->RunOnce());
  CHECK(a.log.empty());
}

TEST_CASE("links: open to followers and learners, each shard its own, in both directions") {
  VERBENA_SIM_AND_SHM();
  PeerWorld world(shm);
  Node& a = world.Add(kA);
  Node& b = world.Add(kB);
  Node& b1 = world.Add(kB1);
  Node& c = world.Add(kC);
  world.Configure({{kA, {kB}, {kC}}, {kB, {kA}, {}}, {kB1, {kA, kC}, {}}, {kA, {kB}, {}}});
  REQUIRE(world.Until([&] {
    return a.shard->links().IsOpen(kB) && a.shard->links().IsOpen(kC) &&
           b.shard->links().IsOpen(kA) && b1.shard->links().IsOpen(kA) &&
           b1.shard->links().IsOpen(kC);
  }));
  world.Pass(absl::Milliseconds(20));
  CHECK(a.recorder.opened.size() == 2);
  CHECK(world.counters(a).open == 2);
  CHECK(world.counters(a).opened == 2);
  CHECK(world.counters(c).open == 0);
  CHECK(b.opens == 1);
  CHECK(b1.opens == 0);
  CHECK(b.recorder.opened == std::vector<PeerId>{kA});
  CHECK(c.opens == 2);
  CHECK(a.opens == 2);
  const ShardSnapshot snapshot = a.shard->Snapshot();
  REQUIRE(snapshot.lanes.size() == 2);
  for (const v1::LaneStatistics& lane : snapshot.lanes) {
    CHECK(lane.of_server());
    CHECK(lane.worker() == kB.server);
  }
  CHECK(snapshot.lanes[0].source_shard() + snapshot.lanes[1].source_shard() == 1);
}

TEST_CASE("links: records arrive in order and as they were sent, replies have their cookies") {
  VERBENA_SIM_AND_SHM();
  Two two(shm);
  REQUIRE(two.links().max_data_bytes(kB) >= kPeerChunkBytes);
  const auto most = static_cast<uint32_t>(two.links().max_data_bytes(kB));
  const std::vector<uint32_t> sizes = {0, 64, 4, 1000, 3584, 4096, 30000, kPeerChunkBytes, most};
  constexpr uint64_t kManyRecords = 300, kBeacons = 1'000'000;
  uint64_t sent = 0, beacons = 0;
  REQUIRE(two.world.Until([&] {
    while (sent < kManyRecords &&
           SendReplicate(&two.a, kB, two.source, sent + 1, sizes[(sent + 1) % sizes.size()])) {
      ++sent;
      if (sent % 7 == 0 && SendBeacon(&two.a, kB, 3, kBeacons + beacons)) ++beacons;
    }
    return two.a.recorder.replies.size() == kManyRecords + beacons;
  }));
  CHECK(beacons > 10);
  uint64_t next = 0;
  for (const SpyEndpoint::Arrived& record : two.b.endpoint->arrived) {
    if (record.header.type != RecordType::kReplicate) continue;
    ++next;
    REQUIRE(IsReplicate(record, two.source, next, sizes[next % sizes.size()]));
  }
  CHECK(next == kManyRecords);
  std::vector<uint64_t> cookies;
  for (const auto& reply : two.a.recorder.replies) {
    cookies.push_back(reply.cookie);
    CHECK(reply.peer == kB);
    CHECK(reply.status != ReplyStatus::kOk);  // they are of no configuration
  }
  std::sort(cookies.begin(), cookies.end());
  for (uint64_t i = 0; i < kManyRecords; ++i) REQUIRE(cookies[i] == i + 1);
  for (uint64_t i = 0; i < beacons; ++i) REQUIRE(cookies[kManyRecords + i] == kBeacons + i);
  CHECK(two.world.counters(two.a).records == kManyRecords + beacons);
  uint64_t bytes = kManyRecords * sizeof(ReplicaHeader);
  for (uint64_t i = 1; i <= kManyRecords; ++i) bytes += sizes[i % sizes.size()];
  CHECK(two.world.counters(two.a).payload_bytes == bytes);
  CHECK(two.a.recorder.dead.empty());
}

TEST_CASE("links: without room nothing is sent until OnRoom(), but a beacon is") {
  VERBENA_SIM_AND_SHM();
  Two two(shm);
  two.b.paused = true;
  uint64_t sent = 0;
  while (SendReplicate(&two.a, kB, two.source, sent + 1, 64)) ++sent;
  CHECK(sent == PeerLaneConfig().small_slots - 1);
  CHECK(SendBeacon(&two.a, kB, 2, 100));
  CHECK_FALSE(SendBeacon(&two.a, kB, 2, 101));
  // Large ones have slots of their own.
  CHECK(SendReplicate(&two.a, kB, two.source, sent + 1, kPeerChunkBytes));
  two.world.Pass(absl::Milliseconds(20));
  CHECK(two.a.recorder.replies.empty());
  CHECK(two.world.counters(two.a).stalls >= 2);
  two.a.recorder.room.clear();  // writes that ended here
  CHECK_FALSE(SendReplicate(&two.a, kB, two.source, sent + 2, 64));
  two.b.paused = false;
  REQUIRE(two.world.Until([&] { return !two.a.recorder.room.empty(); }));
  REQUIRE(two.world.Until([&] { return two.a.recorder.replies.size() == sent + 2; }));
  CHECK(SendReplicate(&two.a, kB, two.source, sent + 2, 64));
  REQUIRE(two.world.Until([&] { return two.a.recorder.replies.size() == sent + 3; }));
  // A sender that has not been refused gets no OnRoom().
  two.world.Pass(absl::Milliseconds(20));
  two.a.recorder.room.clear();
  CHECK(SendReplicate(&two.a, kB, two.source, sent + 3, 64));
  REQUIRE(two.world.Until([&] { return two.a.recorder.replies.size() == sent + 4; }));
  CHECK(two.a.recorder.room.empty());
}

TEST_CASE("links: a record that fits no slot closes its link, with a log line") {
  VERBENA_SIM_AND_SHM();
  Two two(shm);
  const auto most = static_cast<uint32_t>(two.links().max_data_bytes(kB));
  CHECK_FALSE(SendReplicate(&two.a, kB, two.source, 1, most + 1));
  REQUIRE(two.world.Until([&] { return Count(two.a.recorder.dead, kB) == 1; }));
  CHECK(Said(two.a.log, "fits no slot"));
  REQUIRE(two.world.Until([&] { return Count(two.a.recorder.opened, kB) == 2; }));
}

TEST_CASE("links: memory that cannot be registered now is tried again") {
  VERBENA_SIM_AND_SHM();
  Two two(shm);
  two.a.endpoint->register_status = absl::ResourceExhaustedError("ulimit -l");
  CHECK_FALSE(SendReplicate(&two.a, kB, two.source, 1, 64));
  CHECK(Said(two.a.log, "nothing goes to shard 0 of server 's11' (incarnation 11): ulimit -l"));
  REQUIRE(two.world.Until([&] { return two.a.recorder.room.size() == 1; }));
  two.a.endpoint->register_status = absl::OkStatus();
  CHECK(SendReplicate(&two.a, kB, two.source, 1, 64));
  REQUIRE(two.world.Until([&] { return two.a.recorder.replies.size() == 1; }));
  CHECK(two.a.recorder.dead.empty());
}

TEST_CASE("links: a link that cannot write is closed") {
  VERBENA_SIM_AND_SHM();
  Two two(shm);
  two.a.endpoint->write_status = absl::ResourceExhaustedError("no more work requests");
  CHECK_FALSE(SendReplicate(&two.a, kB, two.source, 1, 64));
  two.a.endpoint->write_status = absl::OkStatus();
  REQUIRE(two.world.Until([&] { return Count(two.a.recorder.dead, kB) == 1; }));
  CHECK(Said(two.a.log, "no more work requests"));
  REQUIRE(two.world.Until([&] { return Count(two.a.recorder.opened, kB) == 2; }));
}

TEST_CASE("links: a lost link is reported once, and opened again") {
  VERBENA_SIM_AND_SHM();
  Two two(shm);
  two.b.paused = true;
  REQUIRE(SendReplicate(&two.a, kB, two.source, 1, kPeerChunkBytes));
  REQUIRE(SendReplicate(&two.a, kB, two.source, 2, 64));
  two.world.CloseLanes(&two.b);
  two.b.paused = false;
  REQUIRE(two.world.Until([&] { return Count(two.a.recorder.dead, kB) == 1; }));
  CHECK(two.a.recorder.replies.empty());
  CHECK_FALSE(SendReplicate(&two.a, kB, two.source, 1, 64));
  REQUIRE(two.world.Until([&] { return Count(two.a.recorder.opened, kB) == 2; }));
  two.b.endpoint->arrived.clear();
  REQUIRE(SendReplicate(&two.a, kB, two.source, 1, 64));
  REQUIRE(two.world.Until([&] { return two.a.recorder.replies.size() == 1; }));
  CHECK(two.a.recorder.replies[0].cookie == 1);
  REQUIRE(two.b.endpoint->arrived.size() == 1);
  CHECK(IsReplicate(two.b.endpoint->arrived[0], two.source, 1, 64));
  CHECK(Count(two.a.recorder.dead, kB) == 1);
  const PeerLinkCounters counters = two.world.counters(two.a);
  CHECK(counters.open == 1);
  CHECK(counters.opened == 2);
  CHECK(counters.lost == 1);
  CHECK(counters.records == 3);
  CHECK(Said(two.a.log, "link to shard 0 of server 's11' (incarnation 11) is open over "));
  CHECK(Said(two.a.log, "no link to shard 0 of server 's11' (incarnation 11): "));
}

TEST_CASE("links: a server that refuses is asked again, less and less often") {
  PeerWorld world(false);
  Node& a = world.Add(kA);
  Node& b = world.Add(kB);
  b.refuse_opens = absl::UnavailableError("not now");
  world.Configure({{kA, {kB}, {}}});
  world.Pass(absl::Seconds(10));
  // 10 ms, doubling up to 1 s, half to all of it.
  CHECK(b.opens > 10);
  CHECK(b.opens < 35);
  CHECK(std::count_if(a.log.begin(), a.log.end(), [](const std::string& line) {
          return line.find("not now") != std::string::npos;
        }) == 1);
  b.refuse_opens = absl::OkStatus();
  REQUIRE(world.Until([&] { return a.shard->links().IsOpen(kB); }));
  CHECK(world.counters(a).lost == 0);
}

TEST_CASE("links: a new incarnation of the peer gets a link of its own") {
  VERBENA_SIM_AND_SHM();
  PeerWorld world(shm);
  Node& a = world.Add(kA);
  Node& b = world.Add(kB);
  world.Configure({{kA, {kB}, {}}});
  REQUIRE(world.Until([&] { return a.shard->links().IsOpen(kB); }));
  const Source source;
  b.paused = true;
  REQUIRE(SendReplicate(&a, kB, source, 1, kPeerChunkBytes));
  world.Remove(&b);
  REQUIRE(world.Until([&] { return Count(a.recorder.dead, kB) == 1; }));
  world.Add(kC);
  world.Configure({{kA, {kC}, {}}});
  REQUIRE(world.Until([&] { return a.shard->links().IsOpen(kC); }));
  CHECK(a.recorder.opened == std::vector<PeerId>{kB, kC});
  CHECK(a.recorder.dead == std::vector<PeerId>{kB});
  CHECK(a.recorder.replies.empty());
  CHECK(world.counters(a).open == 1);
}

TEST_CASE("links: a link to a former replica is closed, the others stay") {
  VERBENA_SIM_AND_SHM();
  PeerWorld world(shm);
  Node& a = world.Add(kA);
  Node& b = world.Add(kB);
  Node& c = world.Add(kC);
  world.Configure({{kA, {kB, kC}, {}}});
  REQUIRE(world.Until([&] { return world.counters(a).open == 2; }));
  const Source source;
  c.paused = true;
  REQUIRE(SendReplicate(&a, kC, source, 1, 64));
  world.Configure({{kA, {kB}, {}}});
  c.paused = false;
  REQUIRE(world.Until([&] { return Count(a.recorder.dead, kC) == 1; }));
  CHECK(world.Until([&] { return c.shard->Snapshot().counters.lanes_open == 0; }));
  world.Pass(absl::Milliseconds(50));
  CHECK(a.recorder.opened.size() == 2);
  CHECK(a.recorder.dead == std::vector<PeerId>{kC});
  CHECK(c.opens == 1);
  CHECK(b.shard->Snapshot().counters.lanes_open == 1);
  const PeerLinkCounters counters = world.counters(a);
  CHECK(counters.open == 1);
  CHECK(counters.lost == 0);
  CHECK(Said(a.log, "it keeps no replicas of this shard's partitions"));
  // And wanted once more.
  world.Configure({{kA, {kB}, {kC}}});
  REQUIRE(world.Until([&] { return Count(a.recorder.opened, kC) == 2; }));
}

TEST_CASE("links: a grant that comes too late is given back") {
  PeerWorld world(false);
  world.Add(kA);
  Node& b = world.Add(kB);
  world.Configure({{kA, {kB}, {}}});
  REQUIRE(world.Until([&] { return b.opens == 1; }));
  world.Configure({{kA, {}, {}}});
  CHECK(world.Until([&] { return b.closes == 1; }));
  world.Pass(absl::Milliseconds(50));
  CHECK(b.opens == 1);
  CHECK(b.shard->Snapshot().lanes.empty());
  CHECK(b.shard->NextTimerNanos() > world.now() + int64_t{1'000'000'000});
}

TEST_CASE("links: a new incarnation of this server does not use links of the old one") {
  VERBENA_SIM_AND_SHM();
  Two two(shm);
  two.a.id.server = 99;
  const std::shared_ptr<v1::ClusterView> view = two.world.View({{{99, 0}, {kB}, {}}});
  SECTION("the links follow the view") { two.links().Follow(view, 99, {kB}); }
  SECTION("the shard follows the view") { two.world.Apply(&two.a, view); }
  // The other server, which does not know of it yet, has not closed anything.
  REQUIRE(two.world.Until([&] { return Count(two.a.recorder.dead, kB) == 1; }));
  two.world.Apply(view);
  REQUIRE(two.world.Until([&] { return Count(two.a.recorder.opened, kB) == 2; }));
  const ShardSnapshot snapshot = two.b.shard->Snapshot();
  REQUIRE(snapshot.lanes.size() == 1);
  CHECK(snapshot.lanes[0].worker() == 99);
}

}  // namespace
}  // namespace verbena::server
