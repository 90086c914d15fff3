// How calls end when servers, tables, leases or the coordinator go away, and their errors.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/core/failpoints.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace endings_test {

using Catch::Matchers::Contains;
using Code = absl::StatusCode;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST_CASE(
    "a silent server: calls end UNAVAILABLE by their deadline, with the time of the last reply") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
  cluster.Join();
  auto memory = cluster.Memory(table, 1.0f);
  auto to = cluster.Memory(table, 0.0f);
  REQUIRE(cluster.Wait(cluster.Pull(table, to)));
  cluster.servers[0]->silent = true;
  cluster.view.mutable_servers(0)->set_state(v1::Server::SILENT);
  cluster.Publish();
  cluster.RunFor(kSecond);
  auto push = cluster.Push(table, memory, 2 * kSecond);
  auto end = cluster.EndStep(table, 2 * kSecond);
  auto pull = cluster.Pull(table, to, 0, 2 * kSecond);
  for (const auto& call : {push, end, pull}) {
    REQUIRE(cluster.Wait(call));
    CHECK(call->status.code() == Code::kUnavailable);
    CHECK_THAT(Text(call->status), Contains("server 'ps-0' (incarnation 10, server0:1)") &&
                                       Contains("has not responded for"));
  }
  // It comes back: the step, which was never forgotten, commits.
  cluster.servers[0]->silent = false;
  cluster.view.mutable_servers(0)->set_state(v1::Server::ALIVE);
  cluster.Publish();
  auto again = cluster.Pull(table, to);
  REQUIRE(cluster.Wait(again));
  CHECK(again->status.ok());
  CHECK(reinterpret_cast<float*>(to.block->data())[0] == 1.0f);
}

TEST_CASE(
    "a push that waits for another worker names the silent server, though it is not its own") {
  FakeCluster::Options options;
  options.servers = 2;
  options.expected_workers = 2;
  FakeCluster cluster(options);
  v1::Worker* other = cluster.view.mutable_jobs(0)->add_members();
  other->set_incarnation(101);
  other->set_rank(1);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 1);
  cluster.Join();
  auto to = cluster.Memory(table, 0.0f);
  REQUIRE(cluster.Wait(cluster.Pull(table, to)));
  const int with_table = cluster.servers[0]->Of(RecordType::kPull).empty() ? 1 : 0;
  cluster.servers[with_table]->hold_pushes = true;  // until the other one's contribution is there
  cluster.view.mutable_servers(1 - with_table)->set_state(v1::Server::SILENT);
  cluster.Publish();
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f), 2 * kSecond);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kDeadlineExceeded);
  const std::string its = absl::StrCat("server 'ps-", with_table, "'");
  const std::string silent = absl::StrCat("server 'ps-", 1 - with_table, "' (incarnation ",
                                          11 - with_table, ", server", 1 - with_table, ":1)");
  CHECK_THAT(Text(push->status),
             Contains(its + " (incarnation") && Contains("has not answered a push for 2.0 s") &&
                 Contains("step 0: not every other worker has ended it (rank 1)"));
  CHECK_THAT(Text(push->status), Contains(silent + " has not responded for 2"));
}

TEST_CASE("a server that grants no lane: UNAVAILABLE with its reason") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  cluster.servers[0]->open_status = absl::UnavailableError("not that far yet");
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f), kSecond);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kUnavailable);
  CHECK_THAT(Text(push->status),
             Contains("no lane to server 'ps-0'") && Contains("not that far yet"));
  CHECK(cluster.control.calls("OpenLane") >= 4);
  CHECK(cluster.control.calls("OpenLane") <= 20);  // it backs off
}

TEST_CASE("a server at its limit of lanes: RESOURCE_EXHAUSTED with the server's own message") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  cluster.servers[0]->open_status = absl::ResourceExhaustedError("job 'job' is at its limit");
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f), kSecond);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kResourceExhausted);
  CHECK_THAT(Text(push->status),
             Contains("no lane to server 'ps-0'") && Contains("job 'job' is at its limit"));
  // Another worker has left: the record, which was never forgotten, is applied.
  cluster.servers[0]->open_status = absl::OkStatus();
  auto next = cluster.Push(table, cluster.Memory(table, 1.0f));
  REQUIRE(cluster.Wait(next));
  CHECK(next->status.ok());
}

