// How calls end: deadlines, cancellation, memory that goes away and limits, and their errors.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "client/core/failpoints.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using Code = absl::StatusCode;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST_CASE("a deadline ends the wait and not the transfer: the buffer stays in use") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  REQUIRE(cluster.Wait(cluster.Pull(table, cluster.Memory(table, 0.0f))));  // opens the lane
  cluster.servers[0]->silent = true;
  const int64_t start = cluster.now();
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f), 300 * kMilli);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kDeadlineExceeded);
  CHECK_THAT(MessageOf(push->status), Contains("push on table 'weights'") &&
                                          Contains("server 'ps-0' (incarnation 10, server0:1)") &&
                                          Contains("has not answered"));
  CHECK(push->ended_at - start >= 300 * kMilli);
  CHECK(push->ended_at - start < 310 * kMilli);
  CHECK_FALSE(cluster.core->BufferReleased(push->id));
  cluster.servers[0]->silent = false;
  CHECK(cluster.RunUntil([&] { return cluster.core->BufferReleased(push->id); }));
  // It was posted, so it counts.
  CHECK(cluster.servers[0]->applied[{table, 1}] == 1.0f);
}

TEST_CASE("after a lane loss a push whose call is over is settled by an empty record") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddTable(consistency, 2);
    cluster.Join();
    cluster.servers[0]->hold_pushes = true;
    auto memory = cluster.Memory(table, 1.0f);
    auto push = cluster.Push(table, memory, 300 * kMilli);
    REQUIRE(cluster.Wait(push));
    CHECK(push->status.code() == Code::kDeadlineExceeded);
    CHECK_FALSE(cluster.core->BufferReleased(push->id));
    cluster.servers[0]->CloseLanes("a test");
    CHECK(cluster.RunUntil([&] { return cluster.core->BufferReleased(push->id); }, kSecond));
    cluster.servers[0]->hold_pushes = false;
    cluster.RunUntil([&] { return cluster.servers[0]->Of(RecordType::kPush).size() == 4; });
    const auto pushes = cluster.servers[0]->Of(RecordType::kPush);
    REQUIRE(pushes.size() == 4);
    CHECK(pushes[2].count == 0);
    CHECK(pushes[3].count == 0);
    CHECK(pushes[2].sequence == pushes[0].sequence);
    CHECK(cluster.servers[0]->applied[{table, 0}] == 0.0f);
    // The sequence goes on, the step can end.
    auto end = cluster.EndStep(table);
    REQUIRE(cluster.Wait(end));
    INFO(end->status);
    CHECK(end->status.ok());
  }
}

TEST_CASE("a cancelled call takes its unposted records with it") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 4);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  auto memory = cluster.Memory(table, 1.0f);
  auto first = cluster.Push(table, memory);
  cluster.EndStep(table);
  auto second = cluster.Push(table, memory);  // waits for the commit of the first
  cluster.RunFor(100 * kMilli);
  cluster.core->Cancel(second->id);
  cluster.RunFor(0);
  REQUIRE(second->done);
  CHECK(second->status.code() == Code::kCancelled);
  CHECK(cluster.core->BufferReleased(second->id));
  auto end = cluster.EndStep(table);
  cluster.servers[0]->hold_commits = false;
  REQUIRE(cluster.Wait(end));
  CHECK(end->status.ok());
  // The end-step of step 1 lists no pushes.
  const auto ends = cluster.servers[0]->Of(RecordType::kEndStep);
  CHECK(ends.back().sequence == 1);
  CHECK(ends.back().count == 0);
  CHECK(cluster.servers[0]->applied[{table, 0}] == 1.0f);
}

