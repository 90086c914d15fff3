// `verbena checkpoint restore` that fails, is suspended, is killed, or is not alone: which tables
// are there afterwards. A server that is suspended keeps a restore from ending.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/server/cli_fixture.h"
#include "tests/support/good.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

constexpr uint64_t kRestoredElements = 200'000;  // on both servers

struct RestoreWorld {
  RestoreWorld() {
    Push(1);
    Good("save", Run({"save", root}));
  }

  std::vector<std::string> Words(std::vector<std::string> action) const {
    std::vector<std::string> words = {"--cluster", cluster.address(), "checkpoint"};
    words.insert(words.end(), action.begin(), action.end());
    return words;
  }
  Finished Run(std::vector<std::string> action) const { return Cli(Words(std::move(action))); }
  std::unique_ptr<Process> Start(std::vector<std::string> action) const {
    std::vector<std::string> words = Words(std::move(action));
    words.insert(words.begin(), CliPath());
    return std::make_unique<Process>(words);
  }
  static void Good(const char* what, const Finished& run) {
    INFO(what << ": " << run.err);
    REQUIRE(run.status == 0);
  }

  std::unique_ptr<Client> Connect() const {
    ClientOptions options;
    options.cluster = cluster.address();
    options.transport = TestTransport();
    options.timeout = absl::Seconds(20);
    return Value(Client::Connect(options));
  }
  // Adds `times` to each element.
  void Push(int times, const std::string& name = "w") const {
    const auto client = Connect();
    v1::TableSpec spec;
    spec.set_name(name);
    spec.add_shape(kRestoredElements);
    spec.set_consistency(v1::CONSISTENCY_ASYNC);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    const Table table = Value(client->CreateTable(spec));
    const Region region = Value(client->AllocateRegion(kRestoredElements * 4));
    for (int i = 0; i < times; ++i) {
      std::fill_n(region.floats(), kRestoredElements, -1.0F);
      test::Good(client->Push(table, region).Wait());
    }
  }
  float Read(const std::string& name = "w") const {
    const auto client = Connect();
    const Table table = Value(client->OpenTable(name));
    const Region region = Value(client->AllocateRegion(kRestoredElements * 4));
    test::Good(client->Pull(table, region).Wait());
    for (uint64_t i = 1; i < kRestoredElements; ++i)
      REQUIRE(region.floats()[i] == region.floats()[0]);
    return region.floats()[0];
  }
  std::string Tables() const {
    // While a server is suspended the program reports it, and exits with another status.
    return Cli({"--cluster", cluster.address(), "tables"}).out;
  }
  bool Restoring() const { return Tables().find("is being restored by ") != std::string::npos; }

  // One that has made its table and waits for a server until Resume().
  std::unique_ptr<Process> Stuck(std::vector<std::string> action) {
    // Back from an earlier suspension: without it no table is created.
    REQUIRE(Eventually([&] {
      return Cli({"--cluster", cluster.address(), "tables"}).status == 0;
    }));
    cluster.server(1).Signal(SIGSTOP);
    std::unique_ptr<Process> restore = Start(std::move(action));
    REQUIRE(Eventually([&] { return Restoring(); }));
    return restore;
  }
  void Resume() { cluster.server(1).Signal(SIGCONT); }

  TemporaryDirectory directory;
  std::string root = directory.File("checkpoints");
  ProcessCluster cluster{{.servers = 2, .shards = 1, .lease_ms = 2000}};
};

std::vector<std::string> RestoreWords(const std::string& root, std::vector<std::string> more) {
  std::vector<std::string> words = {"restore", root};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_CASE("a restore that replaces a table and fails leaves it as it is") {
  RestoreWorld w;
  const std::string damaged = w.directory.File("damaged");
  std::filesystem::copy(w.root + "/checkpoint-00000001", damaged,
                        std::filesystem::copy_options::recursive);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(damaged)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::string content = ReadFile(entry.path());
    content[content.size() - 10] = static_cast<char>(content[content.size() - 10] ^ 1);
    WriteFile(entry.path(), content);
    ++files;
  }
  REQUIRE(files > 0);
  w.Push(2);
  const Finished failed = w.Run(RestoreWords(damaged, {"--replace"}));
  CHECK(failed.status == 1);
  CHECK_THAT(failed.err, Contains("checksum"));
  CHECK(w.Read() == 3);
  CHECK_FALSE(w.Restoring());

  // Killed in the middle; workers go on with the table meanwhile and afterwards.
  {
    const auto restore = w.Stuck(RestoreWords(w.root, {"--replace"}));
    restore->Signal(SIGKILL);
    CHECK(restore->Wait() == 128 + SIGKILL);
    w.Resume();
    CHECK(w.Read() == 3);
    w.Push(1);
    CHECK(w.Read() == 4);
  }
  REQUIRE(Eventually([&] { return !w.Restoring(); }));
  CHECK(w.Read() == 4);
  RestoreWorld::Good("replace", w.Run(RestoreWords(w.root, {"--replace"})));
  CHECK(w.Read() == 1);
  w.Push(1);
  RestoreWorld::Good("drop first", w.Run(RestoreWords(w.root, {"--drop-first"})));
  CHECK(w.Read() == 1);
}

