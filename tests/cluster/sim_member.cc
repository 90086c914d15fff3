#include "tests/cluster/sim_member.h"

#include <catch2/catch.hpp>
#include <optional>
#include <utility>

namespace verbena::test {
namespace {

constexpr uint64_t kMemberElements = 64;
constexpr int64_t kMemberDeadline = 40 * kSecond;
constexpr int64_t kMemberPatience = 60 * kSecond;  // of the test, in virtual time

}  // namespace

SimMember::SimMember(SimCluster* cluster, const std::string& host,
                     const SimWorker::Options& options)
    : cluster_(cluster),
      job_(options.job),
      worker_(cluster->AddWorker(host, options)),
      block_(*rdma::MemoryBlock::Allocate(2 * kMemberElements * sizeof(float), host)) {}

absl::Status SimMember::Join() {
  return Wait([&](Done done) { core().Join(Deadline(), std::move(done)); });
}

absl::Status SimMember::Leave() {
  return Wait([&](Done done) { core().Leave(Deadline(), std::move(done)); });
}

absl::StatusOr<uint32_t> SimMember::Create(const std::string& name, v1::Consistency consistency) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job(job_);
  spec.add_shape(kMemberElements);
  spec.set_chunk_bytes(256);
  spec.set_consistency(consistency);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  return Table([&](auto done) { core().CreateTable(spec, Deadline(), done); });
}

absl::StatusOr<uint32_t> SimMember::Open(const std::string& name) {
  return Table([&](auto done) { core().OpenTable(name, Deadline(), done); });
}

absl::Status SimMember::Push(uint32_t table) {
  for (uint64_t i = 0; i < kMemberElements; ++i) Values()[i] = 1;
  return Data([&](Done done) {
    return core().Push(table, {block_, 0, 0, kMemberElements}, Deadline(), std::move(done));
  });
}

absl::StatusOr<float> SimMember::Pull(uint32_t table) {
  const absl::Status status = Data([&](Done done) {
    return core().Pull(table, {block_, kMemberElements * sizeof(float), 0, kMemberElements}, 0,
                       Deadline(), std::move(done));
  });
  if (!status.ok()) return status;
  return Values()[kMemberElements];
}

int64_t SimMember::Deadline() const { return worker_->At(cluster_->now() + kMemberDeadline); }

absl::Status SimMember::Wait(const std::function<void(Done)>& start) {
  auto ended = std::make_shared<std::optional<absl::Status>>();
  start([ended](absl::Status status) { *ended = std::move(status); });
  REQUIRE(
      cluster_->RunUntil([&] { return ended->has_value(); }, cluster_->now() + kMemberPatience));
  return **ended;
}

absl::StatusOr<uint32_t> SimMember::Table(
    const std::function<void(std::function<void(absl::StatusOr<v1::Table>)>)>& start) {
  uint32_t id = 0;
  const absl::Status status = Wait([&](Done done) {
    start([&id, done](absl::StatusOr<v1::Table> table) {
      if (table.ok()) id = table->id();
      done(table.status());
    });
  });
  if (!status.ok()) return status;
  return id;
}

absl::Status SimMember::Data(
    const std::function<absl::StatusOr<client::OperationId>(Done)>& start) {
  return Wait([&](Done done) {
    const absl::Status refused = start(done).status();
    if (!refused.ok()) done(refused);
  });
}

}  // namespace verbena::test
