// The public client against real daemons that are stopped, killed and restarted, and errors of
// wrong calls.
#include "verbena/client.h"

#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/support/cluster.h"

namespace verbena::test {
namespace {

v1::TableSpec Spec(const std::string& name, uint64_t elements,
                   v1::Consistency consistency = v1::CONSISTENCY_SYNC) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.add_shape(elements);
  spec.set_consistency(consistency);
  spec.set_chunk_bytes(4096);
  spec.mutable_initializer()->set_kind(v1::Initializer::CONSTANT);
  spec.mutable_initializer()->set_a(2);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  return spec;
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  INFO(value.status().ToString());
  REQUIRE(value.ok());
  return *std::move(value);
}

std::unique_ptr<Client> Connect(const ProcessCluster& cluster, const std::string& job = "default") {
  ClientOptions options;
  options.cluster = cluster.address();
  options.job = job;
  options.timeout = absl::Seconds(10);
  options.transport = TestTransport();
  return Must(Client::Connect(options));
}

// One step of a table whose gradient is all ones; returns the pull's status.
absl::Status Step(Client& client, const Table& table, Region& gradient, Region& parameters) {
  std::fill_n(gradient.floats(), table.elements(), 1.0f);
  Ticket push = client.Push(table, gradient);
  Ticket end = client.EndStep(table);
  Ticket pull = client.Pull(table, parameters);
  absl::Status status = pull.Wait();
  push.Wait().IgnoreError();
  end.Wait().IgnoreError();
  return status;
}

bool IsFailureOfServer(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDataLoss ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

TEST_CASE("push, end and pull of a table larger than a lane") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  const uint64_t elements = 1000 * 1000 + 3;
  Table table = Must(client->CreateTable(Spec("large", elements)));
  Region gradient = Must(client->AllocateRegion(table.bytes()));
  Region parameters = Must(client->AllocateRegion(table.bytes()));
  for (int step = 1; step <= 3; ++step) {
    REQUIRE(Step(*client, table, gradient, parameters).ok());
    CHECK(parameters.floats()[0] == 2.0f - step);
    CHECK(parameters.floats()[elements - 1] == 2.0f - step);
    CHECK(std::count(parameters.floats(), parameters.floats() + elements, 2.0f - step) ==
          static_cast<int64_t>(elements));
  }
  // The servers saw all of it.
  CHECK(cluster.Metric("verbena_shard_push_bytes_total") == 3.0 * table.bytes());
  CHECK(cluster.Metric("verbena_shard_pull_bytes_total") == 3.0 * table.bytes());
}

// Regression: the count of steps ahead underflowed when a step had committed before its EndStep().
TEST_CASE("a step that every worker has pushed whole commits before it is ended") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  Table table = Must(client->CreateTable(Spec("t", 4000)));
  Region gradient = Must(client->AllocateRegion(table.bytes()));
  Region parameters = Must(client->AllocateRegion(table.bytes()));
  for (uint64_t step = 0; step < 3; ++step) {
    std::fill_n(gradient.floats(), table.elements(), 1.0f);
    Ticket push = client->Push(table, gradient);
    PullOptions committed;
    committed.min_version = step + 1;
    REQUIRE(client->Pull(table, parameters, {}, committed).Wait().ok());
    const absl::Status status = client->EndStep(table).Wait();
    INFO(status.ToString());
    REQUIRE(status.ok());
    CHECK(push.Wait().ok());
    CHECK(parameters.floats()[0] == 1.0f - step);
  }
}

TEST_CASE("a pull into the caller's own memory goes through staging, if the transport needs it") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  Table table = Must(client->CreateTable(Spec("registered", 50000)));
  std::vector<float> mine(50000, -1);
  Region region = Must(client->RegisterRegion(mine.data(), mine.size() * sizeof(float)));
  CHECK_FALSE(region.allocated());
  REQUIRE(client->Pull(table, region).Wait().ok());
  CHECK(std::count(mine.begin(), mine.end(), 2.0f) == 50000);
  // Over verbs and ofi any memory is written where it is.
  CHECK(client->statistics().staged_bytes ==
        (TestTransport() == "verbs" || TestTransport() == "ofi" ? 0 : mine.size() * sizeof(float)));
}

