// Links under faults: the properties that a primary relies on, for many seeds.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <random>

#include "tests/rdma/lane_world.h"
#include "tests/server/replication/peer_fixture.h"

namespace verbena::server {
namespace peer_faults_test {

using Node = PeerWorld::Node;

constexpr PeerId kA{10, 0}, kB{11, 0};
constexpr uint64_t kRecords = 120;
constexpr size_t kAreas = 64, kAreaBytes = 16384;

// Sends records 1, 2, ... to a copy; after a loss, again from the first that was not answered. Each
// lies in an area of its own, which is written over as soon as it is free.
class Sender {
 public:
  explicit Sender(Node* from) : from_(from) {
    auto made = rdma::MemoryBlock::Allocate(kAreas * kAreaBytes, "test");
    REQUIRE(made.ok());
    block_ = *std::move(made);
    for (size_t i = 0; i < kAreas; ++i) areas_.push_back(i);
  }
  static uint32_t BytesOf(uint64_t sequence) {
    return static_cast<uint32_t>(sequence * 977 % kAreaBytes / 64 * 64);
  }
  bool done() const { return answered_ == kRecords; }
  const std::vector<std::string>& violations() const { return violations_; }

  // Handles the events since the last call, then sends as much as it can.
  void Step() {
    PeerRecorder& told = from_->recorder;
    for (; replies_ < told.replies.size(); ++replies_) OnReply(told.replies[replies_].cookie);
    for (; deaths_ < told.dead.size(); ++deaths_) {
      for (const auto& [cookie, sent] : sent_) Release(sent.area);
      sent_.clear();
      next_ = answered_ + 1;
    }
    if (told.opened.size() < told.dead.size() || told.opened.size() > told.dead.size() + 1) {
      violations_.push_back("OnOpen() and OnDead() do not alternate");
    }
    while (next_ <= kRecords && !areas_.empty() && Send()) ++next_;
  }

 private:
  struct Sent {
    uint64_t sequence = 0;
    size_t area = 0;
  };
  bool Send() {
    const size_t area = areas_.front();
    std::byte* const data = block_->data() + area * kAreaBytes;
    ReplicaHeader header = {};
    header.kind = ReplicaKind::kSettle;
    header.total_bytes = BytesOf(next_);
    header.version = next_;
    const Group group = {
        .partition = 0, .index = 0, .epoch = 1, .sequence = next_, .count = 0, .admission = 0};
    PeerRecord record;
    record.groups = absl::MakeConstSpan(&group, 1);
    record.header = &header;
    record.data = {data, header.total_bytes, block_.get()};
    record.cookie = ++cookies_;
    rdma::FillPattern(next_, data, header.total_bytes);
    if (!from_->shard->links().Send(kB, record)) return false;
    areas_.erase(areas_.begin());
    sent_[record.cookie] = {next_, area};
    return true;
  }
  void OnReply(uint64_t cookie) {
    const auto it = sent_.find(cookie);
    if (it == sent_.end()) return violations_.push_back("a reply to nothing");
    // An answer may come before that of a record sent earlier, which is still being read.
    done_.insert(it->second.sequence);
    while (done_.contains(answered_ + 1)) ++answered_;
    Release(it->second.area);
    sent_.erase(it);
  }
  void Release(size_t area) {
    std::memset(block_->data() + area * kAreaBytes, 0xee, kAreaBytes);
    areas_.push_back(area);
  }

  Node* from_;
  std::shared_ptr<rdma::MemoryBlock> block_;
  std::vector<size_t> areas_;  // free ones
  std::map<uint64_t, Sent> sent_;
  std::set<uint64_t> done_;
  uint64_t next_ = 1, answered_ = 0, cookies_ = 0;
  size_t replies_ = 0, deaths_ = 0;
  std::vector<std::string> violations_;
};

TEST_CASE("links under faults: records arrive whole, without a gap, and each is answered") {
  uint64_t lost = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    rdma::SimFaults network;
    network.connect_failure = seed % 3 == 0 ? 0.3 : 0;
    network.connection_loss = seed % 4 == 0 ? 0.05 : 0.01;
    network.max_death_delay_ns = seed % 2 == 0 ? 5'000'000 : 0;
    network.missed_loss = seed % 5 == 0 ? 0.5 : 0;
    test::ControlFaults control;
    control.loss = seed % 3 == 1 ? 0.2 : 0;
    PeerWorld world(false, seed, network, control);
    Node& a = world.Add(kA);
    Node& b = world.Add(kB);
    world.Configure({{kA, {kB}, {}}});
    Sender sender(&a);
    size_t seen = 0;
    uint64_t highest = 0;
    REQUIRE(world.Until(
        [&] {
          sender.Step();
          for (; seen < b.endpoint->arrived.size(); ++seen) {
            const SpyEndpoint::Arrived& record = b.endpoint->arrived[seen];
            const uint64_t sequence = record.group.sequence;
            REQUIRE(sequence <= highest + 1);
            highest = std::max(highest, sequence);
            REQUIRE(record.data.size() == Sender::BytesOf(sequence));
            REQUIRE(rdma::IsPattern(sequence, record.data.data(), record.data.size()));
          }
          return sender.done();
        },
        absl::Seconds(600)));
    CHECK(highest == kRecords);
    CHECK(sender.violations() == std::vector<std::string>{});
    CHECK(world.network().receiver_not_ready() == 0);
    CHECK(a.endpoint->destroyed_alive + b.endpoint->destroyed_alive == 0);
    lost += world.counters(a).lost;
  }
  CHECK(lost > 60);
}

TEST_CASE("links under faults: both directions at once, with views that come and go") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    rdma::SimFaults network;
    network.connect_failure = 0.1;
    network.connection_loss = 0.02;
    network.max_death_delay_ns = 1'000'000;
    test::ControlFaults control;
    control.loss = 0.1;
    PeerWorld world(false, seed, network, control);
    Node& a = world.Add(kA);
    Node& b = world.Add(kB);
    for (int change = 0; change < 20; ++change) {
      std::vector<PeerWorld::Configuration> partitions = {{kA, {}, {}}, {kB, {}, {}}};
      if (random() % 2 == 0) partitions[0].followers = {kB};
      if (random() % 2 == 0) partitions[1].learners = {kA};
      const auto view = world.View(partitions);
      world.Apply(&a, view);
      world.Pass(absl::Microseconds(static_cast<int64_t>(random() % 20'000)));
      world.Apply(&b, view);
      world.Pass(absl::Microseconds(static_cast<int64_t>(random() % 20'000)));
    }
    world.Configure({{kA, {kB}, {}}, {kB, {kA}, {}}});
    REQUIRE(world.Until([&] { return a.shard->links().IsOpen(kB) && b.shard->links().IsOpen(kA); },
                        absl::Seconds(60)));
    for (const Node* node : {&a, &b}) {
      CHECK(node->recorder.opened.size() == node->recorder.dead.size() + 1);
    }
    world.Configure({{kA, {}, {}}, {kB, {}, {}}});
    REQUIRE(world.Until(
        [&] {
          return a.shard->Snapshot().lanes.empty() && b.shard->Snapshot().lanes.empty() &&
                 world.counters(a).open + world.counters(b).open == 0;
        },
        absl::Seconds(60)));
    world.Pass(absl::Seconds(20));
    // Grants that were not taken up have gone, too.
    CHECK(a.shard->NextTimerNanos() == std::numeric_limits<int64_t>::max());
    CHECK(b.shard->NextTimerNanos() == std::numeric_limits<int64_t>::max());
  }
}

}  // namespace peer_faults_test
}  // namespace verbena::server
