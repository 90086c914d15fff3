// Partitions that have replicas and get another primary: the pushes of sync steps that a worker
// keeps and sends again.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <tuple>

#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace failover_test {

using Code = absl::StatusCode;
using Slice = client::ClientCore::Slice;

constexpr uint32_t kChunks = 6;  // in 4 partitions

FakeCluster::Options Copies(uint32_t replicas = 2) {
  FakeCluster::Options options;
  options.servers = 2;
  options.replicas = replicas;
  return options;
}

struct Failover : FakeCluster {
  explicit Failover(const Options& options = Copies()) : FakeCluster(options) {
    for (const auto& server : servers) server->knows = &view;
    if (options.replicas == 1) {
      for (uint32_t p = 0; p < options.partitions; ++p) {
        view.mutable_partitions(int(p))->set_primary(servers[0]->incarnation());
      }
    }
  }

  // Chunk c has c + 1, and its own bytes.
  Slice Gradients(uint32_t table) {
    Slice slice = Memory(table, 0);
    auto* data = reinterpret_cast<float*>(slice.block->data());
    for (uint64_t i = 0; i < slice.count; ++i) data[i] = float(i / 1024 + 1) + float(i % 1024) / 4;
    return slice;
  }
  void Good(const CallPtr& call) {
    REQUIRE(Wait(call));
    INFO(call->status);
    REQUIRE(call->status.ok());
  }
  // The old primary hangs; server 1 has them.
  void FailOver(const std::vector<uint32_t>& partitions = {0, 1, 2, 3}) {
    servers[0]->silent = true;
    for (const uint32_t p : partitions) Move(p, 1);
    Publish();
  }
  size_t Records(size_t server) const { return servers[server]->seen.size(); }
};

TEST_CASE("answered sync pushes go to the new primary, and then the end-step") {
  Failover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  auto push = cluster.Push(table, cluster.Gradients(table));
  auto end = cluster.EndStep(table);
  cluster.RunFor(100 * kMilli);
  const auto before = cluster.servers[0]->Of(RecordType::kPush);
  REQUIRE(before.size() == kChunks);
  CHECK_FALSE(push->done);
  CHECK_FALSE(cluster.core->BufferReleased(push->id));

  cluster.FailOver();
  cluster.Good(push);
  cluster.Good(end);
  CHECK(cluster.core->BufferReleased(push->id));
  FakeServer& next = *cluster.servers[1];
  CHECK(next.pushed == cluster.servers[0]->pushed);
  const auto after = next.Of(RecordType::kPush);
  REQUIRE(after.size() == kChunks);
  for (size_t i = 0; i < kChunks; ++i) {
    CHECK(after[i].chunk == before[i].chunk);
    CHECK(after[i].sequence == before[i].sequence);
    CHECK(after[i].count == before[i].count);
    CHECK(after[i].epoch == 2);
  }
  // The end-step came behind them, and counts those that were not answered again.
  const auto first = [&](RecordType type) {
    return std::find_if(next.seen.begin(), next.seen.end(),
                        [&](const Seen& s) { return s.type == type; });
  };
  const auto is_push = [](const Seen& s) { return s.type == RecordType::kPush; };
  CHECK(std::count_if(next.seen.begin(), first(RecordType::kEndStep), is_push) == kChunks);
  uint32_t counted = 0;
  for (const Seen& s : next.Of(RecordType::kEndStep)) counted += s.count;
  CHECK(next.Of(RecordType::kEndStep).size() == 4);
  CHECK(counted <= kChunks);

  // The next step is an ordinary one.
  auto second = cluster.Push(table, cluster.Memory(table, 1.0f));
  cluster.EndStep(table);
  cluster.Good(second);
  CHECK(next.Of(RecordType::kPush).size() == 2 * kChunks);
  CHECK(next.applied[{table, 2}] == 4.0f);
}

