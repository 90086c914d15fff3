// Servers that reach their memory limit while each partition has two copies.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

constexpr uint32_t kDim = 16;
constexpr size_t kKeys = 10'000;  // of a push

template <typename T>
T Must(absl::StatusOr<T> value) {
  INFO(value.status().ToString());
  REQUIRE(value.ok());
  return *std::move(value);
}

v1::TableSpec Spec(const std::string& name) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_dim(kDim);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_optimizer()->set_name("adam");
  spec.mutable_optimizer()->set_rate(0.1);
  return spec;
}

std::vector<uint64_t> NewKeys(std::mt19937_64* random) {
  std::vector<uint64_t> keys(kKeys);
  for (uint64_t& key : keys) key = (*random)();
  return keys;
}

TEST_CASE("regression: with two copies full servers refuse new rows at once, and lose no copy") {
  ProcessCluster cluster({.replicas = 2,
                          .coordinator_options = {"--partitions", "32"},
                          .server_options = {"--memory-limit", "67108864"}});
  ClientOptions options;
  options.cluster = cluster.address();
  options.job = "job";
  options.timeout = absl::Seconds(10);
  options.transport = TestTransport();
  const std::unique_ptr<Client> client = Must(Client::Connect(options));
  const Table table = Must(client->CreateTable(Spec("rows")));
  Region values = Must(client->AllocateRegion(kKeys * kDim * sizeof(float)));
  std::fill_n(values.floats(), kKeys * kDim, 1.0f);
  REQUIRE(cluster.WaitReplicated());

  std::mt19937_64 random(1);
  const std::vector<uint64_t> first = NewKeys(&random);
  REQUIRE(client->PushRows(table, first, values).Wait().ok());
  const auto in_time = [](auto call) {
    const absl::Time began = absl::Now();
    const absl::Status status = call();
    CHECK(absl::Now() - began < absl::Seconds(2));
    return status;
  };
  int refused = 0;
  absl::Status refusal;
  for (int push = 0; push < 200 && refused < 10; ++push) {
    const std::vector<uint64_t> keys = NewKeys(&random);
    const absl::Status status =
        in_time([&] { return client->PushRows(table, keys, values).Wait(); });
    INFO(status.ToString());
    REQUIRE((status.ok() || absl::IsResourceExhausted(status)));
    if (status.ok()) continue;
    ++refused;
    refusal = status;
  }
  INFO(refusal.ToString());
  CHECK(refused == 10);
  CHECK(absl::StrContains(refusal.message(), "table 'rows'"));
  CHECK(absl::StrContains(refusal.message(), "server 'server-"));
  CHECK(absl::StrContains(refusal.message(), "memory limit of 64 MiB"));

  for (int i = 0; i < 20; ++i) {
    CHECK(in_time([&] { return client->PushRows(table, first, values).Wait(); }).ok());
    CHECK(in_time([&] { return client->Lookup(table, first, values).Wait(); }).ok());
    std::fill_n(values.floats(), kKeys * kDim, 1.0f);
  }
  CHECK(cluster.CheckReplicated());
  CHECK(absl::StrContains(cluster.status(), "is at its memory limit of 64 MiB"));
  CHECK_FALSE(absl::StrContains(cluster.logs(), "has no replica of"));

  // With room everything goes on, once followers have reported it.
  REQUIRE(client->DropTable("rows").ok());
  const Table next = Must(client->CreateTable(Spec("next")));
  CHECK(Eventually(
      [&] { return in_time([&] { return client->PushRows(next, first, values).Wait(); }).ok(); }));
  CHECK(cluster.CheckReplicated());
}

// 8 MiB of parameters, and of state, for each of the table's copies on each server.
v1::TableSpec DenseSpec(const std::string& name, const std::string& job) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job(job);
  spec.add_shape(2 << 20);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_optimizer()->set_name("adagrad");
  spec.mutable_optimizer()->set_rate(0.1);
  return spec;
}

TEST_CASE("regression: a dense table that fits with its copies alone is made, and costs no copy") {
  ProcessCluster cluster({.replicas = 2,
                          .coordinator_options = {"--partitions", "32"},
                          .server_options = {"--memory-limit", "67108864"}});
  const auto connect = [&](const std::string& job) {
    ClientOptions options;
    options.cluster = cluster.address();
    options.job = job;
    options.timeout = absl::Seconds(10);
    options.transport = TestTransport();
    return Must(Client::Connect(options));
  };
  const std::unique_ptr<Client> first = connect("first"), second = connect("second");
  const Table served = Must(first->CreateTable(DenseSpec("served", "first")));
  REQUIRE(cluster.WaitReplicated());
  int made = 1;
  absl::Status refused;
  for (; made < 10 && refused.ok(); ++made) {
    const auto table = second->CreateTable(DenseSpec("t" + std::to_string(made), "second"));
    refused = table.status();
    if (!table.ok()) break;
    Region region = Must(second->AllocateRegion(table->bytes()));
    CHECK(second->Push(*table, region).Wait().ok());
  }
  INFO(refused.ToString());
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(absl::StrContains(refused.message(), "with copies"));
  Region region = Must(first->AllocateRegion(served.bytes()));
  CHECK(first->Push(served, region).Wait().ok());
  CHECK(cluster.CheckReplicated());
  CHECK_FALSE(absl::StrContains(cluster.logs(), "has no replica of"));
}

}  // namespace
}  // namespace verbena::test