TEST_CASE("over shm a push from an allocated region is read there, the caller's memory copied") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  Table table = Must(client->CreateTable(Spec("shared", 49 * 1024, v1::CONSISTENCY_ASYNC)));
  Region shared = Must(client->AllocateRegion(table.bytes()));
  Region pulled = Must(client->AllocateRegion(table.bytes()));
  std::vector<float> mine(table.elements(), 1);
  Region region = Must(client->RegisterRegion(mine.data(), mine.size() * sizeof(float)));
  std::fill_n(shared.floats(), table.elements(), 1.0f);
  REQUIRE(client->Push(table, region).Wait().ok());
  CHECK(client->statistics().referenced_bytes == 0);
  REQUIRE(client->Push(table, shared).Wait().ok());
  CHECK(client->statistics().referenced_bytes ==
        (TestTransport() == "verbs" || TestTransport() == "ofi" ? 0 : table.bytes()));
  REQUIRE(client->Pull(table, pulled).Wait().ok());
  const float* const all = pulled.floats();
  CHECK(std::all_of(all, all + table.elements(), [](float value) { return value == 0; }));
}

TEST_CASE("threads share one client") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  std::vector<Table> tables;
  for (int i = 0; i < 4; ++i) {
    tables.push_back(
        Must(client->CreateTable(Spec("t" + std::to_string(i), 20000, v1::CONSISTENCY_ASYNC))));
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      auto region = client->AllocateRegion(tables[i].bytes());
      if (!region.ok()) {
        ++wrong[i];
        return;
      }
      for (int n = 0; n < 50; ++n) {
        std::fill_n(region->floats(), tables[i].elements(), 1.0f);
        if (!client->PushPull(tables[i], *region, *region).Wait().ok()) ++wrong[i];
        if (region->floats()[7] != 2.0f - (n + 1)) ++wrong[i];
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (int i = 0; i < 4; ++i) CHECK(wrong[i] == 0);
}

TEST_CASE("a killed server ends every call by its deadline; restarted it is empty, not initial") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  Table table = Must(client->CreateTable(Spec("t", 40000)));
  Region gradient = Must(client->AllocateRegion(table.bytes()));
  Region parameters = Must(client->AllocateRegion(table.bytes()));
  REQUIRE(Step(*client, table, gradient, parameters).ok());

  cluster.server(1).Signal(SIGKILL);
  cluster.server(1).Wait();
  PullOptions soon;
  soon.timeout = absl::Seconds(3);
  const absl::Time start = absl::Now();
  absl::Status status = client->Pull(table, parameters, {}, soon).Wait();
  INFO(status.ToString());
  CHECK(IsFailureOfServer(status));
  CHECK(absl::Now() - start < absl::Seconds(6));

  cluster.RestartServer(1);
  // Until it has joined the partitions are unavailable; then they are lost, and stay so.
  REQUIRE(Eventually([&] {
    status = client->Pull(table, parameters, {}, soon).Wait();
    return status.code() == absl::StatusCode::kDataLoss;
  }));
  CHECK(status.message().find("t") != absl::string_view::npos);
  CHECK_FALSE(client->Pull(table, parameters, {}, soon).Wait().ok());

  Table fresh = Must(client->CreateTable(Spec("fresh", 40000)));
  REQUIRE(Step(*client, fresh, gradient, parameters).ok());
  CHECK(std::count(parameters.floats(), parameters.floats() + 40000, 1.0f) == 40000);
}

TEST_CASE("a silent server is unavailable and comes back with its data") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  Table table = Must(client->CreateTable(Spec("t", 40000)));
  Region gradient = Must(client->AllocateRegion(table.bytes()));
  Region parameters = Must(client->AllocateRegion(table.bytes()));
  REQUIRE(Step(*client, table, gradient, parameters).ok());
  cluster.server(0).Signal(SIGSTOP);
  PullOptions soon;
  soon.timeout = absl::Seconds(4);  // longer than the lease: the coordinator has noticed
  absl::Status status = client->Pull(table, parameters, {}, soon).Wait();
  INFO(status.ToString());
  CHECK(IsFailureOfServer(status));
  cluster.server(0).Signal(SIGCONT);
  Region again = Must(client->AllocateRegion(table.bytes()));
  REQUIRE(Eventually([&] { return client->Pull(table, again, {}, soon).Wait().ok(); }));
  CHECK(std::count(again.floats(), again.floats() + 40000, 1.0f) == 40000);
  REQUIRE(Step(*client, table, gradient, again).ok());
  CHECK(again.floats()[0] == 0.0f);
}

