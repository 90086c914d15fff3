// Tables of another job: an observer reads them, a worker is refused, and neither ends.
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "shard/planted_bugs.h"
#include "tests/cluster/sim_cluster.h"

namespace verbena::test {
namespace {

constexpr uint64_t kJobTable = 64;

// A member of a job, with calls that wait for their end.
class JobMember {
 public:
  JobMember(SimCluster* cluster, const std::string& job, bool observer, uint64_t seed)
      : cluster_(cluster),
        job_(job),
        worker_(cluster->AddWorker(job + (observer ? "-reader" : "-worker"),
                                   {.job = job, .observer = observer, .seed = seed})),
        block_(*rdma::MemoryBlock::Allocate(2 * kJobTable * sizeof(float), job)) {
    REQUIRE(Wait([&](auto done) { core().Join(In(20 * kSecond), done); }).ok());
  }
  uint32_t Create(v1::Consistency consistency) {
    v1::TableSpec spec;
    spec.set_name(job_ + "/w");
    spec.set_job(job_);
    spec.add_shape(kJobTable);
    spec.set_chunk_bytes(256);
    spec.set_consistency(consistency);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    return Table([&](auto done) { core().CreateTable(spec, In(20 * kSecond), done); }).value();
  }
  absl::StatusOr<uint32_t> Open(const std::string& name) {
    return Table([&](auto done) { core().OpenTable(name, In(20 * kSecond), done); });
  }
  absl::Status Push(uint32_t table) {
    for (uint64_t i = 0; i < kJobTable; ++i) Values()[i] = 1;
    return Data([&](auto done) {
      return core().Push(table, {block_, 0, 0, kJobTable}, In(20 * kSecond), done);
    });
  }
  absl::StatusOr<float> Pull(uint32_t table) {
    const absl::Status status = Data([&](auto done) {
      return core().Pull(table, {block_, kJobTable * sizeof(float), 0, kJobTable}, 0,
                         In(20 * kSecond), done);
    });
    if (!status.ok()) return status;
    return Values()[kJobTable];
  }
  absl::Status Leave() {
    return Wait([&](auto done) { core().Leave(In(20 * kSecond), done); });
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
  absl::StatusOr<uint32_t> Table(
      const std::function<void(std::function<void(absl::StatusOr<v1::Table>)>)>& start) {
    uint32_t id = 0;
    const absl::Status status = Wait([&](client::ClientCore::Done done) {
      start([&id, done](absl::StatusOr<v1::Table> table) {
        if (table.ok()) id = table->id();
        done(table.status());
      });
    });
    if (!status.ok()) return status;
    return id;
  }
  absl::Status Data(
      const std::function<absl::StatusOr<client::OperationId>(client::ClientCore::Done)>& start) {
    return Wait([&](client::ClientCore::Done done) {
      const absl::Status refused = start(done).status();
      if (!refused.ok()) done(refused);
    });
  }

  SimCluster* const cluster_;
  const std::string job_;
  SimWorker* const worker_;
  const std::shared_ptr<rdma::MemoryBlock> block_;
};

TEST_CASE("regression: an observer reads any job's tables, live or ended, and nobody ends for it") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP, v1::CONSISTENCY_SYNC);
  SimCluster cluster({});
  JobMember a(&cluster, "a", false, 1), b(&cluster, "b", false, 2), reader(&cluster, "b", true, 3);
  const uint32_t of_a = a.Create(consistency);
  const uint32_t of_b = b.Create(v1::CONSISTENCY_ASYNC);
  const bool async = consistency != v1::CONSISTENCY_SYNC;
  const float expected = async ? -1.0f : 0.0f;  // of a sync table, what the last step has left
  if (async) REQUIRE(a.Push(of_a).ok());

  const absl::StatusOr<uint32_t> opened = reader.Open("a/w");
  REQUIRE(opened.ok());
  CHECK(*opened == of_a);
  absl::StatusOr<float> read = reader.Pull(of_a);
  INFO(read.status().ToString());
  REQUIRE(read.ok());
  CHECK(*read == expected);

  const absl::Status refused = b.Open("a/w").status();
  INFO(refused.ToString());
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(refused.message().find("belongs to job 'a'") != std::string::npos);
  CHECK(refused.message().find("a worker of job 'b'") != std::string::npos);
  CHECK(b.Pull(of_a).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(b.Push(of_b).ok());

  REQUIRE(a.Leave().ok());
  read = reader.Pull(of_a);
  INFO(read.status().ToString());
  REQUIRE(read.ok());
  CHECK(*read == expected);
  CHECK(reader.Pull(of_b).ok());
}

TEST_CASE("a shard that takes members of other jobs for ended ones is found") {
  SimCluster cluster({});
  JobMember a(&cluster, "a", false, 1), reader(&cluster, "b", true, 3);
  const uint32_t of_a = a.Create(v1::CONSISTENCY_ASYNC);
  REQUIRE(reader.Open("a/w").ok());
  shard::planted_bugs().expire_other_jobs = true;
  const absl::StatusOr<float> read = reader.Pull(of_a);
  shard::planted_bugs().expire_other_jobs = false;
  CHECK_FALSE(read.ok());
  // The lease has not ended, and so the client has not.
  const absl::Status again = reader.Pull(of_a).status();
  INFO(read.status().ToString() << "; " << again.ToString());
  CHECK(again.ok());
}

}  // namespace
}  // namespace verbena::test