TEST_CASE("with replicas a sync push's buffer is kept until its step is committed") {
  for (const uint32_t replicas : {1u, 2u}) {
    Failover cluster(Copies(replicas));
    const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
    cluster.Join();
    cluster.servers[0]->hold_commits = true;
    auto push = cluster.Push(table, cluster.Gradients(table));
    auto end = cluster.EndStep(table);
    cluster.RunFor(100 * kMilli);
    REQUIRE(cluster.servers[0]->Of(RecordType::kPush).size() == kChunks);
    CHECK(cluster.core->BufferReleased(push->id) == (replicas == 1));
    CHECK_FALSE(push->done);
    cluster.servers[0]->hold_commits = false;
    cluster.Good(push);
    cluster.Good(end);
    CHECK(cluster.core->BufferReleased(push->id));
  }
}

TEST_CASE(
    "a worker keeps pushes for a partition with a learner, and none for one without replicas") {
  for (const bool learner : {false, true}) {
    Failover cluster(Copies(1));
    const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
    if (learner) cluster.view.mutable_partitions(2)->add_learners()->set_server(11);
    cluster.Join();
    cluster.servers[0]->hold_commits = true;
    auto push = cluster.Push(table, cluster.Gradients(table));
    cluster.EndStep(table);
    cluster.RunFor(100 * kMilli);
    CHECK(cluster.core->BufferReleased(push->id) == !learner);
    cluster.FailOver();
    cluster.RunFor(kSecond);
    const auto again = cluster.servers[1]->Of(RecordType::kPush);
    CHECK(again.empty() == !learner);
    for (const Seen& s : again) CHECK(s.partition == 2);
    // Accepted end-steps were sent again before there were copies, too.
    std::set<uint32_t> ended;
    for (const Seen& s : cluster.servers[1]->Of(RecordType::kEndStep)) ended.insert(s.partition);
    CHECK(ended.size() == 4);
  }
}

TEST_CASE("replicas cost no additional records") {
  std::vector<std::vector<std::tuple<RecordType, uint32_t, uint64_t, uint32_t, uint64_t>>> runs;
  for (const uint32_t replicas : {1u, 2u}) {
    Failover cluster(Copies(replicas));
    const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
    const uint32_t rows = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, 4);
    cluster.Join();
    const Slice gradients = cluster.Gradients(table);
    for (int step = 0; step < 3; ++step) {
      auto push = cluster.Push(table, gradients);
      auto end = cluster.EndStep(table);
      cluster.Good(push);
      cluster.Good(end);
      cluster.Good(cluster.PushPull(table, gradients, cluster.Memory(table, 0)));
      cluster.Good(cluster.PushRows(rows, {1, 2, 3, 4}, cluster.RowMemory(4, 4, 1.0f)));
      cluster.Good(cluster.EndStep(rows));
    }
    auto& run = runs.emplace_back();
    for (const Seen& s : cluster.servers[0]->seen) {
      run.emplace_back(s.type, s.partition, s.sequence, s.count, s.min_version);
    }
    CHECK(cluster.core->statistics().records_resent == 0);
  }
  CHECK(runs[0] == runs[1]);
}

TEST_CASE(
    "a kept push whose call ends releases its buffer, and contributes zero at the next server") {
  Failover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  const bool cancel = GENERATE(true, false);
  auto push = cluster.Push(table, cluster.Gradients(table), 300 * kMilli);
  auto end = cluster.EndStep(table);
  cluster.RunFor(100 * kMilli);
  CHECK_FALSE(cluster.core->BufferReleased(push->id));
  if (cancel) cluster.core->Cancel(push->id);
  cluster.RunFor(300 * kMilli);
  CHECK(push->status.code() == (cancel ? Code::kCancelled : Code::kDeadlineExceeded));
  CHECK(cluster.core->BufferReleased(push->id));
  cluster.FailOver();
  cluster.Good(end);
  const auto again = cluster.servers[1]->Of(RecordType::kPush);
  REQUIRE(again.size() == kChunks);
  for (const Seen& s : again) {
    CHECK(s.count == 0);
    CHECK(s.sequence == 0);
  }
  CHECK(cluster.servers[1]->pushed.empty());
}

