// Servers that die or stop under verbena-train, with two replicas of each partition; and the state
// that is left with one.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/cluster.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

// Under a sanitizer each kind of fault counts, not how often it comes.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kKills = 2, kStops = 1, kSteps = 800;
#else
constexpr int kKills = 10, kStops = 3, kSteps = 2000;
#endif

// For other machines, and for more than a test of every change does.
int FromEnvironment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}
int Kills() { return FromEnvironment("VERBENA_FAILOVER_KILLS", kKills); }
int Stops() { return FromEnvironment("VERBENA_FAILOVER_STOPS", kStops); }
int LeaseMs() { return FromEnvironment("VERBENA_FAILOVER_LEASE_MS", 1500); }

std::string Examples(int rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text;
  for (int row = 0; row < rows; ++row) {
    double score = 0;
    std::string features;
    for (int index = 1; index <= 60; ++index) {
      if (random() % 6 != 0) continue;
      score += (index % 7) - 3;
      absl::StrAppend(&features, " ", index, ":1");
    }
    score += static_cast<double>(random() % 5) - 2;
    absl::StrAppend(&text, score > 0 ? 1 : 0, features, "\n");
  }
  return text;
}

// Four workers that train dense tables and rows, which lie on every server.
class Training {
 public:
  Training() {
    WriteFile(directory_.File("train"), Examples(8000, 1));
    ProcessCluster cluster({.servers = 1});
    const Finished train = RunProgram(Argv(cluster, "undisturbed"), absl::Seconds(240));
    INFO(train.err);
    REQUIRE(train.status == 0);
    checksum_ = JsonField(train.out, "parameters_xxh64");
    REQUIRE_FALSE(checksum_.empty());
  }
  std::unique_ptr<Process> Start(const ProcessCluster& cluster, const std::string& job) const {
    return std::make_unique<Process>(Argv(cluster, job));
  }
  // It ends with the bits of the undisturbed one, and with no worker lost.
  void Check(const ProcessCluster& cluster, Process& train) const {
    const auto status = train.Wait(absl::Seconds(240));
    INFO(cluster.logs());
    INFO(train.err_end());
    REQUIRE(status.has_value());
    CHECK(*status == 0);
    CHECK(JsonField(train.out(), "parameters_xxh64") == checksum_);
    CHECK(JsonField(train.out(), "workers_lost") == "0");
  }

 private:
  std::vector<std::string> Argv(const ProcessCluster& cluster, const std::string& job) const {
    const std::string data = directory_.File("train");
    return {TrainPath(),
            "--cluster",
            cluster.address(),
            "--format",
            "libsvm",
            "--model",
            "mlp",
            "--hidden",
            "8",
            "--data",
            data,
            "--test",
            data,
            "--workers",
            "4",
            "--consistency",
            "sync",
            "--job",
            job,
            "--batch",
            "64",
            "--steps",
            absl::StrCat(FromEnvironment("VERBENA_FAILOVER_STEPS", kSteps)),
            "--log-steps",
            "--transport",
            TestTransport(),
            "--checksum",
            "--json"};
  }

  TemporaryDirectory directory_;
  std::string checksum_;
};

// Trainings one after the other, for as long as there is something to do to their servers.
class Trainings {
 public:
  Trainings(ProcessCluster& cluster, const Training& training)
      : cluster_(cluster), training_(training) {}
  // Returns where one runs and everything has its copies.
  void Await() {
    for (;;) {
      if (train_ == nullptr) {
        train_ = training_.Start(cluster_, absl::StrCat("job-", jobs_++));
        REQUIRE(jobs_ < 2 * (Kills() + Stops()));  // each is long enough for a fault
        // Its tables are there.
        const bool began = train_->WaitFor("step ", absl::Seconds(60));
        INFO(cluster_.logs());
        INFO(train_->err_end());
        REQUIRE(began);
      }
      const bool replicated = cluster_.WaitReplicated(absl::Seconds(60));
      INFO(cluster_.status());
      INFO(cluster_.logs());
      INFO(train_->err_end());
      REQUIRE(replicated);
      if (train_->running()) return;
      Finish();
    }
  }
  void Finish() {
    if (train_ != nullptr) training_.Check(cluster_, *train_);
    train_.reset();
  }
  bool running() { return train_ != nullptr && train_->running(); }

 private:
  ProcessCluster& cluster_;
  const Training& training_;
  std::unique_ptr<Process> train_;
  int jobs_ = 0;
};

TEST_CASE("servers are killed one after the other: training ends with the undisturbed bits") {
  const Training training;
  ProcessCluster cluster({.servers = 3, .lease_ms = LeaseMs(), .replicas = 2});
  Trainings trainings(cluster, training);
  std::mt19937_64 random(7);
  for (int kills = 0; kills < Kills();) {
    trainings.Await();
    absl::SleepFor(absl::Milliseconds(random() % 300));  // a random moment of the kill
    // A busy machine may have kept a server from its lease meanwhile.
    if (!cluster.CheckReplicated()) continue;
    const int victim = static_cast<int>(random() % 3);
    cluster.KillServer(victim);
    kills += trainings.running() ? 1 : 0;
    absl::SleepFor(
        absl::Milliseconds(random() % (LeaseMs() * 3 / 2)));  // before the lease ends, or after
    cluster.RestartServer(victim);
  }
  trainings.Finish();
}