TEST_CASE("lost partitions: DATA_LOSS names table and partition, for pending and later calls") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 4);
  const uint32_t other = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4, 4096, "other");
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  auto memory = cluster.Memory(table, 1.0f);
  auto push = cluster.Push(table, memory);
  auto end = cluster.EndStep(table);
  cluster.RunFor(100 * kMilli);
  cluster.view.mutable_tables(0)->add_lost_partitions(2);
  cluster.Publish();
  REQUIRE(cluster.Wait(push, kSecond));
  REQUIRE(cluster.Wait(end, kSecond));
  auto later = cluster.Pull(table, memory);
  REQUIRE(cluster.Wait(later, kSecond));
  for (const auto& call : {push, end, later}) {
    CHECK(call->status.code() == Code::kDataLoss);
    CHECK_THAT(Text(call->status), Contains("partition 2 of table 'weights' is gone"));
  }
  auto fine = cluster.Push(other, cluster.Memory(other, 1.0f));
  REQUIRE(cluster.Wait(fine));
  CHECK(fine->status.ok());
}

// Codes of a client's first calls on a table that had lost a partition when the client joined.
std::vector<Code> FirstCallsOfLost() {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4);
  cluster.view.mutable_tables(0)->add_lost_partitions(2);
  cluster.servers[0]->refuse = [](const Seen&) { return ReplyStatus::kNotReady; };
  cluster.Join();
  auto memory = cluster.Memory(table, 1.0f);
  std::vector<Code> codes;
  for (auto call :
       {cluster.Pull(table, memory, {}, kSecond), cluster.Push(table, memory, kSecond)}) {
    REQUIRE(cluster.Wait(call));
    codes.push_back(call->status.code());
  }
  return codes;
}

TEST_CASE("regression: a table that is lost when it is opened is lost from the first call on") {
  for (const Code code : FirstCallsOfLost()) CHECK(code == Code::kDataLoss);
  client::failpoints().learn_losses_late = true;
  const std::vector<Code> codes = FirstCallsOfLost();
  client::failpoints().learn_losses_late = false;
  CHECK(codes.front() != Code::kDataLoss);
}

TEST_CASE("a dropped table: NOT_FOUND for pending and later calls") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  auto memory = cluster.Memory(table, 1.0f);
  auto push = cluster.Push(table, memory);
  cluster.EndStep(table);
  cluster.RunFor(100 * kMilli);
  cluster.view.mutable_tables()->RemoveLast();
  cluster.Publish();
  REQUIRE(cluster.Wait(push, kSecond));
  CHECK(push->status.code() == Code::kNotFound);
  CHECK_THAT(Text(push->status), Contains("table 'weights' was dropped"));
  auto later = cluster.Push(table, memory);
  REQUIRE(later->done);
  CHECK(later->status.code() == Code::kNotFound);
}

TEST_CASE("regression: a client forgets tables that were dropped") {
  FakeCluster cluster;
  cluster.AddTable(v1::CONSISTENCY_ASYNC, 1, 4096, "first");
  cluster.Join();
  for (uint32_t i = 0; i < 20; ++i) {
    const bool sync = i % 3 == 0;
    cluster.AddTable(sync ? v1::CONSISTENCY_SYNC : v1::CONSISTENCY_ASYNC, 8, 4096,
                     absl::StrCat("table", i));
    const uint32_t table = 2 * (i + 50) + (sync ? 0 : 1);  // ids are not used again
    cluster.view.mutable_tables()->rbegin()->set_id(table);
    const auto memory = cluster.Memory(table, 1.0f);
    absl::Status status;
    const auto push_one = [&] {
      const auto push = cluster.Push(table, FakeCluster::Chunk(memory, 7, 1024));
      if (sync) cluster.EndStep(table);
      cluster.Wait(push);
      status = push->status;
    };
    REQUIRE(cluster.RunUntil([&] {
      push_one();
      return !absl::IsNotFound(status);
    }));
    INFO(status);
    REQUIRE(status.ok());
    // One call is not answered when the table goes.
    cluster.servers[0]->silent = true;
    const auto push = cluster.Push(table, memory);
    cluster.RunFor(10 * kMilli);
    cluster.view.mutable_tables()->RemoveLast();
    cluster.Publish();
    REQUIRE(cluster.Wait(push));
    CHECK(absl::IsNotFound(push->status));
    push_one();
    CHECK(absl::IsNotFound(status));
    cluster.servers[0]->silent = false;
    cluster.RunFor(10 * kMilli);
    // The last one goes with the next view.
    CHECK(cluster.core->statistics().tables <= 1);
  }
}

