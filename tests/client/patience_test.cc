// When a worker sleeps until the last answer of its lanes: only while no answer before it could be
// of use, or what it waits for would wait for it.
#include <catch2/catch.hpp>

#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace {

using rdma::SleepUntil;

SleepUntil Sleeps(FakeCluster& cluster) {
  cluster.core->Arm();
  cluster.core->Disarm();
  return cluster.endpoint->last_until;
}

// With a table, lanes that are open, and servers that do not answer.
struct World {
  explicit World(v1::Consistency consistency, uint32_t chunks = 2) {
    table = cluster.AddTable(consistency, chunks);
    cluster.Join();
    to = cluster.Memory(table, 0.0f);
    REQUIRE(cluster.Wait(cluster.PushPull(table, from(), to)));
    cluster.servers[0]->silent = true;
  }
  client::ClientCore::Slice from() { return cluster.Memory(table, 1.0f); }

  FakeCluster cluster;
  uint32_t table = 0;
  client::ClientCore::Slice to;
};

TEST_CASE("one operation whose records are all out: the last answer will do") {
  World w(v1::CONSISTENCY_ASYNC);
  CHECK(Sleeps(w.cluster) == SleepUntil::kAnything);  // nothing is under way
  const auto pull = w.cluster.Pull(w.table, w.to);
  w.cluster.RunFor(kMilli);
  CHECK(Sleeps(w.cluster) == SleepUntil::kLastAnswer);
  w.cluster.servers[0]->silent = false;
  REQUIRE(w.cluster.Wait(pull));
  CHECK(Sleeps(w.cluster) == SleepUntil::kAnything);
}

TEST_CASE("a step that is pushed and pulled sleeps until the pull") {
  World w(GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC));
  const auto call = w.cluster.PushPull(w.table, w.from(), w.to);
  w.cluster.RunFor(kMilli);
  CHECK(Sleeps(w.cluster) == SleepUntil::kLastAnswer);
  w.cluster.servers[0]->silent = false;
  REQUIRE(w.cluster.Wait(call));
}

TEST_CASE("of two operations each may be waited for") {
  World w(v1::CONSISTENCY_ASYNC);
  const auto push = w.cluster.Push(w.table, w.from());
  const auto pull = w.cluster.Pull(w.table, w.to);
  w.cluster.RunFor(kMilli);
  CHECK(Sleeps(w.cluster) == SleepUntil::kAnything);
  w.cluster.servers[0]->silent = false;
  REQUIRE(w.cluster.Wait(push));
  REQUIRE(w.cluster.Wait(pull));
}

TEST_CASE("a pull that was given up may be answered much later than what is waited for") {
  World w(v1::CONSISTENCY_ASYNC);
  const auto pull = w.cluster.Pull(w.table, w.to, {}, kMilli);
  REQUIRE(w.cluster.Wait(pull));
  CHECK(absl::IsDeadlineExceeded(pull->status));
  const auto push = w.cluster.Push(w.table, w.from());
  w.cluster.RunFor(kMilli);
  CHECK(Sleeps(w.cluster) == SleepUntil::kAnything);
  w.cluster.servers[0]->silent = false;
  REQUIRE(w.cluster.Wait(push));
}

TEST_CASE("answers of many records are handled as they come") {
  World w(v1::CONSISTENCY_ASYNC, 12);
  const auto pull = w.cluster.Pull(w.table, w.to);
  w.cluster.RunFor(kMilli);
  CHECK(Sleeps(w.cluster) == SleepUntil::kAnything);
  w.cluster.servers[0]->silent = false;
  REQUIRE(w.cluster.Wait(pull));
}

TEST_CASE("a step whose norm is asked for next goes on with the answers to its pushes") {
  FakeCluster cluster;
  v1::TableSpec spec;
  spec.set_consistency(v1::CONSISTENCY_SYNC);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(0.1);
  spec.mutable_optimizer()->set_clip_global_norm(1);
  spec.set_chunk_bytes(4096);
  const uint32_t table = cluster.AddTyped(spec, 2 * 1024);
  cluster.servers[0]->clipped.insert(table);
  cluster.Join();
  const auto to = cluster.Memory(table, 0.0f);
  REQUIRE(cluster.Wait(cluster.PushPull(table, cluster.Memory(table, 1.0f), to)));
  cluster.servers[0]->silent = true;
  const auto call = cluster.PushPull(table, cluster.Memory(table, 1.0f), to);
  cluster.RunFor(kMilli);
  CHECK(Sleeps(cluster) == SleepUntil::kAnything);
  cluster.servers[0]->silent = false;
  REQUIRE(cluster.Wait(call));
}

}  // namespace
}  // namespace verbena::test