TEST_CASE("destroyed memory is not kept") {
  Failover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  const Slice gradients = cluster.Gradients(table);
  auto push = cluster.Push(table, gradients);
  cluster.RunFor(100 * kMilli);
  cluster.core->ReleaseBlock(gradients.block->id());
  CHECK_FALSE(cluster.core->InUse(gradients.block->id()));
  CHECK(cluster.core->BufferReleased(push->id));
  cluster.RunFor(0);
  CHECK(push->status.code() == Code::kCancelled);
  cluster.FailOver();
  cluster.Good(cluster.EndStep(table));
  for (const Seen& s : cluster.servers[1]->Of(RecordType::kPush)) CHECK(s.count == 0);
}

TEST_CASE("a chunk that was refused as not finite stays zero at the next server") {
  Failover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  cluster.servers[0]->refuse = [](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type == RecordType::kPush && s.chunk == 3) return ReplyStatus::kNonFinite;
    return std::nullopt;
  };
  auto push = cluster.Push(table, cluster.Gradients(table));
  auto end = cluster.EndStep(table);
  cluster.RunFor(100 * kMilli);
  cluster.FailOver();
  cluster.Good(end);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kInvalidArgument);
  const auto again = cluster.servers[1]->Of(RecordType::kPush);
  REQUIRE(again.size() == kChunks);
  for (const Seen& s : again) CHECK((s.count == 0) == (s.chunk == 3));
}

TEST_CASE("only pushes of moved partitions are sent again, and unaffected lanes stay open") {
  Failover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  auto push = cluster.Push(table, cluster.Gradients(table));
  cluster.RunFor(100 * kMilli);  // answered; the step is not ended
  for (const uint32_t p : {1u, 3u}) cluster.Move(p, 1);
  const size_t before = cluster.Records(0);
  cluster.Publish();
  cluster.RunFor(100 * kMilli);
  const auto again = cluster.servers[1]->Of(RecordType::kPush);
  for (const Seen& s : again) CHECK((s.partition == 1 || s.partition == 3));
  CHECK(again.size() + 4 >= kChunks);
  CHECK(again.size() < kChunks);
  CHECK(cluster.Records(0) == before);
  CHECK(cluster.core->statistics().lanes_lost == 0);
  auto end = cluster.EndStep(table);
  cluster.Good(push);
  cluster.Good(end);
  for (uint32_t c = 0; c < kChunks; ++c) {
    float applied = 0;
    for (const Seen& s : again) {
      if (s.chunk == c) applied = cluster.servers[1]->applied[{table, c}];
    }
    if (applied == 0) applied = cluster.servers[0]->applied[{table, c}];
    CHECK(applied == float(c + 1));
  }
}

TEST_CASE("pushes that the old primary had not answered go to the next one once, in order") {
  Failover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  const Slice gradients = cluster.Gradients(table);
  auto first = cluster.Push(table, cluster.Chunk(gradients, 0, 1024));
  cluster.RunFor(100 * kMilli);
  cluster.servers[0]->silent = true;
  Slice rest = cluster.Chunk(gradients, 1, 1024);
  rest.count = 5 * 1024;
  auto second = cluster.Push(table, rest);
  auto end = cluster.EndStep(table);
  cluster.RunFor(100 * kMilli);
  cluster.FailOver();
  for (const auto& call : {first, second, end}) cluster.Good(call);
  const auto again = cluster.servers[1]->Of(RecordType::kPush);
  REQUIRE(again.size() == kChunks);
  for (uint32_t c = 0; c < kChunks; ++c) {
    CHECK(again[c].chunk == c);
    CHECK(cluster.servers[1]->applied[{table, c}] == float(c + 1));
  }
  CHECK(cluster.servers[1]->Of(RecordType::kEndStep).size() == 4);
  CHECK(cluster.core->statistics().lanes_lost == 1);
}

TEST_CASE("a commit known to the next server but not to this worker is not repeated") {
  Failover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  // Awaits are not answered: the step is committed, but the worker gets no confirmation.
  cluster.servers[0]->refuse = [](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type == RecordType::kAwait) return ReplyStatus::kNotReady;
    return std::nullopt;
  };
  auto push = cluster.Push(table, cluster.Gradients(table));
  auto end = cluster.EndStep(table);
  cluster.RunFor(100 * kMilli);
  CHECK_FALSE(push->done);
  CHECK_FALSE(cluster.core->BufferReleased(push->id));
  cluster.FailOver();
  cluster.Good(push);
  cluster.Good(end);
  for (uint32_t c = 0; c < kChunks; ++c) {
    CHECK(cluster.servers[1]->applied[{table, c}] == float(c + 1));
  }
}