TEST_CASE("a restarted coordinator knows its tables; data flows on without it") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  Table table = Must(client->CreateTable(Spec("t", 40000)));
  Region gradient = Must(client->AllocateRegion(table.bytes()));
  Region parameters = Must(client->AllocateRegion(table.bytes()));
  REQUIRE(Step(*client, table, gradient, parameters).ok());
  cluster.coordinator().Signal(SIGKILL);
  cluster.coordinator().Wait();
  REQUIRE(Step(*client, table, gradient, parameters).ok());
  cluster.RestartCoordinator();
  Table same = Must(client->OpenTable("t"));
  CHECK(same.id() == table.id());
  REQUIRE(Step(*client, table, gradient, parameters).ok());
  CHECK(parameters.floats()[0] == -1.0f);
}

TEST_CASE("the error of a wrong call names the argument and its value") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  Table table = Must(client->CreateTable(Spec("weights", 5000)));
  Region region = Must(client->AllocateRegion(5000 * sizeof(float)));
  const auto says = [](const absl::Status& status, absl::StatusCode code,
                       std::vector<std::string> words) {
    INFO(status.ToString());
    CHECK(status.code() == code);
    for (const std::string& word : words) {
      CHECK(std::string(status.message()).find(word) != std::string::npos);
    }
  };
  using Code = absl::StatusCode;
  says(client->OpenTable("nowhere").status(), Code::kNotFound, {"nowhere"});
  says(client->CreateTable(Spec("weights", 6000)).status(), Code::kAlreadyExists,
       {"weights", "shape", "5000", "6000"});
  auto bad = Spec("other", 10);
  bad.mutable_optimizer()->set_name("sdg");
  says(client->CreateTable(bad).status(), Code::kInvalidArgument, {"sdg", "sgd", "adam"});
  bad = Spec("other", 10);
  bad.mutable_optimizer()->set_rate(-0.5);
  says(client->CreateTable(bad).status(), Code::kInvalidArgument, {"rate", "-0.5"});
  bad = Spec("other", 0);
  says(client->CreateTable(bad).status(), Code::kInvalidArgument, {"shape"});
  Region small = Must(client->AllocateRegion(64));
  says(client->Push(table, small).Wait(), Code::kInvalidArgument, {"20000", "64"});
  says(client->Pull(table, small).Wait(), Code::kInvalidArgument, {"20000", "64"});
  Range nothing;
  nothing.count = 0;
  says(client->Push(table, region, nothing).Wait(), Code::kInvalidArgument, {"0"});
  Range skewed;
  skewed.first = 5;
  skewed.count = 10;
  says(client->Push(table, region, skewed).Wait(), Code::kInvalidArgument, {"5", "1024"});
  says(client->Push(table, Region()).Wait(), Code::kInvalidArgument, {"region"});
  says(client->AllocateRegion(0).status(), Code::kInvalidArgument, {"0"});
  ClientOptions options;
  options.cluster = cluster.address();
  options.transport = "carrier-pigeon";
  says(Client::Connect(options).status(), Code::kInvalidArgument, {"carrier-pigeon", "shm"});
  options.transport = "verbs";
  options.rdma.retries = 9;
  says(Client::Connect(options).status(), Code::kInvalidArgument, {"retries", "9", "0..7"});
  options.rdma = {};
  options.transport = "auto";
  options.cluster = "127.0.0.1:1";
  options.timeout = absl::Seconds(1);
  says(Client::Connect(options).status(), Code::kUnavailable, {"127.0.0.1:1"});
}

