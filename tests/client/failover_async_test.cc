// Partitions that get another primary: sequences of async tables, and norms over several chunks.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace {

using Slice = client::ClientCore::Slice;

FakeCluster::Options AsyncCopies() {
  FakeCluster::Options options;
  options.servers = 2;
  options.replicas = 2;
  options.partitions = 2;
  return options;
}

struct AsyncFailover : FakeCluster {
  AsyncFailover() : FakeCluster(AsyncCopies()) {
    for (const auto& server : servers) server->knows = &view;
  }
  void Good(const CallPtr& call) {
    REQUIRE(Wait(call));
    INFO(call->status);
    REQUIRE(call->status.ok());
  }
  void FailOver() {
    servers[0]->silent = true;
    for (uint32_t p = 0; p < 2; ++p) Move(p, 1);
    Publish();
  }
  // Sequences of a partition's pushes and end-steps, as the server received them.
  std::vector<uint64_t> Sequences(size_t server, uint32_t partition) const {
    std::vector<uint64_t> result;
    for (const Seen& s : servers[server]->seen) {
      const bool counts = s.type == RecordType::kPush || s.type == RecordType::kEndStep;
      if (counts && s.partition == partition) result.push_back(s.sequence);
    }
    return result;
  }
};

// 1, 2, ... n
std::vector<uint64_t> UpTo(uint64_t first, uint64_t last) {
  std::vector<uint64_t> result;
  for (uint64_t i = first; i <= last; ++i) result.push_back(i);
  return result;
}

TEST_CASE(
    "async: unanswered pushes go to the next server in order, and replicated ones count once") {
  const auto consistency = GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  const uint64_t replicated = GENERATE(1, 2, 4, 7);
  AsyncFailover cluster;
  const uint32_t table = cluster.AddTable(consistency, 4);
  cluster.Join();
  cluster.Good(cluster.Push(table, cluster.Memory(table, 1.0f)));  // sequences 1, 2 of either
  const uint64_t answered = 2;
  cluster.servers[0]->silent = true;
  std::vector<FakeCluster::CallPtr> calls;
  for (int i = 0; i < 2; ++i) calls.push_back(cluster.Push(table, cluster.Memory(table, 2.0f)));
  calls.push_back(cluster.EndStep(table));
  cluster.RunFor(100 * kMilli);
  CHECK_FALSE(calls[0]->done);
  cluster.FailOver();
  // Some had come to the copy, and were not acknowledged.
  const uint64_t known = std::max(answered, replicated);
  for (uint32_t p = 0; p < 2; ++p) cluster.servers[1]->Settle(table, p, known);
  for (int i = 0; i < 2; ++i) calls.push_back(cluster.Push(table, cluster.Memory(table, 4.0f)));
  for (const auto& call : calls) cluster.Good(call);
  for (uint32_t p = 0; p < 2; ++p) {
    CHECK(cluster.Sequences(1, p) == UpTo(answered + 1, 2 + 4 + 1 + 4));
    for (const Seen& s : cluster.servers[1]->seen) CHECK(s.epoch == 2);
  }
  CHECK_FALSE(cluster.core->Busy());
}

TEST_CASE("async: new pushes do not overtake those in flight to the old primary") {
  AsyncFailover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4);
  cluster.Join();
  cluster.Good(cluster.Pull(table, cluster.Memory(table, 0.0f)));
  cluster.servers[0]->silent = true;
  std::vector<FakeCluster::CallPtr> calls;
  // One partition waits, the other does not.
  calls.push_back(cluster.Push(table, cluster.Chunk(cluster.Memory(table, 1.0f), 0, 1024)));
  cluster.RunFor(50 * kMilli);
  const auto posted = cluster.servers[0]->Of(RecordType::kPush);
  REQUIRE(posted.size() == 1);
  const uint32_t waits = posted[0].partition;
  // The old lane takes a while to die.
  cluster.endpoint->never_dead = true;
  cluster.FailOver();
  for (uint32_t c = 0; c < 4; ++c) {
    calls.push_back(cluster.Push(table, cluster.Chunk(cluster.Memory(table, 2.0f), c, 1024)));
  }
  calls.push_back(cluster.EndStep(table));
  cluster.RunFor(200 * kMilli);
  CHECK(cluster.Sequences(1, waits).empty());
  CHECK(cluster.Sequences(1, 1 - waits) == UpTo(1, 3));
  CHECK_FALSE(calls[0]->done);
  cluster.endpoint->never_dead = false;
  for (const auto& call : calls) cluster.Good(call);
  CHECK(cluster.Sequences(1, waits) == UpTo(1, 4));
  CHECK(cluster.Sequences(1, 1 - waits) == UpTo(1, 3));
  CHECK(cluster.servers[1]->applied[{table, 0}] == 3.0f);
}

