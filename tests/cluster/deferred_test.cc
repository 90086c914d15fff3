// Pulls that wait for a step that does not come do not keep others from being answered.
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cluster/sim_cluster.h"

namespace verbena::test {
namespace {

constexpr uint64_t kElements = 60 * 64;  // chunks: more than a lane may have deferred, many times

// A worker, with an operation at a time.
class Member {
 public:
  Member(SimCluster* cluster, const std::string& name, uint64_t seed)
      : cluster_(cluster),
        worker_(cluster->AddWorker(name, {.expected_workers = 2, .seed = seed})),
        block_(*rdma::MemoryBlock::Allocate(2 * kElements * sizeof(float), "deferred")) {}

  void BeginJoin() {
    core().Join(In(30 * kSecond), [this](absl::Status status) { joined = std::move(status); });
  }
  uint32_t Table(const std::string& name) {
    v1::TableSpec spec;
    spec.set_name(name);
    spec.set_job("job");
    spec.add_shape(kElements);
    spec.set_chunk_bytes(256);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    std::optional<absl::StatusOr<v1::Table>> made;
    core().CreateTable(spec, In(30 * kSecond), [&](auto table) { made = std::move(table); });
    REQUIRE(cluster_->RunUntil([&] { return made.has_value(); }, cluster_->now() + 40 * kSecond));
    REQUIRE(made->ok());
    return (*made)->id();
  }
  // Both begin an operation, and set `ended` to its result.
  void Step(uint32_t table, int64_t within) {
    ended.reset();
    const client::ClientCore::Slice gradient{block_, 0, 0, kElements};
    REQUIRE(core().PushPull(table, gradient, Parameters(), In(within), Done()).ok());
  }
  void Pull(uint32_t table, int64_t within) {
    ended.reset();
    REQUIRE(core().Pull(table, Parameters(), 0, In(within), Done()).ok());
  }
  std::optional<absl::Status> ended;
  std::optional<absl::Status> joined;

 private:
  client::ClientCore& core() { return worker_->core(); }
  int64_t In(int64_t nanos) const { return worker_->At(cluster_->now() + nanos); }
  client::ClientCore::Slice Parameters() const {
    return {block_, kElements * sizeof(float), 0, kElements};
  }
  client::ClientCore::Done Done() {
    return [this](absl::Status status) { ended = std::move(status); };
  }

  SimCluster* const cluster_;
  SimWorker* const worker_;
  const std::shared_ptr<rdma::MemoryBlock> block_;
};

TEST_CASE("regression: pulls of a step that does not come do not block pulls of other tables") {
  ClusterOptions options;
  options.servers = 1;
  options.shards = 1;
  SimCluster cluster(options);
  Member one(&cluster, "one", 1), two(&cluster, "two", 2);
  one.BeginJoin();
  two.BeginJoin();
  REQUIRE(cluster.RunUntil([&] { return one.joined.has_value() && two.joined.has_value(); },
                           40 * kSecond));
  REQUIRE((*one.joined == absl::OkStatus() && *two.joined == absl::OkStatus()));
  const uint32_t a = one.Table("a"), b = one.Table("b");
  REQUIRE(two.Table("a") == a);
  REQUIRE(two.Table("b") == b);
  const auto both = [&](absl::StatusCode code) {
    REQUIRE(cluster.RunUntil([&] { return one.ended.has_value() && two.ended.has_value(); },
                             cluster.now() + 30 * kSecond));
    INFO("one: " << one.ended->ToString() << "; two: " << two.ended->ToString());
    CHECK((one.ended->code() == code && two.ended->code() == code));
  };
  // Each waits for the other to make the same step.
  one.Step(a, 2 * kSecond);
  two.Step(b, 2 * kSecond);
  both(absl::StatusCode::kDeadlineExceeded);
  // Parameters that exist already can be pulled.
  one.Pull(b, 20 * kSecond);
  two.Pull(a, 20 * kSecond);
  both(absl::StatusCode::kOk);
  // The step that one has made, and waited for in vain.
  two.Step(a, 20 * kSecond);
  one.Pull(a, 20 * kSecond);
  both(absl::StatusCode::kOk);
}

// A server defers half of a lane's operations at most. Awaits of steps that others have not ended
// must not take all of them.
TEST_CASE("regression: awaits on a small lane do not block a pull of another table") {
  ClusterOptions options;
  options.servers = 1;
  options.shards = 1;
  options.operations = 6;
  SimCluster cluster(options);
  Member one(&cluster, "one", 1), two(&cluster, "two", 2);
  // Rank 0: its pushes wait for no other.
  one.BeginJoin();
  REQUIRE(cluster.RunUntil([&] { return one.joined.has_value(); }, 40 * kSecond));
  two.BeginJoin();
  REQUIRE(cluster.RunUntil([&] { return two.joined.has_value(); }, 40 * kSecond));
  REQUIRE((*one.joined == absl::OkStatus() && *two.joined == absl::OkStatus()));
  const uint32_t other = one.Table("other");
  for (int i = 0; i < 24; ++i) {
    one.Step(one.Table(absl::StrCat("t", i)), kSecond);
    REQUIRE(cluster.RunUntil([&] { return one.ended.has_value(); }, cluster.now() + 2 * kSecond));
    REQUIRE(!one.ended->ok());  // the other worker does not end this step
  }
  one.Pull(other, 20 * kSecond);
  REQUIRE(cluster.RunUntil([&] { return one.ended.has_value(); }, cluster.now() + 30 * kSecond));
  CHECK(*one.ended == absl::OkStatus());
}

}  // namespace
}  // namespace verbena::test
