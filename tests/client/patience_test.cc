// When a worker sleeps until the last answer of its lanes: only while no earlier answer could help
// it, and no other request depends on one.
#include <catch2/catch.hpp>

#include "client/core/failpoints.h"
#include "rdma/sim/sim_endpoint.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace patience_test {

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

TEST_CASE("with all records of one operation in flight a worker sleeps until the last answer") {
  World w(v1::CONSISTENCY_ASYNC);
  CHECK(Sleeps(w.cluster) == SleepUntil::kAnything);  // nothing is in progress
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

TEST_CASE("with two operations in progress a worker wakes for any answer") {
  World w(v1::CONSISTENCY_ASYNC);
  const auto push = w.cluster.Push(w.table, w.from());
  const auto pull = w.cluster.Pull(w.table, w.to);
  w.cluster.RunFor(kMilli);
  CHECK(Sleeps(w.cluster) == SleepUntil::kAnything);
  w.cluster.servers[0]->silent = false;
  REQUIRE(w.cluster.Wait(push));
  REQUIRE(w.cluster.Wait(pull));
}

TEST_CASE("after a pull that ended by its deadline a worker wakes for any answer") {
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

// A client asleep as the runtime's threads are: only the servers and the network run.
class Asleep {
 public:
  explicit Asleep(FakeCluster* cluster)
      : cluster_(cluster), endpoint_(static_cast<rdma::SimEndpoint*>(cluster->endpoint->to())) {
    REQUIRE(cluster_->core->Arm());
  }
  ~Asleep() { cluster_->core->Disarm(); }
  // Whether an answer, or the core itself, wakes it before all is quiet.
  bool Woken() {
    const int64_t end = cluster_->now() + 10 * kMilli;
    while (cluster_->now() < end) {
      if (endpoint_->woken() || cluster_->core->NextTimerNanos() == 0) return true;
      bool worked = false;
      for (const auto& server : cluster_->servers) worked |= server->RunOnce();
      if (!worked) cluster_->network.Advance(end);
    }
    return endpoint_->woken();
  }

 private:
  FakeCluster* const cluster_;
  rdma::SimEndpoint* const endpoint_;
};

// A sync table without a step, and an async one whose pulls are answered at once.
struct TwoTables {
  explicit TwoTables(bool observer) : cluster(With(observer)) {
    slow = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
    quick = cluster.AddTable(v1::CONSISTENCY_ASYNC, 1);
    cluster.Join();
    slow_to = cluster.Memory(slow, 0.0f);
    quick_to = cluster.Memory(quick, 0.0f);
    REQUIRE(cluster.Wait(cluster.Pull(quick, quick_to)));
  }
  ~TwoTables() { client::failpoints() = {}; }
  static FakeCluster::Options With(bool observer) {
    FakeCluster::Options options;
    options.observer = observer;
    return options;
  }

  FakeCluster cluster;
  uint32_t slow = 0, quick = 0;
  client::ClientCore::Slice slow_to, quick_to;
};

TEST_CASE("an operation that starts while another sleeps for its last answer is answered awake") {
  const bool planted = GENERATE(false, true);
  TwoTables w(true);
  client::failpoints().keep_patience = planted;
  const auto waits = w.cluster.Pull(w.slow, w.slow_to, 1);
  w.cluster.RunFor(kMilli);
  FakeCluster::CallPtr quick;
  {
    Asleep asleep(&w.cluster);
    REQUIRE(w.cluster.endpoint->last_until == SleepUntil::kLastAnswer);
    CHECK_FALSE(asleep.Woken());
    quick = w.cluster.Pull(w.quick, w.quick_to);
    CHECK(asleep.Woken() == !planted);
  }
  REQUIRE(w.cluster.Wait(quick));
  CHECK_FALSE(waits->done);
}

TEST_CASE("answers that woke no thread are handled when another operation starts") {
  const bool planted = GENERATE(false, true);
  TwoTables w(false);
  client::failpoints().keep_patience = planted;
  FakeServer& server = *w.cluster.servers[0];
  server.silent = true;
  const auto step = w.cluster.PushPull(w.slow, w.cluster.Memory(w.slow, 1.0f), w.slow_to);
  w.cluster.RunFor(kMilli);
  {
    Asleep asleep(&w.cluster);
    REQUIRE(w.cluster.endpoint->last_until == SleepUntil::kLastAnswer);
    server.silent = false;
    server.hold_commits = true;
    CHECK_FALSE(asleep.Woken());  // the pushes are answered, the pulls wait for the commit
    server.silent = true;         // no later answer makes up for it
    const auto quick = w.cluster.Pull(w.quick, w.quick_to);
    CHECK((w.cluster.core->NextTimerNanos() == 0) == !planted);
  }
  server.silent = server.hold_commits = false;
  REQUIRE(w.cluster.Wait(step));
}

TEST_CASE("after a push that ended by its deadline a worker wakes for any answer") {
  World w(v1::CONSISTENCY_ASYNC);
  const auto push = w.cluster.Push(w.table, w.from(), kMilli);
  REQUIRE(w.cluster.Wait(push));
  CHECK(absl::IsDeadlineExceeded(push->status));
  const auto pull = w.cluster.Pull(w.table, w.to);
  w.cluster.RunFor(kMilli);
  CHECK(Sleeps(w.cluster) == SleepUntil::kAnything);
  w.cluster.servers[0]->silent = false;
  REQUIRE(w.cluster.Wait(pull));
}

}  // namespace patience_test
}  // namespace verbena::test
