// An older state of the coordinator under live servers: what they hold is neither lost nor taken
// for something else.
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "proto/cluster_history.h"
#include "tests/cluster/sim_cluster.h"

namespace verbena::test {
namespace {

constexpr uint64_t kSmallTable = 64;
constexpr uint32_t kWorkers = 4;
// Two pushes of 1 by one worker, at rate 1 and the mean over all workers.
constexpr float kTrained = -2.0f / kWorkers;

v1::TableSpec AsyncSpec(const std::string& name) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job("job");
  spec.add_shape(kSmallTable);
  spec.set_chunk_bytes(256);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  return spec;
}

// A worker of its own job run, with calls that wait for their end.
class Caller {
 public:
  Caller(SimCluster* cluster, const std::string& name, uint64_t seed)
      : cluster_(cluster),
        worker_(cluster->AddWorker(name, {.expected_workers = kWorkers, .seed = seed})),
        block_(*rdma::MemoryBlock::Allocate(2 * kSmallTable * sizeof(float), name)) {}

  absl::Status Join() {
    return Wait([&](auto done) { core().Join(In(40 * kSecond), done); });
  }
  absl::StatusOr<uint32_t> Create(const std::string& name) {
    std::optional<absl::StatusOr<v1::Table>> made;
    core().CreateTable(AsyncSpec(name), In(40 * kSecond),
                       [&](auto table) { made = std::move(table); });
    REQUIRE(cluster_->RunUntil([&] { return made.has_value(); }, cluster_->now() + 60 * kSecond));
    if (!made->ok()) return made->status();
    return (*made)->id();
  }
  absl::Status Push(uint32_t table) {
    for (uint64_t i = 0; i < kSmallTable; ++i) Values()[i] = 1;
    return Data([&](auto done) {
      return core().Push(table, {block_, 0, 0, kSmallTable}, In(40 * kSecond), done);
    });
  }
  // The first parameter.
  absl::StatusOr<float> Pull(uint32_t table) {
    const absl::Status status = Data([&](auto done) {
      return core().Pull(table, {block_, kSmallTable * sizeof(float), 0, kSmallTable}, 0,
                         In(40 * kSecond), done);
    });
    if (!status.ok()) return status;
    return Values()[kSmallTable];
  }

 private:
  client::ClientCore& core() { return worker_->core(); }
  float* Values() { return reinterpret_cast<float*>(block_->data()); }
  int64_t In(int64_t nanos) const { return worker_->At(cluster_->now() + nanos); }
  absl::Status Wait(const std::function<void(client::ClientCore::Done)>& start) {
    auto ended = std::make_shared<std::optional<absl::Status>>();
    start([ended](absl::Status status) { *ended = std::move(status); });
    REQUIRE(cluster_->RunUntil([&] { return ended->has_value(); }, cluster_->now() + 60 * kSecond));
    return **ended;
  }
  absl::Status Data(
      const std::function<absl::StatusOr<client::OperationId>(client::ClientCore::Done)>& start) {
    absl::Status refused;
    const absl::Status ended = Wait([&](client::ClientCore::Done done) {
      refused = start(done).status();
      if (!refused.ok()) done(refused);
    });
    return ended;
  }

  SimCluster* const cluster_;
  SimWorker* const worker_;
  const std::shared_ptr<rdma::MemoryBlock> block_;
};

// What a worker that comes under the older state gets of a new table of its own, and then an older
// one of what it pushed, with the newer state back.
struct Outcome {
  absl::StatusOr<float> new_table = absl::UnknownError("");
  absl::StatusOr<float> old_table = absl::UnknownError("");
};

Outcome RollBack(int tables_since_backup) {
  ClusterOptions options;
  options.servers = 1;
  options.lease_ms = 1000;
  SimCluster cluster(options);
  Caller one(&cluster, "one", 1);
  REQUIRE(one.Join().ok());
  REQUIRE(one.Create("a").ok());
  const server::CoordinatorState backup = cluster.store().state();
  cluster.RestartCoordinator();
  uint32_t last = 0;
  for (int i = 0; i < tables_since_backup; ++i) {
    const auto made = one.Create("b" + std::to_string(i));
    REQUIRE(made.ok());
    last = *made;
    REQUIRE(one.Push(last).ok());
    REQUIRE(one.Push(last).ok());
  }
  const server::CoordinatorState newest = cluster.store().state();

  cluster.store().set_state(backup);
  cluster.RestartCoordinator();
  Outcome outcome;
  // At once, before any member has sent a heartbeat.
  Caller two(&cluster, "two", 2);
  absl::Status status = two.Join();
  for (int i = 0; i < tables_since_backup && status.ok(); ++i) {
    const absl::StatusOr<uint32_t> made = two.Create("c" + std::to_string(i));
    status = made.status();
    if (made.ok() && i + 1 == tables_since_backup) outcome.new_table = two.Pull(*made);
  }
  if (!status.ok()) outcome.new_table = status;

  cluster.store().set_state(newest);
  cluster.RestartCoordinator();
  Caller three(&cluster, "three", 3);
  REQUIRE(three.Join().ok());
  outcome.old_table = three.Pull(last);
  return outcome;
}

TEST_CASE("regression: an older coordinator state serves no table's values under another one") {
  for (const int tables : {1, 3, 12}) {
    INFO(tables << " tables since the backup");
    const Outcome outcome = RollBack(tables);
    INFO(outcome.new_table.status().ToString());
    CHECK_FALSE(outcome.new_table.ok());
    INFO(outcome.old_table.status().ToString());
    REQUIRE(outcome.old_table.ok());
    CHECK(*outcome.old_table == kTrained);
  }
}

TEST_CASE("a coordinator state whose age goes unnoticed is found") {
  history_planted_bugs().one_history = true;
  const Outcome outcome = RollBack(1);
  history_planted_bugs().one_history = false;
  INFO(outcome.new_table.status().ToString());
  REQUIRE(outcome.new_table.ok());
  CHECK(*outcome.new_table == kTrained);  // what was pushed to another table
}

}  // namespace
}  // namespace verbena::test