TEST_CASE("destroying a region closes the lanes that use it, and no transfer touches it again") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4);
  cluster.Join();
  auto from = cluster.Memory(table, 1.0f);
  auto to = cluster.Memory(table, 0.0f);
  REQUIRE(cluster.Wait(cluster.Pull(table, to)));
  cluster.servers[0]->silent = true;
  auto pull = cluster.Pull(table, to);
  auto push = cluster.Push(table, from);
  cluster.RunFor(100 * kMilli);
  CHECK(cluster.core->InUse(to.block->id()));
  bool touched = false;
  cluster.core->ReleaseBlock(to.block->id());
  cluster.network.set_write_observer(
      [&](auto&, uint64_t block, auto*, size_t) { touched |= block == to.block->id(); });
  CHECK(cluster.RunUntil([&] { return !cluster.core->InUse(to.block->id()); }, kSecond));
  REQUIRE(cluster.Wait(pull, kSecond));
  CHECK(pull->status.code() == Code::kCancelled);
  CHECK_THAT(MessageOf(pull->status), Contains("region was destroyed"));
  cluster.servers[0]->silent = false;
  REQUIRE(cluster.Wait(push));  // its records were on that lane, and go again
  CHECK(push->status.ok());
  CHECK_FALSE(touched);
  CHECK(cluster.core->statistics().lanes_opened == 2);
  CHECK(cluster.servers[0]->applied[{table, 2}] == 1.0f);
}

TEST_CASE("destroying an unused region leaves the lanes alone") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4);
  cluster.Join();
  auto to = cluster.Memory(table, 0.0f);
  REQUIRE(cluster.Wait(cluster.Pull(table, to)));
  cluster.core->ReleaseBlock(to.block->id());
  REQUIRE(cluster.Wait(cluster.Push(table, cluster.Memory(table, 1.0f))));
  CHECK(cluster.core->statistics().lanes_lost == 0);
}

TEST_CASE("no credit by the deadline is RESOURCE_EXHAUSTED") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 12);
  cluster.Join();
  REQUIRE(cluster.Wait(cluster.Pull(table, cluster.Memory(table, 0.0f))));
  cluster.servers[0]->hold_pushes = true;
  auto hog = cluster.Push(table, cluster.Memory(table, 1.0f), 10 * kSecond);  // both large slots
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f), kSecond);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kResourceExhausted);
  CHECK_THAT(MessageOf(push->status),
             Contains("no slot or operation of the lane to server 'ps-0'"));
  CHECK(cluster.core->BufferReleased(push->id));
  CHECK_FALSE(hog->done);
}

TEST_CASE("a step that another worker does not end: DEADLINE_EXCEEDED counts the joined workers") {
  FakeCluster::Options options;
  options.expected_workers = 2;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  auto memory = cluster.Memory(table, 1.0f);
  auto push = cluster.Push(table, memory, kSecond);
  auto end = cluster.EndStep(table, kSecond);
  auto pull = cluster.Pull(table, cluster.Memory(table, 0.0f), {}, kSecond);
  for (const auto& call : {push, end}) {
    REQUIRE(cluster.Wait(call));
    CHECK(call->status.code() == Code::kDeadlineExceeded);
    CHECK_THAT(MessageOf(call->status),
               Contains("waiting for step 0 of table 'weights' to commit") &&
                   Contains("job 'job' has 1 of 2 workers joined"));
  }
  REQUIRE(cluster.Wait(pull));
  CHECK_THAT(MessageOf(pull->status), Contains("waiting for version 1 of chunk 0"));
  v1::Worker* other = cluster.view.mutable_jobs(0)->add_members();
  other->set_incarnation(101);
  other->set_rank(1);
  cluster.Publish();
  cluster.RunFor(kSecond);
  auto next = cluster.Push(table, memory, kSecond);
  REQUIRE(cluster.Wait(next));
  CHECK_THAT(MessageOf(next->status), Contains("not every other worker has ended it (rank 1)"));
}

TEST_CASE("a push-pull that ends early still learns that its step was committed") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 40);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  // More chunks than pulls may be out: the rest are dropped with the call.
  auto memory = cluster.Memory(table, 1.0f);
  auto call = cluster.PushPull(table, memory, memory, 200 * kMilli);
  REQUIRE(cluster.Wait(call));
  CHECK(call->status.code() == Code::kDeadlineExceeded);
  cluster.servers[0]->hold_commits = false;
  auto next = cluster.PushPull(table, memory, memory);
  REQUIRE(cluster.Wait(next));
  CHECK(next->status.ok());
}

