// Failovers in the middle of a sync step, after the commit of some of its chunks.
#include <catch2/catch.hpp>
#include <optional>

#include "client/core/failpoints.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace failover_commits_test {

constexpr uint32_t kChunks = 6;  // in 4 partitions

FakeCluster::Options TwoServers() {
  FakeCluster::Options options;
  options.servers = 2;
  options.replicas = 2;
  return options;
}

// Chunks 0 and 4 are of one partition. The next primary has a record of chunk 0's commit.
struct PartlyCommitted : FakeCluster {
  PartlyCommitted() : FakeCluster(TwoServers()) {
    for (const auto& server : servers) server->knows = &view;
    table = AddTable(v1::CONSISTENCY_SYNC, kChunks);
    Join();
    servers[0]->hold_commits = true;
    push = Push(table, Memory(table, 5.0f));
    end = EndStep(table);
    RunFor(100 * kMilli);
    servers[1]->refuse = [](const Seen& s) -> std::optional<ReplyStatus> {
      if (s.type == RecordType::kPush && s.chunk == 0) return ReplyStatus::kDuplicate;
      return std::nullopt;
    };
    servers[1]->reply_version = 1;
    servers[0]->silent = true;
    for (uint32_t partition = 0; partition < 4; ++partition) Move(partition, 1);
    Publish();
  }
  void Good(const CallPtr& call) {
    REQUIRE(Wait(call));
    INFO(call->status);
    REQUIRE(call->status.ok());
  }
  uint32_t table = 0;
  CallPtr push, end;
};

TEST_CASE(
    "regression: an end-step at a new primary does not count pushes of chunks that were committed "
    "before") {
  PartlyCommitted cluster;
  cluster.Good(cluster.push);
  cluster.Good(cluster.end);
  CHECK(cluster.servers[1]->applied[{cluster.table, 4}] == 5.0f);
}

TEST_CASE(
    "failpoint: an end-step at a new primary counts pushes of chunks that were committed before") {
  client::failpoints().count_committed_pushes = true;
  PartlyCommitted cluster;
  cluster.RunFor(20 * kSecond);
  CHECK_FALSE(cluster.end->done);
  client::failpoints().count_committed_pushes = false;
}

// A step is open, with all pushes answered, when its partitions get their first replica; then the
// primary dies. The next one has nothing of that step.
struct FirstReplica : FakeCluster {
  FirstReplica() : FakeCluster(OneReplica()) {
    for (const auto& server : servers) server->knows = &view;
    for (int p = 0; p < 4; ++p) view.mutable_partitions(p)->set_primary(10);
    table = AddTable(v1::CONSISTENCY_SYNC, 4);
    Join();
    servers[0]->hold_commits = true;
    push = Push(table, Memory(table, 5.0f));
    end = EndStep(table);
    RunFor(100 * kMilli);
    for (int p = 0; p < 4; ++p) view.mutable_partitions(p)->add_followers()->set_server(11);
    Publish();
    RunFor(100 * kMilli);
    servers[0]->silent = true;
    for (uint32_t p = 0; p < 4; ++p) Move(p, 1);
    Publish();
    Wait(end);
  }
  static Options OneReplica() {
    Options options;
    options.servers = 2;
    return options;
  }
  bool HasPushes() {
    for (uint32_t chunk = 0; chunk < 4; ++chunk) {
      if (servers[1]->applied[{table, chunk}] != 5.0f) return false;
    }
    return true;
  }
  uint32_t table = 0;
  CallPtr push, end;
};

TEST_CASE("regression: a step is not ended at a primary that lacks pushes of it") {
  FirstReplica cluster;
  CHECK((cluster.HasPushes() || cluster.servers[1]->CommittedOf(cluster.table, 0) == 0));
  CHECK((cluster.HasPushes() || !cluster.push->status.ok()));
}

TEST_CASE("failpoint: an end-step that is sent again counts no pushes") {
  client::failpoints().count_no_pushes_again = true;
  FirstReplica cluster;
  CHECK_FALSE(cluster.HasPushes());
  CHECK(cluster.servers[1]->CommittedOf(cluster.table, 0) == 1);
  client::failpoints().count_no_pushes_again = false;
}

}  // namespace failover_commits_test
}  // namespace verbena::test
