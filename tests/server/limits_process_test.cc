// An operator limits a job of a real cluster: requests beyond the limit are refused, while another
// job goes on.
#include <memory>
#include <vector>

#include "tests/server/cli_fixture.h"
#include "verbena/client.h"

namespace verbena::test {
namespace limits_process_test {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

constexpr uint64_t kKeysPerPush = 4096;
constexpr uint32_t kDim = 64;  // so a push of new rows takes over 1 MiB

// A worker of an async job, which may have as many as come.
class LimitedWorker {
 public:
  LimitedWorker(const ProcessCluster& cluster, const std::string& job) {
    auto client =
        Client::Connect({.cluster = cluster.address(), .job = job, .transport = TestTransport()});
    INFO(client.status());
    REQUIRE(client.ok());
    client_ = std::move(*client);
    auto table = Create(job + "-rows");
    INFO(table.status());
    REQUIRE(table.ok());
    table_ = *table;
    auto region = client_->AllocateRegion(kKeysPerPush * kDim * sizeof(float));
    REQUIRE(region.ok());
    region_ = *region;
  }
  static v1::TableSpec Spec(const std::string& name) {
    v1::TableSpec spec;
    spec.set_name(name);
    spec.set_consistency(v1::CONSISTENCY_ASYNC);
    return spec;
  }
  absl::StatusOr<Table> Create(const std::string& name) {
    v1::TableSpec spec = Spec(name);
    spec.set_dim(kDim);
    return client_->CreateTable(spec);
  }
  absl::StatusOr<Table> CreateDense(const std::string& name, uint64_t elements) {
    v1::TableSpec spec = Spec(name);
    spec.add_shape(elements);
    return client_->CreateTable(spec);
  }
  // The rows [i * kKeysPerPush, (i + 1) * kKeysPerPush).
  absl::Status Push(uint64_t i, absl::Duration timeout = absl::Seconds(30)) {
    std::vector<uint64_t> keys(kKeysPerPush);
    for (uint64_t k = 0; k < kKeysPerPush; ++k) keys[k] = i * kKeysPerPush + k;
    return client_->PushRows(table_, keys, region_, {.timeout = timeout}).Wait();
  }
  absl::Status Lookup(uint64_t key) { return client_->Lookup(table_, {key}, region_).Wait(); }

 private:
  std::unique_ptr<Client> client_;
  Table table_;
  Region region_;
};

std::string Limits(const ProcessCluster& cluster, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"limits", "ads", "--cluster", cluster.address()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Finished run = Cli(arguments);
  INFO(run.err);
  CHECK(run.status == 0);
  CHECK(run.err.empty());
  return run.out;
}

TEST_CASE("requests of a job beyond its limits are refused, while another job pushes on") {
  ProcessCluster cluster;
  CHECK_THAT(Limits(cluster, {"--memory", "8MiB", "--tables", "2"}),
             StartsWith("job ads\n") && Contains("8.4 MB") && Contains("none"));
  CHECK_THAT(Limits(cluster, {"--lanes", "1"}), Contains("8.4 MB"));  // other limits stay
  LimitedWorker ads(cluster, "ads");
  LimitedWorker other(cluster, "other");

  uint64_t pushes = 0;
  absl::Status status;
  while (status.ok() && pushes < 100) status = ads.Push(pushes++);
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()), Contains("job 'ads' has reached its memory limit") &&
                                                Contains("is 4 MiB") &&
                                                Contains("verbena limits ads --memory"));
  for (uint64_t i = 0; i < 2 * pushes; ++i) REQUIRE(other.Push(i).ok());
  CHECK(ads.Push(0).ok());  // rows that exist go on
  CHECK(ads.Lookup(uint64_t{1} << 40).ok());

  const absl::Status big = ads.CreateDense("big", 4 << 20).status();
  CHECK(absl::IsResourceExhausted(big));
  CHECK_THAT(std::string(big.message()), Contains("'big' does not fit job 'ads'"));
  CHECK(other.CreateDense("big", 4 << 20).ok());
  CHECK(ads.Create("second").ok());
  const absl::Status third = ads.Create("more").status();
  CHECK(absl::IsResourceExhausted(third));
  CHECK_THAT(std::string(third.message()), Contains("job 'ads' is at its limit of tables"));
  CHECK(other.Create("third").ok());

  LimitedWorker late(cluster, "ads");
  const absl::Status lane = late.Push(0, absl::Seconds(1));
  CHECK(absl::IsResourceExhausted(lane));
  CHECK_THAT(std::string(lane.message()), Contains("job 'ads' is at its limit of lanes to shard") &&
                                              Contains("verbena limits ads --lanes"));

  const Json shown(Limits(cluster, {"--json"}));
  CHECK(shown["job"].text() == "ads");
  CHECK(shown["limits"]["memory_bytes"].number() == 8 << 20);
  CHECK(shown["limits"]["tables"].number() == 2);
  CHECK(shown["limits"]["lanes"].number() == 1);
  CHECK(shown["in_use"]["memory_bytes"].number() > 4 << 20);
  CHECK(shown["in_use"]["memory_bytes"].number() <= 8 << 20);
  CHECK(shown["in_use"]["tables"].number() == 2);
  CHECK(shown["in_use"]["lanes"].number() == 1);
  CHECK(shown["servers"][0]["memory_share_bytes"].number() == 4 << 20);
  CHECK_THAT(Limits(cluster, {}), Contains("4.2 MB"));  // of each server
  CHECK_THAT(Cli({"jobs", "--cluster", cluster.address()}).out,
             Contains("memory 8.4 MB, 2 tables, 1 lanes a shard"));

  SECTION("they outlive the coordinator") {
    cluster.RestartCoordinator();
    CHECK_THAT(Limits(cluster, {}), Contains("8.4 MB"));
    CHECK(absl::IsResourceExhausted(ads.Create("more").status()));
  }
  SECTION("without limits all goes on") {
    CHECK_THAT(Limits(cluster, {"--none"}), Contains("none") && !Contains("8.4 MB"));
    REQUIRE(Eventually([&] { return ads.Push(pushes).ok(); }));
    CHECK(late.Push(pushes + 1).ok());
    CHECK(ads.Create("more").ok());
  }
}

TEST_CASE("limits of a job that nobody has seen are not shown, but may be set") {
  ProcessCluster cluster({.servers = 1, .shards = 1});
  const Finished unknown = Cli({"limits", "ads", "--cluster", cluster.address()});
  CHECK(unknown.status == 1);
  CHECK(unknown.out.empty());
  CHECK_THAT(unknown.err, Contains("there is no job 'ads' yet"));
  CHECK_THAT(Limits(cluster, {"--tables", "5"}), Contains("5"));
  const Finished wrong = Cli({"limits", "", "--tables", "5", "--cluster", cluster.address()});
  CHECK(wrong.status != 0);
  CHECK_THAT(wrong.err, StartsWith("verbena: "));
}

}  // namespace limits_process_test
}  // namespace verbena::test
