// One worker with two rails, step by step: the effect of a missing, lost or new rail on calls.
// (Many seeds with everything at once: cluster_test.cc.)
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/cluster/sim_cluster.h"

namespace verbena::test {
namespace {

constexpr uint64_t kRailElements = 16 * kSimChunkBytes / 4;

struct World {
  World(uint32_t server_rails, uint32_t worker_rails, v1::Consistency kind) : consistency(kind) {
    ClusterOptions options;
    options.servers = options.shards = 1;
    options.rails = server_rails;
    cluster = std::make_unique<SimCluster>(options);
    SimWorker::Options own;
    own.rails = worker_rails;
    worker = cluster->AddWorker("worker", own);
    block = *rdma::MemoryBlock::Allocate(kRailElements * sizeof(float), "test");
  }

  client::ClientCore& core() { return worker->core(); }
  bool Until(const std::function<bool()>& done, int64_t ns = 20 * kSecond) {
    return cluster->RunUntil(done, cluster->now() + ns);
  }
  void Join() {
    absl::Status status = absl::UnknownError("not done");
    core().Join(cluster->now() + 10 * kSecond, [&](absl::Status s) { status = s; });
    REQUIRE(Until([&] { return !absl::IsUnknown(status); }));
    REQUIRE(status.ok());
    v1::TableSpec spec;
    spec.set_name("weights");
    spec.add_shape(kRailElements);
    spec.set_consistency(consistency);
    spec.set_chunk_bytes(kSimChunkBytes);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    bool created = false;
    core().CreateTable(spec, cluster->now() + 10 * kSecond, [&](absl::StatusOr<v1::Table> t) {
      REQUIRE(t.ok());
      table = t->id();
      created = true;
    });
    REQUIRE(Until([&] { return created; }));
  }
  // One step: a push of ones, its end, a pull of the result.
  void Step(int64_t timeout = kSecond) {
    const int64_t deadline = cluster->now() + timeout;
    auto* values = reinterpret_cast<float*>(block->data());
    std::fill(values, values + kRailElements, 1.0f);
    int ended = 0;
    const auto done = [&](absl::Status status) {
      CHECK(status.ok());
      ++ended;
    };
    REQUIRE(core().Push(table, {block, 0, 0, kRailElements}, deadline, done).ok());
    REQUIRE(core().EndStep(table, deadline, done).ok());
    REQUIRE(Until([&] { return ended == 2; }, timeout));
    REQUIRE(core().Pull(table, {block, 0, 0, kRailElements}, std::nullopt, deadline, done).ok());
    REQUIRE(Until([&] { return ended == 3; }, timeout));
    ++steps;
    CHECK(std::all_of(values, values + kRailElements, [&](float v) { return v == -steps; }));
  }
  std::vector<std::string> States() {
    std::vector<std::string> states;
    for (const auto& lane : core().statistics().lanes) {
      if (lane.rail >= states.size()) states.resize(lane.rail + 1);
      states[lane.rail] = lane.state;
    }
    return states;
  }
  bool BothOpen() { return States() == std::vector<std::string>{"open", "open"}; }
  void Cut(uint32_t rail, bool cut) { cluster->network().Cut(RailHost("worker", rail), cut); }

  std::unique_ptr<SimCluster> cluster;
  SimWorker* worker;
  std::shared_ptr<rdma::MemoryBlock> block;
  v1::Consistency consistency;
  uint32_t table = 0;
  float steps = 0;
};

TEST_CASE("a rail that is lost costs no call, takes half of the partitions, and gets them back") {
  World w(2, 2, GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC));
  const uint32_t rail = GENERATE(0u, 1u);
  w.Join();
  w.Step();
  REQUIRE(w.Until([&] { return w.BothOpen(); }));
  w.Step();
  const uint64_t spread = w.core().statistics().rail_moves;
  CHECK(spread > 0);
  w.Cut(rail, true);
  for (int i = 0; i < 5; ++i) w.Step();
  CHECK(w.States()[1 - rail] == "open");
  CHECK(w.States()[rail] != "open");
  const uint64_t gathered = w.core().statistics().rail_moves;
  CHECK(gathered > spread);
  w.Cut(rail, false);
  // Nothing is queued for it, and yet it comes back.
  REQUIRE(w.Until([&] { return w.BothOpen(); }));
  w.Step();
  w.Step();
  CHECK(w.core().statistics().rail_moves > gathered);
}

TEST_CASE("a rail that was never there keeps nobody waiting") {
  World w(2, 2, v1::CONSISTENCY_SYNC);
  const uint32_t rail = GENERATE(0u, 1u);
  const bool silent = GENERATE(true, false);
  if (silent) {
    w.cluster->network().Stall(RailHost("worker", rail), 60 * kSecond);
  } else {
    w.Cut(rail, true);
  }
  w.Join();
  for (int i = 0; i < 5; ++i) w.Step();
  CHECK(w.States()[1 - rail] == "open");
  CHECK(w.States()[rail] != "open");
  if (silent) {
    w.cluster->network().Stall(RailHost("worker", rail), 0);
  } else {
    w.Cut(rail, false);
  }
  REQUIRE(w.Until([&] { return w.BothOpen(); }));
  for (int i = 0; i < 3; ++i) w.Step();
}

TEST_CASE("all rails lost at once: calls wait for the first that comes back") {
  World w(2, 2, v1::CONSISTENCY_SYNC);
  w.Join();
  w.Step();
  REQUIRE(w.Until([&] { return w.BothOpen(); }));
  const uint32_t first = GENERATE(0u, 1u);
  for (const uint32_t rail : {0u, 1u}) w.Cut(rail, true);
  w.Until([] { return false; }, kSecond);
  CHECK(w.States() == std::vector<std::string>{"idle", "idle"});
  w.Cut(first, false);
  w.Until([] { return false; }, 2 * kSecond);
  w.Step();
  CHECK(w.States()[first] == "open");
}

TEST_CASE("where one side has more rails, those are used that both have") {
  const auto [server, worker, lanes] = GENERATE(
      table<uint32_t, uint32_t, size_t>({{1, 2, 1}, {2, 1, 1}, {3, 2, 2}, {2, 3, 2}, {3, 3, 3}}));
  World w(server, worker, v1::CONSISTENCY_SYNC);
  w.Join();
  for (int i = 0; i < 3; ++i) w.Step();
  REQUIRE(w.Until([&] {
    const std::vector<std::string> states = w.States();
    return std::all_of(states.begin(), states.end(), [](const auto& s) { return s == "open"; });
  }));
  CHECK(w.States().size() == lanes);
}

TEST_CASE("regression: a push over a lane whose writes neither end nor fail is sent over another") {
  World w(1, 1, GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC));
  // The host whose device hangs. A server whose device hangs sends no answers and no credits.
  const std::string whose = GENERATE(std::string("worker"), std::string("server-0"));
  w.Join();
  w.Step();
  w.cluster->network().Hang(whose);
  w.Step(40 * kSecond);
  CHECK(w.core().statistics().lanes_lost == 1);
  w.Step();
}

TEST_CASE("a lane on which nothing is in progress is let alone, however long") {
  World w(1, 1, v1::CONSISTENCY_SYNC);
  w.Join();
  w.Step();
  w.Until([] { return false; }, 120 * kSecond);
  w.Step();
  CHECK(w.core().statistics().lanes_lost == 0);
}

}  // namespace
}  // namespace verbena::test