TEST_CASE("final refusals name the record") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
  cluster.Join();
  ReplyStatus answer = ReplyStatus::kNonFinite;
  cluster.servers[0]->refuse = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type == RecordType::kPush) return answer;
    return std::nullopt;
  };
  auto memory = cluster.Memory(table, 1.0f);
  auto push = cluster.Push(table, memory);
  auto end = cluster.EndStep(table);
  // The refused chunks contribute zero: the step goes on, and the push fails when it is over.
  REQUIRE(cluster.Wait(end));
  CHECK(end->status.ok());
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kInvalidArgument);
  CHECK_THAT(MessageOf(push->status),
             Contains("push of chunk") && Contains("table 'weights'") && Contains("NaN or Inf"));
  answer = ReplyStatus::kMalformed;
  push = cluster.Push(table, memory);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kInternal);
  CHECK_THAT(MessageOf(push->status), Contains("malformed") && Contains("table 'weights'"));
}

TEST_CASE("regression: the step of a refused sync push ends when an empty push has settled it") {
  const bool lost = GENERATE(false, true);  // the first refusal, with its lane
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
  cluster.Join();
  FakeServer& server = *cluster.servers[0];
  server.refuse = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type == RecordType::kPush && s.chunk == 1) return ReplyStatus::kNonFinite;
    return std::nullopt;
  };
  server.hold = [&](const Seen&) { return lost; };
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f));
  auto end = cluster.EndStep(table);
  if (lost) {
    REQUIRE(cluster.RunUntil([&] { return server.Of(RecordType::kPush).size() == 2; }));
    server.CloseLanes("a test");
    server.hold = nullptr;
  }
  REQUIRE(cluster.Wait(end));
  CHECK(end->status.ok());
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kInvalidArgument);
  CHECK(cluster.core->BufferReleased(push->id));
  CHECK(server.applied[{table, 0}] == 1.0f);
  std::vector<uint32_t> counts;
  for (const Seen& s : server.Of(RecordType::kPush)) {
    if (s.chunk == 1) counts.push_back(s.count);
  }
  REQUIRE(counts.size() == (lost ? 3 : 2));
  CHECK(counts.front() > 0);
  CHECK(counts.back() == 0);
}

TEST_CASE("regression: a refused sync push is settled though pushes behind it are held") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
  cluster.Join();
  FakeServer& server = *cluster.servers[0];
  server.refuse = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type == RecordType::kPush && s.chunk == 0) return ReplyStatus::kNonFinite;
    return std::nullopt;
  };
  // For a worker of a lower rank, which waits for the commit of chunk 0 first.
  server.hold = [&](const Seen& s) { return s.type == RecordType::kPush && s.chunk == 1; };
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f));
  auto end = cluster.EndStep(table);
  CHECK(cluster.RunUntil([&] {
    const auto pushes = server.Of(RecordType::kPush);
    return std::any_of(pushes.begin(), pushes.end(), [](const Seen& s) { return s.count == 0; });
  }));
  server.hold = nullptr;
  REQUIRE(cluster.Wait(end));
  CHECK(end->status.ok());
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kInvalidArgument);
}

TEST_CASE("a sync push that is refused after its deadline is settled, too") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
  cluster.Join();
  FakeServer& server = *cluster.servers[0];
  server.refuse = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type == RecordType::kPush) return ReplyStatus::kNonFinite;
    return std::nullopt;
  };
  server.hold = [&](const Seen&) { return true; };
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f), 300 * kMilli);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kDeadlineExceeded);
  server.hold = nullptr;
  auto end = cluster.EndStep(table);
  REQUIRE(cluster.Wait(end));
  CHECK(end->status.ok());
  CHECK(cluster.core->BufferReleased(push->id));
}

