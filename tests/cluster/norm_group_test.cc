// The tables of a global norm as a worker sees them: calls that are refused, the text of errors,
// and steps that go on without tables and partitions that are gone.
#include <catch2/catch.hpp>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "client/core/failpoints.h"
#include "proto/spec/table_spec.h"
#include "tests/cluster/sim_cluster.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

// A job of one worker, without faults.
class Single {
 public:
  Single() : cluster_(ClusterOptions{}), worker_(cluster_.AddWorker("worker", {})) {
    REQUIRE(Wait([&](auto done) { core().Join(Deadline(), done); }).ok());
  }

  uint32_t Create(const std::string& name, double clip, int chunks = 3) {
    v1::TableSpec spec;
    spec.set_name(name);
    spec.set_job("job");
    spec.add_shape(static_cast<uint64_t>(chunks) * 64);
    spec.set_chunk_bytes(256);
    spec.mutable_optimizer()->set_rate(1);
    spec.mutable_optimizer()->set_clip_global_norm(clip);
    std::optional<absl::StatusOr<v1::Table>> table;
    core().CreateTable(spec, Deadline(), [&](absl::StatusOr<v1::Table> t) { table = t; });
    cluster_.RunUntil([&] { return table.has_value(); }, Deadline());
    REQUIRE(table.has_value());
    REQUIRE(table->ok());
    elements_[(*table)->id()] = spec.shape(0);
    return (*table)->id();
  }
  absl::Status Drop(const std::string& name) {
    return Wait([&](auto done) { core().DropTable(name, Deadline(), done); });
  }

  // Pushes `value` to all of the table and ends its step; returns when or how that is done.
  std::shared_ptr<std::optional<absl::Status>> Step(uint32_t table, float value,
                                                    int64_t timeout = 5 * kSecond) {
    auto block = Block(table);
    std::fill_n(reinterpret_cast<float*>(block->data()), elements_[table], value);
    auto status = std::make_shared<std::optional<absl::Status>>();
    auto push = core().Push(table, {block, 0, 0, elements_[table]}, cluster_.now() + timeout,
                            [block](absl::Status) {});
    auto end =
        core().EndStep(table, cluster_.now() + timeout, [status](absl::Status s) { *status = s; });
    if (!end.ok()) *status = end.status();
    blocks_.push_back(block);
    return status;
  }
  absl::Status Result(const std::shared_ptr<std::optional<absl::Status>>& status) {
    cluster_.RunUntil([&] { return status->has_value(); }, cluster_.now() + 30 * kSecond);
    return status->value_or(absl::UnknownError("never ended"));
  }
  // Element 0 of version `version` of a chunk's.
  absl::StatusOr<float> Pull(uint32_t table, uint64_t version) {
    auto block = Block(table);
    const absl::Status status = Wait([&](auto done) {
      auto id = core().Pull(table, {block, 0, 0, elements_[table]}, version, Deadline(), done);
      if (!id.ok()) done(id.status());
    });
    blocks_.push_back(block);
    if (!status.ok()) return status;
    return *reinterpret_cast<const float*>(block->data());
  }
  SimCluster& cluster() { return cluster_; }
  client::ClientCore& core() { return worker_->core(); }

 private:
  int64_t Deadline() { return cluster_.now() + 10 * kSecond; }
  std::shared_ptr<rdma::MemoryBlock> Block(uint32_t table) {
    return *rdma::MemoryBlock::Allocate(elements_[table] * sizeof(float), "single");
  }
  absl::Status Wait(const std::function<void(std::function<void(absl::Status)>)>& start) {
    std::optional<absl::Status> status;
    start([&](absl::Status s) { status = s; });
    cluster_.RunUntil([&] { return status.has_value(); }, cluster_.now() + 30 * kSecond);
    return status.value_or(absl::UnknownError("never ended"));
  }

  SimCluster cluster_;
  SimWorker* worker_;
  std::map<uint32_t, uint64_t> elements_;
  std::vector<std::shared_ptr<rdma::MemoryBlock>> blocks_;
};

TEST_CASE("one norm spans the tables that set it, and no others") {
  Single s;
  const uint32_t a = s.Create("a", 1), b = s.Create("b", 1, 1), other = s.Create("other", 0);
  const auto end_a = s.Step(a, 3);
  const auto end_b = s.Step(b, 4);
  CHECK(s.Result(s.Step(other, 5)).ok());
  CHECK(s.Result(end_a).ok());
  CHECK(s.Result(end_b).ok());
  const double norm = std::sqrt(3 * 64 * 9.0 + 64 * 16.0);
  CHECK(*s.Pull(a, 1) == Approx(-3 / norm));
  CHECK(*s.Pull(b, 1) == Approx(-4 / norm));
  CHECK(*s.Pull(other, 1) == -5);
}