TEST_CASE(
    "three replicas: two servers are killed at once: training ends with the undisturbed bits") {
  const Training training;
  ProcessCluster cluster({.servers = 4, .lease_ms = LeaseMs(), .replicas = 3});
  Trainings trainings(cluster, training);
  std::mt19937_64 random(11);
  for (int kills = 0; kills < std::max(Kills() / 5, 1);) {
    trainings.Await();
    absl::SleepFor(absl::Milliseconds(random() % 300));  // a random moment of the kill
    if (!cluster.CheckReplicated()) continue;
    const int first = static_cast<int>(random() % 4);
    const int second = (first + 1 + static_cast<int>(random() % 3)) % 4;
    cluster.KillServer(first);
    cluster.KillServer(second);
    kills += trainings.running() ? 1 : 0;
    absl::SleepFor(absl::Milliseconds(random() % (LeaseMs() * 3 / 2)));
    cluster.RestartServer(first);
    cluster.RestartServer(second);
  }
  trainings.Finish();
}

TEST_CASE(
    "servers are stopped for longer than the lease: training ends with the undisturbed bits") {
  const Training training;
  ProcessCluster cluster({.servers = 3, .lease_ms = LeaseMs(), .replicas = 2});
  Trainings trainings(cluster, training);
  for (int stops = 0; stops < Stops();) {
    trainings.Await();
    const int victim = stops % 3;
    cluster.server(victim).Signal(SIGSTOP);
    stops += trainings.running() ? 1 : 0;
    absl::SleepFor(absl::Milliseconds(LeaseMs() * 5 / 2));  // the lease ends meanwhile
    cluster.server(victim).Signal(SIGCONT);
  }
  trainings.Finish();
  CHECK(cluster.WaitReplicated());
}

// Tables of one chunk, each on one of two servers, with one copy.
struct Tables {
  explicit Tables(const ProcessCluster& cluster) {
    ClientOptions options;
    options.cluster = cluster.address();
    options.transport = TestTransport();
    options.timeout = absl::Seconds(2);
    auto connected = Client::Connect(options);
    REQUIRE(connected.ok());
    client = *std::move(connected);
    for (int i = 0; i < 8; ++i) {
      v1::TableSpec spec;
      spec.set_name(absl::StrCat("table-", i));
      spec.add_shape(16);
      spec.set_consistency(v1::CONSISTENCY_ASYNC);
      spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
      spec.mutable_optimizer()->set_name("sgd");
      spec.mutable_optimizer()->set_rate(1);
      absl::StatusOr<Table> table = client->CreateTable(spec);
      // On a busy machine one call's time may be too short.
      for (int tries = 0; tries < 5 && !table.ok(); ++tries) table = client->CreateTable(spec);
      INFO(table.status());
      REQUIRE(table.ok());
      tables.push_back(*std::move(table));
    }
    auto region = client->AllocateRegion(16 * sizeof(float));
    REQUIRE(region.ok());
    memory = *std::move(region);
  }
  absl::Status Push(int table) {
    std::fill_n(memory.floats(), 16, -1.0f);
    return client->Push(tables[table], memory).Wait();
  }
  absl::Status Pull(int table) { return client->Pull(tables[table], memory).Wait(); }

  std::unique_ptr<Client> client;
  std::vector<Table> tables;
  Region memory;
};

TEST_CASE("the last copy is killed: UNAVAILABLE, then DATA_LOSS; other tables go on") {
  ProcessCluster cluster({.servers = 2, .lease_ms = LeaseMs()});
  Tables all(cluster);
  for (int i = 0; i < 8; ++i) REQUIRE(all.Push(i).ok());
  cluster.KillServer(1);
  absl::SleepFor(absl::Milliseconds(2 * LeaseMs()));  // its lease ends

  std::vector<int> gone, kept;
  for (int i = 0; i < 8; ++i) {
    const absl::Status status = all.Pull(i);
    INFO(status.ToString());
    CHECK((status.ok() || absl::IsUnavailable(status)));
    (status.ok() ? kept : gone).push_back(i);
  }
  CHECK_FALSE(gone.empty());
  CHECK_FALSE(kept.empty());
  for (const int i : gone) CHECK(absl::IsUnavailable(all.Push(i)));

  cluster.RestartServer(1);
  for (const int i : gone) {
    CHECK(Eventually([&] { return absl::IsDataLoss(all.Pull(i)); }));
    CHECK(absl::IsDataLoss(all.Push(i)));
    CHECK(absl::IsDataLoss(all.Pull(i)));
  }
  for (const int i : kept) {
    CHECK(all.Push(i).ok());
    CHECK(all.Pull(i).ok());
    CHECK(all.memory.floats()[0] == 2.0f);
  }
}

}  // namespace
}  // namespace verbena::test