TEST_CASE("a refusal that the old primary did not deliver comes from the next one") {
  FakeCluster::Options options;
  options.servers = options.replicas = 2;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 6);
  cluster.Join();
  for (const auto& server : cluster.servers) {
    server->knows = &cluster.view;
    server->refuse = [](const Seen& s) -> std::optional<ReplyStatus> {
      if (s.type == RecordType::kPush && s.chunk == 3) return ReplyStatus::kNonFinite;
      return std::nullopt;
    };
  }
  cluster.servers[0]->hold_commits = true;
  // The empty push is in flight to the old primary, or the refusal is.
  const bool empty = GENERATE(false, true);
  cluster.servers[0]->hold = [empty](const Seen& s) {
    return s.type == RecordType::kPush && s.chunk == 3 && (s.count == 0) == empty;
  };
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f));
  auto end = cluster.EndStep(table);
  cluster.RunFor(100 * kMilli);
  cluster.servers[0]->silent = true;
  for (const uint32_t p : {0u, 1u, 2u, 3u}) cluster.Move(p, 1);
  cluster.Publish();
  REQUIRE(cluster.Wait(end));
  CHECK(end->status.ok());
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kInvalidArgument);
  std::vector<bool> zero;
  for (const Seen& s : cluster.servers[1]->Of(RecordType::kPush)) {
    if (s.chunk == 3) zero.push_back(s.count == 0);
  }
  CHECK(zero == (empty ? std::vector<bool>{true} : std::vector<bool>{false, true}));
}

TEST_CASE("invalid calls have errors that name the cause") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 4);
  cluster.Join();
  auto whole = cluster.Memory(table, 1.0f);
  const auto refused = [&](client::ClientCore::Slice slice, Code code, const std::string& text) {
    auto call = cluster.Push(table, slice);
    REQUIRE(call->done);
    CHECK(call->status.code() == code);
    CHECK_THAT(MessageOf(call->status), Contains(text));
  };
  auto slice = whole;
  slice.count = 0;
  refused(slice, Code::kInvalidArgument, "the range has 0 elements; table 'weights' has 4096");
  slice = whole;
  slice.first = 100;
  slice.count = 1024;
  refused(slice, Code::kInvalidArgument,
          "[100, 1124) does not start and end at chunks of table 'weights': multiples of 1024");
  slice = whole;
  slice.first = 4096;
  refused(slice, Code::kInvalidArgument, "lies outside table 'weights', which has 4096 elements");
  slice = whole;
  slice.offset = 8;
  refused(slice, Code::kInvalidArgument,
          "the region is too small: 4096 elements of table 'weights' need 16384 bytes (4 for each "
          "f32 gradient); the region has 16384 bytes, 16376 from offset 8");
  slice = whole;
  slice.offset = 2;
  refused(slice, Code::kInvalidArgument,
          "region_offset is 2; allowed: multiples of 4, the bytes of one f32 gradient");
  slice = whole;
  slice.block = nullptr;
  refused(slice, Code::kInvalidArgument, "the region is empty, or was destroyed");
  auto unknown = cluster.Push(77, whole);
  REQUIRE(unknown->done);
  CHECK(unknown->status.code() == Code::kNotFound);
  CHECK_THAT(MessageOf(unknown->status), Contains("no table with id 77"));
  cluster.Push(table, whole);
  refused(whole, Code::kInvalidArgument, "chunk 0 of table 'weights' was pushed in step 0 already");
}

TEST_CASE("an observer pulls and does not push") {
  FakeCluster::Options options;
  options.observer = true;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
  cluster.Join();
  auto memory = cluster.Memory(table, 1.0f);
  CHECK(cluster.Push(table, memory)->status.code() == Code::kFailedPrecondition);
  CHECK(cluster.EndStep(table)->status.code() == Code::kFailedPrecondition);
  auto pull = cluster.Pull(table, memory);
  REQUIRE(cluster.Wait(pull));
  CHECK(pull->status.ok());
}

TEST_CASE("chunks larger than the slots: the lane is reopened once, then the call fails") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2, 16384);
  cluster.Join();
  auto memory = cluster.Memory(table, 1.0f);
  auto push = cluster.Push(table, memory);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kInvalidArgument);
  CHECK_THAT(MessageOf(push->status),
             Contains("has 16384 bytes") && Contains("smaller chunk_bytes"));
  CHECK(cluster.core->statistics().lanes_opened == 2);
}

