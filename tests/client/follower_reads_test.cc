// Pulls of an observer that followers may answer, and what goes to the primary instead.
#include <catch2/catch.hpp>
#include <set>

#include "proto/protocol_version.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace follower_reads_test {

constexpr uint32_t kChunks = 4;  // in 4 partitions

FakeCluster::Options Observed() {
  FakeCluster::Options options;
  options.servers = 2;
  options.replicas = 2;
  options.observer = true;
  return options;
}

struct FollowerReads : FakeCluster {
  explicit FollowerReads(uint32_t protocol = kFollowersProtocol) : FakeCluster(Observed()) {
    view.set_protocol(protocol);
    table = AddTable(v1::CONSISTENCY_ASYNC, kChunks);
    Join();
    memory = Memory(table, 0);
  }
  CallPtr Any(int64_t timeout_ns = 30 * kSecond) {
    return PullAny(table, memory, /*max_staleness_ms=*/1000, timeout_ns);
  }
  void Good(const CallPtr& call) {
    REQUIRE(Wait(call));
    INFO(call->status);
    REQUIRE(call->status.ok());
  }
  // The first pulls open the lane to the follower.
  void Open() {
    Good(Any());
    RunFor(100 * kMilli);
    REQUIRE(servers[1]->lanes_opened == 1);
  }
  size_t Pulls(size_t server) const { return servers[server]->Of(RecordType::kPull).size(); }

  uint32_t table = 0;
  client::ClientCore::Slice memory;
};

TEST_CASE("follower reads: replicas answer in turn, over lanes that are open") {
  FollowerReads cluster;
  cluster.Good(cluster.Any());
  CHECK(cluster.Pulls(0) == kChunks);  // no lane to the follower yet
  cluster.RunFor(100 * kMilli);
  cluster.Good(cluster.Any());
  CHECK(cluster.Pulls(0) == kChunks + kChunks / 2);
  CHECK(cluster.Pulls(1) == kChunks / 2);
  for (const Seen& pull : cluster.servers[1]->Of(RecordType::kPull)) CHECK(pull.bags == 1000);
  CHECK(cluster.core->statistics().follower_pulls == kChunks / 2);
  cluster.Good(cluster.Pull(cluster.table, cluster.memory));
  CHECK(cluster.Pulls(1) == kChunks / 2);
}

TEST_CASE("follower reads: a pull that a follower refuses goes to the primary") {
  FollowerReads cluster;
  cluster.Open();
  cluster.servers[1]->refuse = [](const Seen&) { return ReplyStatus::kNotReady; };
  const size_t before = cluster.Pulls(0);
  cluster.Good(cluster.Any());
  CHECK(cluster.Pulls(0) == before + kChunks);
  CHECK(cluster.core->statistics().follower_redirects == kChunks / 2);
}

TEST_CASE("follower reads: a follower that hangs or dies fails no call") {
  FollowerReads cluster;
  cluster.Open();
  const bool hangs = GENERATE(true, false);
  cluster.servers[1]->silent = true;
  auto call = cluster.Any();
  cluster.RunFor(10 * kMilli);
  CHECK_FALSE(call->done);
  if (!hangs) cluster.servers[1]->CloseLanes("gone");
  const int64_t start = cluster.now();
  cluster.Good(call);
  CHECK(call->ended_at - start < 2 * kSecond);
  // Without a lane the primary is asked at once.
  cluster.servers[1]->open_status = absl::UnavailableError("gone");
  cluster.Good(cluster.Any());
}

TEST_CASE(
    "regression: follower reads: pulls behind a full lane of a follower that hangs go to the "
    "primary") {
  FollowerReads cluster;
  cluster.Move(kChunks - 1, 1);  // of which server 1 is the primary
  cluster.Publish();
  for (int i = 0; i < 4; ++i) {
    cluster.Good(cluster.Any());
    cluster.RunFor(100 * kMilli);
  }
  const auto chunk = [&](uint32_t number) {
    return FakeCluster::Chunk(cluster.memory, number, 4096 / sizeof(float));
  };
  // The chunk of that partition, and one of another.
  uint32_t of_server_1 = kChunks, other = kChunks;
  for (uint32_t i = 0; i < kChunks; ++i) {
    const size_t before = cluster.Pulls(1);
    cluster.Good(cluster.Pull(cluster.table, chunk(i)));
    (cluster.Pulls(1) > before ? of_server_1 : other) = i;
  }
  REQUIRE((of_server_1 < kChunks && other < kChunks));
  cluster.servers[1]->silent = true;
  std::vector<FakeCluster::CallPtr> its_own, calls;
  for (int i = 0; i < 12; ++i) {
    its_own.push_back(cluster.Pull(cluster.table, chunk(of_server_1), {}, 60 * kSecond));
  }
  cluster.RunFor(10 * kMilli);
  for (int i = 0; i < 4; ++i) {
    calls.push_back(cluster.PullAny(cluster.table, chunk(other), 1000, 10 * kSecond));
  }
  const int64_t start = cluster.now();
  for (const FakeCluster::CallPtr& call : calls) cluster.Good(call);
  CHECK(cluster.now() - start <= 2 * kSecond + kMilli);
}

TEST_CASE("follower reads: a call with little time asks the primary") {
  FollowerReads cluster;
  cluster.Open();
  cluster.servers[1]->silent = true;
  for (const int64_t timeout : {20, 45, 150, 500}) {
    cluster.Good(cluster.Any(timeout * kMilli));
  }
}

TEST_CASE("follower reads: the version that was read is the least for followers") {
  FollowerReads cluster;
  cluster.Open();
  for (const Seen& pull : cluster.servers[1]->Of(RecordType::kPull)) CHECK(pull.min_version == 0);
  cluster.servers[0]->reply_pull_version = 7;
  cluster.Good(cluster.Pull(cluster.table, cluster.memory));
  const size_t before = cluster.Pulls(1);
  cluster.servers[1]->reply_pull_version = 7;
  cluster.Good(cluster.Any());
  const auto pulls = cluster.servers[1]->Of(RecordType::kPull);
  REQUIRE(pulls.size() == before + kChunks / 2);
  for (size_t i = before; i < pulls.size(); ++i) CHECK(pulls[i].min_version == 7);
  // Neither is an older one accepted, nor does it fail the call.
  cluster.servers[1]->reply_pull_version = 6;
  const size_t primary = cluster.Pulls(0);
  cluster.Good(cluster.Any());
  CHECK(cluster.Pulls(0) == primary + kChunks);
}

TEST_CASE("follower reads: before all servers speak the protocol the primary is asked") {
  FollowerReads cluster(kFollowersProtocol - 1);
  cluster.Good(cluster.Any());
  cluster.RunFor(100 * kMilli);
  cluster.Good(cluster.Any());
  CHECK(cluster.servers[1]->lanes_opened == 0);
  CHECK(cluster.Pulls(0) == 2 * kChunks);
}

}  // namespace follower_reads_test
}  // namespace verbena::test