TEST_CASE("deferred pulls and awaits go to the next server") {
  Failover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  const bool hangs = GENERATE(true, false);
  const Slice to = cluster.Memory(table, -1.0f);
  auto pushpull = cluster.PushPull(table, cluster.Gradients(table), to);
  cluster.RunFor(100 * kMilli);
  CHECK_FALSE(pushpull->done);
  cluster.FailOver();
  cluster.servers[0]->silent = hangs;
  cluster.Good(pushpull);
  CHECK(cluster.core->BufferReleased(pushpull->id));
  const auto* pulled = reinterpret_cast<const float*>(to.block->data());
  for (uint32_t c = 0; c < kChunks; ++c) CHECK(pulled[c * 1024] == float(c + 1));
  CHECK(cluster.servers[1]->Of(RecordType::kPush).size() == kChunks);
}

TEST_CASE("a new epoch of the same server: pushes answered in the old epoch are sent again") {
  Failover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  auto push = cluster.Push(table, cluster.Gradients(table));
  cluster.RunFor(100 * kMilli);
  REQUIRE(cluster.servers[0]->Of(RecordType::kPush).size() == kChunks);
  for (uint32_t p = 0; p < 4; ++p) cluster.Move(p, 0);
  cluster.Publish();
  auto end = cluster.EndStep(table);
  cluster.Good(push);
  cluster.Good(end);
  const auto pushes = cluster.servers[0]->Of(RecordType::kPush);
  REQUIRE(pushes.size() == 2 * kChunks);
  for (size_t i = kChunks; i < pushes.size(); ++i) CHECK(pushes[i].epoch == 2);
  for (uint32_t c = 0; c < kChunks; ++c) {
    CHECK(cluster.servers[0]->applied[{table, c}] == float(c + 1));
  }
  CHECK(cluster.core->statistics().lanes_lost == 0);
}

TEST_CASE("a push answered in the old epoch, after the view has changed, is sent again") {
  Failover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  cluster.Good(cluster.Pull(table, cluster.Memory(table, 0.0f)));
  // The server has them in hand when the view changes, and still answers as it was.
  cluster.servers[0]->knows = nullptr;
  cluster.servers[0]->hold_pushes = true;
  auto push = cluster.Push(table, cluster.Gradients(table));
  cluster.RunFor(100 * kMilli);
  const size_t early = cluster.servers[0]->Of(RecordType::kPush).size();
  CHECK(early > 0);
  for (uint32_t p = 0; p < 4; ++p) cluster.Move(p, 0);
  cluster.Publish();
  cluster.RunFor(100 * kMilli);
  cluster.servers[0]->hold_pushes = false;
  cluster.RunFor(100 * kMilli);
  const auto pushes = cluster.servers[0]->Of(RecordType::kPush);
  CHECK(pushes.size() == early + kChunks);
  std::set<uint32_t> chunks;
  for (const Seen& s : pushes) {
    if (s.epoch == 2) chunks.insert(s.chunk);
  }
  CHECK(chunks.size() == kChunks);
  cluster.EndStep(table);
  cluster.Good(push);
}