TEST_CASE("pushes of a worker that joined after steps were committed fail, and none is dropped") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 1);
  cluster.Join();
  cluster.servers[0]->refuse = [](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type == RecordType::kPush && s.count != 0) return ReplyStatus::kDuplicate;
    return std::nullopt;
  };
  cluster.servers[0]->reply_version = 50;
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f));
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kFailedPrecondition);
  CHECK_THAT(MessageOf(push->status), Contains("is at step 50 already"));
}

TEST_CASE("shm: pulls into memory of the caller are staged") {
  FakeCluster::Options options;
  options.shm = true;
  options.staging_bytes = 4096;  // one chunk at a time
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 50);
  cluster.Join();
  auto push = cluster.Push(table, cluster.Memory(table, 2.0f));
  REQUIRE(cluster.Wait(push));
  INFO(push->status);
  REQUIRE(push->status.ok());
  std::vector<float> memory(50 * 1024, -1.0f);
  auto block = *rdma::MemoryBlock::Register(memory.data(), memory.size() * sizeof(float));
  auto pull = cluster.Pull(table, {block, 0, 0, memory.size()});
  REQUIRE(cluster.Wait(pull));
  INFO(pull->status);
  REQUIRE(pull->status.ok());
  CHECK(std::all_of(memory.begin(), memory.end(), [](float f) { return f == 2.0f; }));
  CHECK(cluster.core->statistics().staged_bytes == memory.size() * sizeof(float));

  // Cancelled: the memory is the caller's at once, whatever the server still writes.
  cluster.servers[0]->silent = true;
  std::fill(memory.begin(), memory.end(), -1.0f);
  auto late = cluster.Pull(table, {block, 0, 0, memory.size()});
  cluster.RunFor(10 * kMilli);
  cluster.core->Cancel(late->id);
  REQUIRE(cluster.Wait(late));
  CHECK(cluster.core->BufferReleased(late->id));
  cluster.servers[0]->silent = false;
  auto again = cluster.Memory(table, 0.0f);
  REQUIRE(cluster.Wait(cluster.Pull(table, again)));
  CHECK(std::all_of(memory.begin(), memory.end(), [](float f) { return f == -1.0f; }));
  // Allocated memory is written where it belongs.
  CHECK(reinterpret_cast<float*>(again.block->data())[0] == 2.0f);
  CHECK(cluster.core->statistics().staged_bytes == memory.size() * sizeof(float));
}

TEST_CASE("the failpoint releases a buffer at the deadline with its record still in flight") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  auto to = cluster.Memory(table, 0.0f);
  REQUIRE(cluster.Wait(cluster.Pull(table, to)));
  cluster.servers[0]->silent = true;
  auto pull = cluster.Pull(table, to, {}, 200 * kMilli);
  REQUIRE(cluster.Wait(pull));
  CHECK_FALSE(cluster.core->BufferReleased(pull->id));
  client::failpoints().release_buffer_at_deadline = true;
  CHECK(cluster.core->BufferReleased(pull->id));
  client::failpoints().release_buffer_at_deadline = false;
}

TEST_CASE("regression: async pushes go on after one that was retried and then refused for good") {
  const int retries = GENERATE(0, 1);
  FakeCluster cluster(Servers(1, /*partitions=*/1));
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 1);
  cluster.Join();
  Good(&cluster, cluster.Push(table, cluster.Memory(table, 1)));
  int left = retries;
  cluster.servers[0]->refuse = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type != RecordType::kPush || s.value != 2.0f) return std::nullopt;
    return left-- > 0 ? ReplyStatus::kNotReady : ReplyStatus::kMalformed;
  };
  const auto refused = cluster.Push(table, cluster.Memory(table, 2));
  REQUIRE(cluster.Wait(refused));
  CHECK_FALSE(refused->status.ok());
  Good(&cluster, cluster.Push(table, cluster.Memory(table, 3), 20 * kSecond));
}

}  // namespace
}  // namespace verbena::test
