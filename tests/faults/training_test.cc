// verbena-train against real daemons: bits, faults, and that training goes through the servers.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/cluster.h"

namespace verbena::test {
namespace {

// Synthetic LIBSVM data: 60 binary features, labels from a fixed linear rule with noise.
std::string SyntheticData(int rows, uint64_t seed) {
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

struct Data {
  Data() {
    WriteFile(directory.File("train"), SyntheticData(20000, 1));
    WriteFile(directory.File("test"), SyntheticData(4000, 2));
  }
  TemporaryDirectory directory;
  std::vector<std::string> Train(const ProcessCluster& cluster, int workers,
                                 const std::string& consistency, const std::string& job,
                                 std::vector<std::string> more = {}) const {
    std::vector<std::string> argv = {TrainPath(),
                                     "--cluster",
                                     cluster.address(),
                                     "--format",
                                     "libsvm",
                                     "--data",
                                     directory.File("train"),
                                     "--test",
                                     directory.File("test"),
                                     "--workers",
                                     std::to_string(workers),
                                     "--consistency",
                                     consistency,
                                     "--job",
                                     job,
                                     "--transport",
                                     TestTransport(),
                                     "--batch",
                                     "256",
                                     "--json"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
};

double Number(const std::string& json, const std::string& field) {
  return std::strtod(JsonField(json, field).c_str(), nullptr);
}

TEST_CASE("a sync run gives the same bits twice, whatever the order of arrival") {
  Data data;
  std::string checksum;
  for (int run = 0; run < 3; ++run) {
    ProcessCluster cluster({.servers = run == 2 ? 1 : 2});  // nor the number of servers
    const Finished train =
        RunProgram(data.Train(cluster, 4, "sync", "job", {"--steps", "100", "--checksum"}));
    INFO(train.err);
    REQUIRE(train.status == 0);
    const std::string got = JsonField(train.out, "parameters_xxh64");
    REQUIRE_FALSE(got.empty());
    if (run == 0) checksum = got;
    CHECK(got == checksum);
  }
}

TEST_CASE("16 bits train as well as 32, with half the bytes, and the same bits on any cluster",
          "[arithmetic]") {
  Data data;
  const std::vector<std::string> more = {"--steps", "300", "--checksum"};
  const auto with = [&](const std::string& dtype, const std::string& gradient_dtype) {
    std::vector<std::string> all = more;
    all.insert(all.end(), {"--dtype", dtype, "--gradient-dtype", gradient_dtype});
    return all;
  };
  Finished wide;
  std::string checksum;
  for (const int servers : {1, 2, 5}) {
    ProcessCluster cluster({.servers = servers});
    const Finished narrow =
        RunProgram(data.Train(cluster, 4, "sync", "narrow", with("bf16", "bf16")));
    INFO(narrow.err);
    REQUIRE(narrow.status == 0);
    const std::string got = JsonField(narrow.out, "parameters_xxh64");
    REQUIRE_FALSE(got.empty());
    if (checksum.empty()) checksum = got;
    CHECK(got == checksum);
    if (servers != 2) continue;

    const Finished half = RunProgram(data.Train(cluster, 2, "sync", "half", with("f16", "f32")));
    wide = RunProgram(data.Train(cluster, 4, "sync", "wide", more));
    INFO(half.err << wide.err);
    REQUIRE(half.status == 0);
    REQUIRE(wide.status == 0);
    CHECK(JsonField(wide.out, "parameters_xxh64") != checksum);
    for (const Finished* run : {&narrow, &half}) {
      CHECK(std::abs(Number(run->out, "loss") - Number(wide.out, "loss")) <
            0.02 * Number(wide.out, "loss"));
      CHECK(std::abs(Number(run->out, "auc") - Number(wide.out, "auc")) < 0.002);
    }
    // Steps are counted in f32, in 65 rows of 12 numbers: pushed by 4 workers in each of 300,
    // pulled once more by each at the beginning, and once at the end.
    const double counts = 65 * 12 * sizeof(float);
    const double pushed = 4 * 300 * counts, pulled = (4 * 301 + 1) * counts;
    CHECK(2 * Number(narrow.out, "bytes_pushed") == Number(wide.out, "bytes_pushed") + pushed);
    CHECK(2 * Number(narrow.out, "bytes_pulled") == Number(wide.out, "bytes_pulled") + pulled);
    CHECK(JsonField(narrow.out, "dtype") == "bf16");
    CHECK(JsonField(half.out, "dtype") == "f16");
    CHECK(JsonField(half.out, "gradient_dtype") == "f32");
  }
}

TEST_CASE("the servers count the same bytes as the workers") {
  Data data;
  ProcessCluster cluster;
  const Finished train = RunProgram(data.Train(cluster, 2, "sync", "job", {"--steps", "50"}));
  INFO(train.err);
  REQUIRE(train.status == 0);
  CHECK(Number(train.out, "bytes_pushed") > 0);
  CHECK(cluster.Metric("verbena_shard_push_bytes_total") == Number(train.out, "bytes_pushed"));
  CHECK(cluster.Metric("verbena_shard_pull_bytes_total") == Number(train.out, "bytes_pulled"));
}

TEST_CASE("a worker killed in mid-step: the others finish") {
  Data data;
  ProcessCluster cluster;
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < 3; ++rank) {
    workers.push_back(std::make_unique<Process>(
        data.Train(cluster, 3, "sync", "job",
                   {"--rank", std::to_string(rank), "--steps", "1000", "--log-steps"})));
  }
  REQUIRE(workers[2]->WaitFor("step 20"));
  workers[2]->Signal(SIGKILL);
  for (int rank = 0; rank < 2; ++rank) {
    const auto status = workers[rank]->Wait(absl::Seconds(90));
    INFO(workers[rank]->err());
    REQUIRE(status.has_value());
    CHECK(*status == 0);
  }
}

TEST_CASE("a stopped worker does not delay the others of an async job") {
  Data data;
  ProcessCluster cluster({.lease_ms = 60000});  // the stopped one stays a member throughout
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < 2; ++rank) {
    workers.push_back(std::make_unique<Process>(
        data.Train(cluster, 2, "async", "job",
                   {"--rank", std::to_string(rank), "--steps", "2000", "--log-steps"})));
  }
  REQUIRE(workers[1]->WaitFor("step 20"));
  workers[1]->Signal(SIGSTOP);
  const auto status = workers[0]->Wait(absl::Seconds(50));
  INFO(workers[0]->err());
  REQUIRE(status.has_value());
  CHECK(*status == 0);
  workers[1]->Signal(SIGCONT);
}

TEST_CASE("a stopped server stops the training, which goes on when it does") {
  Data data;
  ProcessCluster cluster({.lease_ms = 1000});
  Process train(data.Train(cluster, 2, "sync", "job", {"--steps", "1500", "--log-steps"}));
  REQUIRE(train.WaitFor("step 50"));
  cluster.server(0).Signal(SIGSTOP);
  // Requests in flight end; then nothing moves for as long as the server is stopped.
  std::string last = train.err();
  REQUIRE(Eventually([&] {
    const absl::Time quiet = absl::Now() + absl::Milliseconds(500);
    const std::string before = train.err();
    Eventually([&] { return absl::Now() > quiet; });
    last = train.err();
    return last == before;
  }));
  CHECK(train.running());
  CHECK(last.find("step 1500\n") == std::string::npos);
  cluster.server(0).Signal(SIGCONT);
  const auto status = train.Wait(absl::Seconds(90));
  INFO(train.err());
  REQUIRE(status.has_value());
  CHECK(*status == 0);
  CHECK(Number(train.out(), "auc") > 0.9);
}

TEST_CASE("training with a killed server ends with an error, not with a hang or a crash") {
  Data data;
  ProcessCluster cluster;
  Process train(data.Train(cluster, 2, "sync", "job",
                           {"--steps", "100000", "--log-steps", "--timeout", "3"}));
  REQUIRE(train.WaitFor("step 50"));
  cluster.server(0).Signal(SIGKILL);
  const auto status = train.Wait(absl::Seconds(60));
  INFO(train.err());
  REQUIRE(status.has_value());
  CHECK(*status == 1);
  // A fresh job on the same cluster, once the server is back, works.
  cluster.RestartServer(0);
  const Finished again = RunProgram(data.Train(cluster, 2, "sync", "fresh", {"--steps", "200"}));
  INFO(again.err);
  CHECK(again.status == 0);
}

TEST_CASE("a second run of a job starts from the tables' present values") {
  Data data;
  ProcessCluster cluster;
  const Finished first = RunProgram(data.Train(cluster, 2, "sync", "job", {"--steps", "100"}));
  REQUIRE(first.status == 0);
  const Finished second = RunProgram(data.Train(cluster, 2, "sync", "job", {"--steps", "100"}));
  INFO(second.err);
  REQUIRE(second.status == 0);
  CHECK(Number(second.out, "loss") < Number(first.out, "loss") + 0.05);
  const Finished fewer = RunProgram(data.Train(cluster, 1, "sync", "job", {"--steps", "100"}));
  INFO(fewer.err);
  CHECK(fewer.status == 0);
  const Finished most =
      RunProgram(data.Train(cluster, 65, "sync", "job", {"--steps", "100", "--rank", "0"}));
  CHECK(most.status == 1);
  CHECK(most.err.find("counted for another number of ranks") != std::string::npos);
}

}  // namespace
}  // namespace verbena::test