TEST_CASE(
    "async: a push that the old primary refuses goes to the new one as soon as the view names it") {
  AsyncFailover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4);
  cluster.Join();
  cluster.Good(cluster.Push(table, cluster.Memory(table, 1.0f)));
  for (uint32_t p = 0; p < 2; ++p) cluster.Move(p, 1);
  auto push = cluster.Push(table, cluster.Memory(table, 2.0f));
  cluster.RunFor(30 * kMilli);  // kWrongEpoch, and the view is unchanged
  CHECK_FALSE(push->done);
  cluster.Publish();
  auto next = cluster.Push(table, cluster.Memory(table, 4.0f));
  cluster.Good(push);
  cluster.Good(next);
  for (uint32_t c = 0; c < 4; ++c) CHECK(cluster.servers[1]->applied[{table, c}] == 7.0f);
  for (uint32_t p = 0; p < 2; ++p) CHECK(cluster.Sequences(1, p) == UpTo(3, 6));
}

TEST_CASE("async: an unanswered push whose call is over goes to the next server empty") {
  AsyncFailover cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  cluster.Good(cluster.Pull(table, cluster.Memory(table, 0.0f)));
  cluster.servers[0]->silent = true;
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f), 200 * kMilli);
  REQUIRE(cluster.Wait(push));
  CHECK_FALSE(cluster.core->BufferReleased(push->id));
  cluster.FailOver();
  REQUIRE(cluster.RunUntil([&] { return cluster.core->BufferReleased(push->id); }, kSecond));
  cluster.Good(cluster.Push(table, cluster.Memory(table, 2.0f)));
  for (uint32_t p = 0; p < 2; ++p) CHECK(cluster.Sequences(1, p) == UpTo(1, 2));
  CHECK(cluster.servers[1]->applied[{table, 0}] == 2.0f);
}

// ---- norms --------------------------------------------------------------------------------------

struct Clipped : AsyncFailover {
  Clipped() {
    v1::TableSpec spec;
    spec.set_consistency(v1::CONSISTENCY_SYNC);
    spec.set_chunk_bytes(4096);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(0.1);
    spec.mutable_optimizer()->set_clip_global_norm(1.0);
    table = AddTyped(spec, 4 * 1024);
    for (const auto& server : servers) server->clipped.insert(table);
    Join();
  }
  uint32_t table = 0;
};

TEST_CASE("norms: a new primary gets the totals of the open step again") {
  Clipped cluster;
  auto& old = *cluster.servers[0];
  const auto when = GENERATE(RecordType::kNorms, RecordType::kTotals);
  // One of the two partitions moves while the worker requests norms or sends totals.
  old.refuse = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type == when) return ReplyStatus::kTooEarly;
    return std::nullopt;
  };
  auto push = cluster.Push(cluster.table, cluster.Memory(cluster.table, 1.0f));
  auto end = cluster.EndStep(cluster.table);
  cluster.RunFor(100 * kMilli);
  CHECK_FALSE(push->done);
  cluster.Move(1, 1);
  cluster.Publish();
  cluster.RunFor(100 * kMilli);
  old.refuse = nullptr;
  cluster.Good(push);
  cluster.Good(end);
  CHECK(old.totals[0] == std::vector<double>{4});
  CHECK(cluster.servers[1]->totals[1] == std::vector<double>{4});
  // And so does the next one, in which all goes.
  push = cluster.Push(cluster.table, cluster.Memory(cluster.table, 1.0f));
  end = cluster.EndStep(cluster.table);
  cluster.FailOver();
  cluster.Good(push);
  cluster.Good(end);
}

TEST_CASE("norms: sent totals are sent again, though another partition has lost its norms") {
  Clipped cluster;
  auto& old = *cluster.servers[0];
  // Partition 0 has committed, and the copy of 1 does not know of it; the worker knows neither.
  old.refuse = [](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type == RecordType::kAwait) return ReplyStatus::kNotReady;
    return std::nullopt;
  };
  auto push = cluster.Push(cluster.table, cluster.Memory(cluster.table, 1.0f));
  auto end = cluster.EndStep(cluster.table);
  cluster.RunFor(100 * kMilli);
  REQUIRE(old.totals[0].size() == 1);
  REQUIRE(old.totals[1].size() == 1);
  cluster.Move(0, 1);
  old.hold_commits = true;
  cluster.Move(1, 1);
  old.silent = true;
  cluster.Publish();
  cluster.Good(push);
  cluster.Good(end);
  CHECK(cluster.servers[1]->totals[0].empty());
  CHECK(cluster.servers[1]->totals[1] == std::vector<double>{4});
}

}  // namespace
}  // namespace verbena::test