TEST_CASE("the lease ends: calls in flight are ABORTED, later errors ask to connect again") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  cluster.servers[0]->silent = true;
  auto memory = cluster.Memory(table, 1.0f);
  auto push = cluster.Push(table, memory);
  cluster.lease_ended = true;
  REQUIRE(cluster.Wait(push, 2 * kSecond));
  CHECK(push->status.code() == Code::kAborted);
  CHECK_THAT(Text(push->status), Contains("outcome unknown") && Contains("incarnation 100"));
  CHECK(cluster.RunUntil([&] { return cluster.core->BufferReleased(push->id); }, kSecond));
  auto later = cluster.Push(table, memory);
  REQUIRE(later->done);
  CHECK(later->status.code() == Code::kFailedPrecondition);
  CHECK_THAT(Text(later->status), Contains("connect again"));
}

TEST_CASE("regression: a server that does not know the incarnation ends no client by itself") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  auto memory = cluster.Memory(table, 1.0f);
  REQUIRE(cluster.Wait(cluster.Push(table, memory)));
  // Its lease goes on: the call is made again, and the coordinator is asked meanwhile.
  const int beats = cluster.control.calls("Heartbeat");
  cluster.servers[0]->refuse = [](const Seen&) { return ReplyStatus::kExpired; };
  auto push = cluster.Push(table, memory, 30 * kSecond);
  CHECK_FALSE(cluster.Wait(push, 300 * kMilli));
  CHECK(cluster.control.calls("Heartbeat") > beats);
  cluster.servers[0]->refuse = nullptr;
  REQUIRE(cluster.Wait(push, kSecond));
  CHECK(push->status.ok());

  cluster.servers[0]->refuse = [](const Seen&) { return ReplyStatus::kExpired; };
  auto last = cluster.Push(table, memory, 30 * kSecond);
  cluster.lease_ended = true;
  REQUIRE(cluster.Wait(last, kSecond));
  CHECK(last->status.code() == Code::kAborted);
  CHECK_THAT(Text(last->status), Contains("according to the coordinator"));
}

TEST_CASE("regression: a call refused for its table's job ends that call alone") {
  FakeCluster cluster;
  const uint32_t own = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  const uint32_t other = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.view.mutable_tables(1)->mutable_spec()->set_job("another");
  cluster.Publish();
  cluster.Join();
  auto memory = cluster.Memory(own, 1.0f);
  auto under_way = cluster.Push(own, memory);
  auto pull = cluster.Pull(other, cluster.Memory(other, 0.0f));
  REQUIRE(pull->done);
  CHECK(pull->status.code() == Code::kFailedPrecondition);
  CHECK_THAT(Text(pull->status),
             Contains("belongs to job 'another'") && Contains("a worker of job 'job'"));
  REQUIRE(cluster.Wait(under_way));
  CHECK(under_way->status.ok());

  // A server that knows better than the view here.
  cluster.servers[0]->refuse = [](const Seen&) { return ReplyStatus::kOtherJob; };
  auto refused = cluster.Pull(own, cluster.Memory(own, 0.0f));
  REQUIRE(cluster.Wait(refused, kSecond));
  CHECK(refused->status.code() == Code::kFailedPrecondition);
  cluster.servers[0]->refuse = nullptr;
  auto push = cluster.Push(own, memory);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.ok());
}

TEST_CASE("a coordinator that does not answer ends no call") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  auto memory = cluster.Memory(table, 1.0f);
  REQUIRE(cluster.Wait(cluster.Push(table, memory)));
  cluster.coordinator_answers = false;
  cluster.RunFor(20 * kSecond);
  auto push = cluster.Push(table, memory);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.ok());
  cluster.coordinator_answers = true;
  const int beats = cluster.control.calls("Heartbeat");
  cluster.RunFor(2 * kSecond);
  CHECK(cluster.control.calls("Heartbeat") > beats);
}

}  // namespace endings_test
}  // namespace verbena::test