TEST_CASE("a new epoch of the same server: answered end-steps follow the pushes again") {
  // Before the view; behind it, at the old epoch; behind it, and refused.
  const int answered = GENERATE(0, 1, 2);
  Failover cluster;
  FakeServer& server = *cluster.servers[0];
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  server.config.large_slots = 8;
  cluster.Good(cluster.Pull(table, cluster.Memory(table, 0.0f)));
  server.hold_commits = true;
  server.silent = answered > 0;
  auto push = cluster.Push(table, cluster.Gradients(table));
  auto end = cluster.EndStep(table);
  const Slice to = cluster.Chunk(cluster.Memory(table, 0.0f), 0, 1024);
  auto pull = cluster.Pull(table, to);  // deferred
  cluster.RunFor(100 * kMilli);
  REQUIRE(server.Of(RecordType::kEndStep).size() == 4);
  for (uint32_t p = 0; p < 4; ++p) cluster.Move(p, 0);
  if (answered == 1) server.knows = nullptr;
  cluster.Publish();
  cluster.RunFor(100 * kMilli);
  const int64_t start = cluster.now();
  server.silent = false;
  const auto again = [&](RecordType type) {
    std::vector<Seen> seen = server.Of(type);
    seen.erase(seen.begin(),
               std::find_if(seen.begin(), seen.end(), [](const Seen& s) { return s.epoch == 2; }));
    return seen;
  };
  REQUIRE(cluster.RunUntil([&] { return again(RecordType::kEndStep).size() == 4; }, kSecond));
  if (answered != 1) {
    CHECK(cluster.RunUntil([&] { return again(RecordType::kPull).size() == 1; }, kSecond));
  }
  CHECK(cluster.now() - start < 5 * kMilli);  // without a pause
  CHECK(again(RecordType::kPush).size() == kChunks);
  for (const Seen& s : again(RecordType::kPush)) CHECK(s.epoch == 2);
  server.hold_commits = false;
  for (const auto& call : {push, end, pull}) cluster.Good(call);
}

TEST_CASE("two failovers in one step") {
  FakeCluster::Options options = Copies(3);
  options.servers = 3;
  Failover cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  for (const auto& server : cluster.servers) server->hold_commits = true;
  auto push = cluster.Push(table, cluster.Gradients(table));
  auto end = cluster.EndStep(table);
  cluster.RunFor(100 * kMilli);
  cluster.FailOver();
  // In the middle of sending again, and after it.
  cluster.RunFor(GENERATE(0, 1, 2, 5, 100) * kMilli);
  cluster.servers[1]->silent = true;
  for (uint32_t p = 0; p < 4; ++p) cluster.Move(p, 2);
  cluster.Publish();
  cluster.RunFor(100 * kMilli);
  cluster.servers[2]->hold_commits = false;
  cluster.Good(push);
  cluster.Good(end);
  CHECK(cluster.servers[2]->pushed == cluster.servers[0]->pushed);
  for (uint32_t c = 0; c < kChunks; ++c) {
    CHECK(cluster.servers[2]->applied[{table, c}] == float(c + 1));
  }
}

TEST_CASE("pushes to a partition without a primary wait for the next primary") {
  Failover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, kChunks);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  auto push = cluster.Push(table, cluster.Gradients(table));
  auto end = cluster.EndStep(table);
  cluster.RunFor(100 * kMilli);
  cluster.servers[0]->silent = true;
  for (auto& partition : *cluster.view.mutable_partitions()) partition.set_primary(0);
  cluster.Publish();
  cluster.RunFor(kSecond);
  CHECK_FALSE(push->done);
  cluster.FailOver();
  cluster.Good(push);
  cluster.Good(end);
  CHECK(cluster.servers[1]->pushed == cluster.servers[0]->pushed);
}

TEST_CASE("a lost partition that is reset can be used again") {
  Failover cluster(Copies(1));
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, kChunks);
  cluster.Join();
  const Slice to = cluster.Memory(table, 0.0f);
  cluster.Good(cluster.Pull(table, to));
  v1::Table* info = cluster.view.mutable_tables(0);
  info->add_lost_partitions(1);
  info->add_lost_partitions(2);
  cluster.Publish();
  cluster.RunFor(100 * kMilli);
  auto lost = cluster.Pull(table, to);
  REQUIRE(cluster.Wait(lost));
  CHECK(lost->status.code() == Code::kDataLoss);
  info->clear_lost_partitions();
  info->add_lost_partitions(2);
  cluster.Publish();
  cluster.RunFor(100 * kMilli);
  lost = cluster.Pull(table, to);
  REQUIRE(cluster.Wait(lost));
  CHECK(lost->status.code() == Code::kDataLoss);
  info->clear_lost_partitions();
  cluster.Publish();
  cluster.RunFor(100 * kMilli);
  cluster.Good(cluster.Pull(table, to));
}

}  // namespace failover_test
}  // namespace verbena::test
