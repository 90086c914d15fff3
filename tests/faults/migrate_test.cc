// Partitions move between real servers, and servers are drained, while clients push and pull.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/cluster.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

constexpr uint64_t kElements = 1 << 20;  // 16 chunks of 256 KiB
constexpr int kWorkers = 2;

v1::TableSpec Spec() {
  v1::TableSpec spec;
  spec.set_name("sums");
  spec.add_shape(kElements);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  return spec;
}

// Workers that push ones, and read back no less than their own pushes, until they are stopped.
class Load {
 public:
  explicit Load(const ProcessCluster& cluster) {
    for (int i = 0; i < kWorkers; ++i) {
      ClientOptions options;
      options.cluster = cluster.address();
      options.transport = TestTransport();
      options.timeout = absl::Seconds(60);
      auto client = Client::Connect(options);
      REQUIRE(client.ok());
      clients_.push_back(*std::move(client));
      auto table = clients_.back()->CreateTable(Spec());
      INFO(table.status());
      REQUIRE(table.ok());
      tables_.push_back(*std::move(table));
    }
    for (int i = 0; i < kWorkers; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  ~Load() { Stop(); }

  uint64_t pushes() const { return pushes_; }
  void AwaitMore() {
    const uint64_t before = pushes();
    CHECK(
        Eventually([&] { return pushes() > before + 20 || !Error().empty(); }, absl::Seconds(60)));
  }
  std::string Error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  // Every element is the number of pushes.
  void Check() {
    Stop();
    REQUIRE(Error() == "");
    auto memory = clients_[0]->AllocateRegion(tables_[0].bytes());
    REQUIRE(memory.ok());
    REQUIRE(clients_[0]->Pull(tables_[0], *memory).Wait().ok());
    const float sum = static_cast<float>(pushes());
    const auto right = std::count(memory->floats(), memory->floats() + kElements, sum);
    CAPTURE(sum, memory->floats()[0]);
    CHECK(static_cast<uint64_t>(right) == kElements);
  }

 private:
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void Fail(const std::string& error) {
    const std::lock_guard lock(mutex_);
    if (error_.empty()) error_ = error;
  }
  void Run(int worker) {
    auto ones = clients_[worker]->AllocateRegion(tables_[worker].bytes());
    auto values = clients_[worker]->AllocateRegion(tables_[worker].bytes());
    if (!ones.ok() || !values.ok()) return Fail("no memory");
    std::fill_n(ones->floats(), kElements, -1.0f);
    for (uint64_t own = 1; !stop_; ++own) {
      if (absl::Status s = clients_[worker]->Push(tables_[worker], *ones).Wait(); !s.ok()) {
        return Fail(absl::StrCat("push: ", s.ToString()));
      }
      ++pushes_;
      if (absl::Status s = clients_[worker]->Pull(tables_[worker], *values).Wait(); !s.ok()) {
        return Fail(absl::StrCat("pull: ", s.ToString()));
      }
      const float least = *std::min_element(values->floats(), values->floats() + kElements);
      if (least >= static_cast<float>(own)) continue;
      return Fail(absl::StrCat("after ", own, " own pushes a pull has ", least));
    }
  }

  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Table> tables_;
  std::vector<std::thread> threads_;
  std::atomic<uint64_t> pushes_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::string error_;
};

Finished Cli(const ProcessCluster& cluster, std::vector<std::string> arguments) {
  std::vector<std::string> argv = {CliPath()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  argv.insert(argv.end(), {"--cluster", cluster.address(), "--timeout", "30"});
  return RunProgram(argv, absl::Seconds(120));
}

int Primaries(const ProcessCluster& cluster, const std::string& server) {
  const Finished list = Cli(cluster, {"partition", "list", "--json"});
  REQUIRE(list.status == 0);
  const std::string primary = absl::StrCat("\"primary\": {\"server\": \"", server, "\"");
  int count = 0;
  for (size_t at = 0; (at = list.out.find(primary, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST_CASE("partitions of a table move under load: sums are exact and no call fails") {
  const int replicas = GENERATE(1, 2);
  CAPTURE(replicas);
  ProcessCluster cluster({.servers = 3, .replicas = replicas});
  Load load(cluster);
  load.AwaitMore();
  for (const char* to : {"server-1", "server-2", "server-0"}) {
    const Finished moved = Cli(cluster, {"migrate", "--table", "sums", "--to", to});
    INFO(moved.err);
    INFO(cluster.logs());
    REQUIRE(moved.status == 0);
    load.AwaitMore();
  }
  const Finished again = Cli(cluster, {"migrate", "--table", "sums", "--to", "server-0"});
  CHECK(again.status == 1);
  CHECK(again.err.find("server 'server-0' is already the primary of all") != std::string::npos);
  load.Check();
}

TEST_CASE("a drained server is stopped under load: sums are exact and no call fails") {
  const int replicas = GENERATE(1, 2);
  CAPTURE(replicas);
  ProcessCluster cluster({.servers = 3, .replicas = replicas});
  Load load(cluster);
  load.AwaitMore();
  REQUIRE(Primaries(cluster, "server-1") > 0);
  const Finished drained = Cli(cluster, {"drain", "server-1"});
  INFO(drained.err);
  INFO(cluster.logs());
  REQUIRE(drained.status == 0);
  CHECK(Primaries(cluster, "server-1") == 0);
  cluster.KillServer(1);
  load.AwaitMore();
  load.Check();
}

TEST_CASE("sync training has the same bits while its partitions move without replicas") {
  const TemporaryDirectory directory;
  std::string text;
  for (int row = 0; row < 4000; ++row) {
    absl::StrAppend(&text, row % 2, " ", 1 + row % 50, ":1 ", 51 + row % 37, ":1\n");
  }
  WriteFile(directory.File("train"), text);
  ProcessCluster cluster({.servers = 3, .replicas = 1});
  const auto train = [&](const std::string& job) {
    return std::vector<std::string>{TrainPath(),
                                    "--cluster",
                                    cluster.address(),
                                    "--format",
                                    "libsvm",
                                    "--model",
                                    "mlp",
                                    "--data",
                                    directory.File("train"),
                                    "--workers",
                                    "2",
                                    "--job",
                                    job,
                                    "--batch",
                                    "64",
                                    "--steps",
                                    "1500",
                                    "--transport",
                                    TestTransport(),
                                    "--checksum",
                                    "--json",
                                    "--log-steps"};
  };
  const Finished still = RunProgram(train("still"));
  INFO(still.err);
  REQUIRE(still.status == 0);
  Process moving(train("moving"));
  REQUIRE(moving.WaitFor(") step 20\n"));
  int moves = 0;
  for (; moves < 6 && moving.running(); ++moves) {
    const Finished drained = Cli(cluster, {"drain", absl::StrCat("server-", moves % 3)});
    INFO(drained.err << cluster.logs());
    REQUIRE(drained.status == 0);
    REQUIRE(Cli(cluster, {"drain", absl::StrCat("server-", moves % 3), "--cancel"}).status == 0);
  }
  const std::optional<int> status = moving.Wait(absl::Seconds(120));
  INFO(moving.err_end());
  REQUIRE(status == 0);
  CAPTURE(moves);
  CHECK(moves >= 2);
  CHECK(JsonField(moving.out(), "parameters_xxh64") == JsonField(still.out, "parameters_xxh64"));
}

}  // namespace
}  // namespace verbena::test