TEST_CASE("a push with a NaN is refused, named, and contributes nothing") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  Table table = Must(client->CreateTable(Spec("t", 3000)));
  Region gradient = Must(client->AllocateRegion(table.bytes()));
  Region parameters = Must(client->AllocateRegion(table.bytes()));
  std::fill_n(gradient.floats(), 3000, 1.0f);
  gradient.floats()[1500] = std::numeric_limits<float>::quiet_NaN();
  Ticket push = client->Push(table, gradient);
  Ticket end = client->EndStep(table);
  REQUIRE(client->Pull(table, parameters).Wait().ok());
  const absl::Status status = push.Wait();
  INFO(status.ToString());
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(end.Wait().ok());
  CHECK(parameters.floats()[1500] == 2.0f);  // its chunk, 1024..2047
  CHECK(parameters.floats()[0] == 1.0f);
}

TEST_CASE("a region destroyed in flight ends its operation and harms nothing") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  Table table = Must(client->CreateTable(Spec("t", 400000, v1::CONSISTENCY_ASYNC)));
  Region parameters = Must(client->AllocateRegion(table.bytes()));
  for (int i = 0; i < 20; ++i) {
    auto gradient = std::make_unique<Region>(Must(client->AllocateRegion(table.bytes())));
    std::fill_n(gradient->floats(), table.elements(), 1.0f);
    Ticket push = client->Push(table, *gradient);
    gradient.reset();
    push.Wait().IgnoreError();
    CHECK(Eventually([&] { return push.BufferReleased(); }));
  }
  REQUIRE(client->Pull(table, parameters).Wait().ok());
  // Whole pushes or none, chunk by chunk.
  for (uint64_t first = 0; first < table.elements(); first += table.chunk_elements()) {
    const uint64_t n = std::min<uint64_t>(table.chunk_elements(), table.elements() - first);
    CHECK(std::count(parameters.floats() + first, parameters.floats() + first + n,
                     parameters.floats()[first]) == static_cast<int64_t>(n));
  }
}

TEST_CASE("a call that is cancelled or too late ends; its buffer is released when it is settled") {
  ProcessCluster cluster;
  auto client = Connect(cluster);
  Table table = Must(client->CreateTable(Spec("t", 4000)));
  Region parameters = Must(client->AllocateRegion(table.bytes()));
  REQUIRE(client->Pull(table, parameters).Wait().ok());  // the lane is open
  PullOptions future;
  future.min_version = 3;  // nobody will commit it
  future.timeout = absl::Milliseconds(200);
  Ticket late = client->Pull(table, parameters, {}, future);
  const absl::Status status = late.Wait();
  INFO(status.ToString());
  CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
  future.timeout = absl::Seconds(20);
  Ticket cancelled = client->Pull(table, parameters, {}, future);
  CHECK_FALSE(cancelled.Done());
  cancelled.Cancel();
  CHECK(cancelled.Wait().code() == absl::StatusCode::kCancelled);
  // The lane is whole: other calls go on.
  Region other = Must(client->AllocateRegion(table.bytes()));
  CHECK(client->Pull(table, other).Wait().ok());
}

TEST_CASE("the answer of a stalled server lands nowhere once the region is given up") {
  ProcessCluster cluster({.servers = 1, .shards = 1, .lease_ms = 60000});
  auto client = Connect(cluster);
  Table table = Must(client->CreateTable(Spec("t", 100000)));
  std::vector<float> memory(100000, 7.0f);
  {
    Region warm = Must(client->AllocateRegion(table.bytes()));
    REQUIRE(client->Pull(table, warm).Wait().ok());
    Region mine = Must(client->RegisterRegion(memory.data(), table.bytes()));
    cluster.server(0).Signal(SIGSTOP);
    PullOptions soon;
    soon.timeout = absl::Milliseconds(300);
    CHECK_FALSE(client->Pull(table, mine, {}, soon).Wait().ok());
  }
  // The caller has its memory back: whatever the server does now, it stays as it is.
  std::fill(memory.begin(), memory.end(), 9.0f);
  cluster.server(0).Signal(SIGCONT);
  Region parameters = Must(client->AllocateRegion(table.bytes()));
  REQUIRE(client->Pull(table, parameters).Wait().ok());
  CHECK(parameters.floats()[99999] == 2.0f);
  CHECK(std::count(memory.begin(), memory.end(), 9.0f) == 100000);
}

}  // namespace
}  // namespace verbena::test