TEST_CASE("regression: a table of another job is replaced only when the operator agrees") {
  RestoreWorld w;
  w.Push(2);
  for (const char* how : {"--replace", "--drop-first"}) {
    const Finished refused = w.Run(RestoreWords(w.root, {how, "--job", "other"}));
    CHECK(refused.status == 1);
    CHECK_THAT(refused.err, Contains("nothing was changed") &&
                                Contains("table 'w' of job 'default' is replaced by a table of job "
                                         "'other'") &&
                                Contains("--yes agrees to it"));
    CHECK(w.Read() == 3);
  }
  RestoreWorld::Good("agreed",
                     w.Run(RestoreWords(w.root, {"--replace", "--job", "other", "--yes"})));
  CHECK_THAT(w.Tables(), Contains("other"));
}

TEST_CASE("tables that workers use are replaced only when the operator agrees") {
  RestoreWorld w;
  w.Push(2);
  {
    const auto worker = w.Connect();
    const Table table = Value(worker->OpenTable("w"));
    for (const char* how : {"--replace", "--drop-first"}) {
      const Finished refused = w.Run(RestoreWords(w.root, {how}));
      CHECK(refused.status == 1);
      CHECK(refused.out.empty());
      CHECK_THAT(refused.err, Contains("table 'w' is used by 1 worker of job 'default'") &&
                                  Contains("--yes agrees to it"));
    }
    const Region region = Value(worker->AllocateRegion(kRestoredElements * 4));
    test::Good(worker->Pull(table, region).Wait());
    CHECK(region.floats()[0] == 3);
    // A table that replaces none needs no --yes.
    RestoreWorld::Good("beside",
                       w.Run(RestoreWords(w.root, {"--replace", "--rename", "w=beside"})));
    RestoreWorld::Good("agreed", w.Run(RestoreWords(w.root, {"--replace", "--yes"})));
  }
  CHECK(w.Read() == 1);
}

TEST_CASE("a restore that was suspended touches no table but its own") {
  RestoreWorld w;
  const std::vector<std::string> words =
      RestoreWords(w.root, {"--job", "other", "--rename", "w=x"});
  const auto first = w.Stuck(words);
  // Meanwhile the error of a second restore names the process that restores the table.
  const Finished second = w.Run(words);
  CHECK(second.status == 1);
  CHECK_THAT(second.err, Contains("table 'x' of job 'other' is being restored by verbena on ") &&
                             Contains("process " + std::to_string(first->pid())));
  first->Signal(SIGSTOP);
  w.Resume();
  REQUIRE(Eventually([&] { return !w.Restoring(); }));
  RestoreWorld::Good("third", w.Run(words));
  first->Signal(SIGCONT);
  CHECK(first->Wait() == 1);
  INFO(first->err());
  CHECK_THAT(w.Tables(), Contains("\nx "));
  CHECK_FALSE(w.Restoring());
}

TEST_CASE("restores at once: one wins, and its tables stay") {
  RestoreWorld w;
  for (int round = 0; round < 5; ++round) {
    const std::string name = "x" + std::to_string(round);
    const std::vector<std::string> words = RestoreWords(w.root, {"--rename", "w=" + name});
    const auto a = w.Start(words), b = w.Start(words);
    const std::optional<int> first = a->Wait(), second = b->Wait();
    INFO(a->err() << b->err());
    CHECK(((first == 0) != (second == 0)));
    CHECK(w.Read(name) == 1);
  }
}

TEST_CASE("a restore that dies leaves nothing, and nobody sees its tables before") {
  RestoreWorld w;
  const std::vector<std::string> words = RestoreWords(w.root, {"--rename", "w=x"});
  for (const int signal : {SIGHUP, SIGTERM, SIGKILL}) {
    INFO("signal " << signal);
    const auto restore = w.Stuck(words);
    const Json tables(Cli({"--cluster", w.cluster.address(), "tables", "--json"}).out);
    REQUIRE(tables["tables"].size() == 2);
    CHECK_FALSE(tables["tables"][0]["restoring"].truth());
    CHECK(tables["tables"][1]["restoring"].truth());
    CHECK_THAT(tables["tables"][1]["restorer"].text(), Contains("verbena on "));
    const auto opened = w.Connect()->OpenTable("x");
    CHECK(opened.status().code() == absl::StatusCode::kUnavailable);
    CHECK_THAT(std::string(opened.status().message()), Contains("is being restored by "));
    restore->Signal(signal);
    CHECK(restore->Wait() == 128 + signal);
    w.Resume();
    // After a signal that can be caught, the restore drops its tables itself.
    if (signal != SIGKILL) CHECK_FALSE(w.Restoring());
    REQUIRE(Eventually([&] { return !w.Restoring(); }));
    CHECK(w.Connect()->OpenTable("x").status().code() == absl::StatusCode::kNotFound);
  }
}

}  // namespace
}  // namespace verbena::test