TEST_CASE("a step that times out names the table of its norm on which it has not ended") {
  Single s;
  const uint32_t a = s.Create("a", 1);
  s.Create("forgotten", 1);
  const absl::Status status = s.Result(s.Step(a, 1, kSecond));
  CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(std::string(status.message()),
             Contains("the norm of step 0 also spans table 'forgotten', on which this worker has "
                      "not ended it"));
  // And not two steps ahead.
  const absl::Status ahead = s.Result(s.Step(a, 1));
  CHECK(ahead.code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE(
    "a table that joins a norm after the first steps is refused; dropping it repairs the job") {
  Single s;
  const uint32_t a = s.Create("a", 1);
  for (int step = 0; step < 3; ++step) CHECK(s.Result(s.Step(a, 1)).ok());
  const uint32_t late = s.Create("late", 1);
  for (const uint32_t table : {a, late}) {
    const absl::Status status = s.Result(s.Step(table, 1));
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(status.message()), Contains("table 'late'"));
    CHECK_THAT(std::string(status.message()), Contains("before the first step"));
    CHECK_THAT(std::string(status.message()), Contains("at step 3"));
  }
  REQUIRE(s.Drop("late").ok());
  REQUIRE(s.cluster().RunUntil([&] { return s.core().view().tables_size() == 1; },
                               s.cluster().now() + 10 * kSecond));
  const auto id = s.core().EndStep(a, s.cluster().now() + kSecond, [](absl::Status) {});
  CHECK(id.ok());
  CHECK(s.Pull(a, 4).ok());
}

// Whether steps of tables are over that are made when those of a norm have made steps.
bool LaterTablesStep(bool all_dropped) {
  Single s;
  const uint32_t a = s.Create("a", 1);
  const int steps = all_dropped ? 3 : 1;
  for (int step = 0; step < steps; ++step) REQUIRE(s.Result(s.Step(a, 1)).ok());
  if (all_dropped) REQUIRE(s.Drop("a").ok());
  const uint32_t b = s.Create("b", 1);
  for (int step = 0; step < 4; ++step) {
    const auto end = s.Step(b, 1);
    if (!all_dropped && step > 0 && !s.Result(s.Step(a, 1)).ok()) return false;
    if (!s.Result(end).ok()) return false;
  }
  return true;
}

TEST_CASE("regression: tables that take the place of a norm's tables have their own steps") {
  CHECK(LaterTablesStep(true));
}

TEST_CASE("regression: a table that joins a norm after its first step has a first step, too") {
  CHECK(LaterTablesStep(false));
}

TEST_CASE("failpoint: steps of a norm's tables count for those that take their place") {
  client::failpoints().keep_norm_steps = true;
  const bool replaced = LaterTablesStep(true);
  const bool joined = LaterTablesStep(false);
  client::failpoints().keep_norm_steps = false;
  CHECK_FALSE(replaced);
  CHECK_FALSE(joined);
}

TEST_CASE(
    "a step in progress goes on when a table of its norm is dropped, or a partition is lost") {
  Single s;
  const uint32_t a = s.Create("a", 1, 16), b = s.Create("b", 1);
  const auto end = s.Step(a, 1);
  s.cluster().RunUntil([] { return false; }, s.cluster().now() + kSecond);
  CHECK_FALSE(end->has_value());
  REQUIRE(s.Drop("b").ok());
  CHECK(s.Result(end).ok());
  CHECK(*s.Pull(a, 1) == Approx(-1 / std::sqrt(16 * 64.0)));
  static_cast<void>(b);

  s.cluster().CrashServer(1);
  s.cluster().RestartServer(1);
  const auto lost = [&] { return s.cluster().view().tables(0).lost_partitions_size() > 0; };
  REQUIRE(s.cluster().RunUntil(lost, s.cluster().now() + 10 * kSecond));
  const absl::Status status = s.Result(s.Step(a, 1));
  CHECK(status.code() == absl::StatusCode::kDataLoss);
  // The remaining partitions of the table commit the step.
  const auto& partitions = s.cluster().view().partitions();
  const auto& gone = s.cluster().view().tables(0).lost_partitions();
  uint32_t left = 0;
  for (uint32_t c = 0; c < 16; ++c) {
    const uint32_t p = PartitionOfChunk(a, c, static_cast<uint32_t>(partitions.size()));
    if (std::find(gone.begin(), gone.end(), p) != gone.end()) continue;
    auto block = *rdma::MemoryBlock::Allocate(256, "left");
    std::optional<absl::Status> pulled;
    auto id = s.core().Pull(a, {block, 0, c * 64ull, 64}, 2, s.cluster().now() + 10 * kSecond,
                            [&](absl::Status status_of) { pulled = status_of; });
    REQUIRE(id.ok());
    s.cluster().RunUntil([&] { return pulled.has_value(); }, s.cluster().now() + 20 * kSecond);
    REQUIRE(pulled.has_value());
    CHECK(pulled->ok());
    ++left;
  }
  CHECK(left > 0);
}

}  // namespace
}  // namespace verbena::test
