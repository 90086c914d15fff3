// Saving, compacting, pruning and restoring, with the program, a server or the coordinator killed
// (SIGKILL) at a random moment: the newest checkpoint always restores with the numbers it was made
// of, and nothing half restored is served.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/cluster.h"
#include "tests/support/good.h"
#include "tests/support/process.h"
#include "verbena/client.h"

namespace verbena::test {
namespace checkpoint_kills_test {

constexpr uint64_t kElements = 200'001;
constexpr uint64_t kRows = 3'000;
constexpr uint32_t kDim = 8;
constexpr int kServers = 3;
using Numbers = std::vector<float>;

#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kKills = 8;  // each kind once
#else
constexpr uint64_t kKills = 20;
#endif

// VERBENA_CHECKPOINT_KILLS=200, VERBENA_CHECKPOINT_SEED: more, or others.
uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// Bit for bit, and not printed when they differ.
bool Same(const Numbers& a, const Numbers& b) { return a == b; }

v1::TableSpec DenseSpec() {
  v1::TableSpec spec;
  spec.set_name("dense");
  spec.add_shape(kElements);
  spec.set_consistency(v1::CONSISTENCY_SYNC);
  spec.mutable_optimizer()->set_name("adam");
  spec.mutable_optimizer()->set_rate(0.5);
  return spec;
}
v1::TableSpec RowsSpec() {
  v1::TableSpec spec;
  spec.set_name("rows");
  spec.set_dim(kDim);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_optimizer()->set_name("adagrad");
  spec.mutable_optimizer()->set_rate(0.5);
  return spec;
}

class World {
 public:
  World() {
    for (uint64_t i = 0; i < kRows; ++i) keys_.push_back(i * 9'000'011 + 3);
  }

  ProcessCluster& cluster() { return cluster_; }
  const std::string& root() const { return root_; }

  // One step, of new random gradients. Afterwards `now` has the tables' values.
  void Train(uint64_t seed) {
    const auto client = Connect();
    const Table dense = Value(client->CreateTable(DenseSpec()));
    const Table rows = Value(client->CreateTable(RowsSpec()));
    const Region gradient = Value(client->AllocateRegion(kElements * 4));
    const Region more = Value(client->AllocateRegion(kRows * kDim * 4));
    std::mt19937_64 random(seed);
    for (uint64_t i = 0; i < kElements; ++i) gradient.floats()[i] = Gradient(&random);
    for (uint64_t i = 0; i < kRows * kDim; ++i) more.floats()[i] = Gradient(&random);
    Good(client->PushPull(dense, gradient, gradient).Wait());
    Good(client->PushRows(rows, keys_, more).Wait());
    Served(client.get(), &now);
  }
  // Reads both tables, without making or dropping them; false if one cannot be read.
  bool Look(Numbers* numbers) {
    const auto client = Connect();
    if (!client->OpenTable("dense").ok() || !client->OpenTable("rows").ok()) return false;
    return Served(client.get(), numbers);
  }

  Process Start(const std::vector<std::string>& words) const { return Process(Argv(words)); }
  Finished Run(const std::vector<std::string>& words) const { return RunProgram(Argv(words)); }
  std::vector<std::string> List() const {
    const Finished list = Run({"list", root_, "--json"});
    INFO(list.err);
    REQUIRE(list.status == 0);
    return JsonFields(list.out, "name");
  }

  // Each new checkpoint on the disk was made of `numbers`. All are whole, and the newest one is at
  // least as new as before.
  void CheckDisk(const Numbers& numbers) {
    const std::vector<std::string> names = List();
    REQUIRE_FALSE(names.empty());
    std::string last;
    for (const std::string& name : names) {
      made_.emplace(name, numbers);
      last = std::max(last, name);
    }
    CHECK(last >= newest);
    newest = last;
    const Finished verify = Run({"verify", root_, "--all"});
    INFO(verify.err);
    CHECK(verify.status == 0);
  }
  const Numbers& OfNewest() const { return made_.at(newest); }

  // Afterwards the cluster has the values of the newest checkpoint.
  void Restore() {
    // The table of a killed restore is dropped after its lease.
    REQUIRE(Eventually([&] {
      const Finished tables = RunProgram({CliPath(), "--cluster", cluster_.address(), "tables"});
      return tables.out.find("is being restored") == std::string::npos;
    }));
    const Finished restore = Run({"restore", root_, "--replace", "--yes"});
    INFO(restore.err);
    INFO(cluster_.logs());
    REQUIRE(restore.status == 0);
    Numbers served;
    REQUIRE(Look(&served));
    CHECK(Same(served, OfNewest()));
    now = OfNewest();
  }
  // A save that nobody disturbs works and leaves nothing but checkpoints in the directory.
  void Save() {
    const Finished save = Run({"save", root_, "--full-every", "3"});
    INFO(save.err);
    INFO(cluster_.logs());
    REQUIRE(save.status == 0);
    CheckDisk(now);
    for (const auto& entry : std::filesystem::directory_iterator(root_)) {
      INFO(entry.path());
      CHECK(entry.path().extension() != ".tmp");
    }
  }

  Numbers now;         // the tables' values
  std::string newest;  // checkpoint

 private:
  static float Gradient(std::mt19937_64* random) {
    return static_cast<float>(static_cast<int64_t>((*random)() % 2001) - 1000) / 64;
  }
  std::unique_ptr<Client> Connect() const {
    ClientOptions options;
    options.cluster = cluster_.address();
    options.transport = TestTransport();
    options.timeout = absl::Seconds(20);
    return Value(Client::Connect(options));
  }
  bool Served(Client* client, Numbers* numbers) const {
    const Region values = Value(client->AllocateRegion(kElements * 4));
    const Region rows = Value(client->AllocateRegion(kRows * kDim * 4));
    const Table dense = Value(client->OpenTable("dense")), items = Value(client->OpenTable("rows"));
    PullOptions pull;
    LookupOptions lookup;
    pull.timeout = lookup.timeout = absl::Seconds(5);
    if (!client->Pull(dense, values, {}, pull).Wait().ok()) return false;
    if (!client->Lookup(items, keys_, rows, lookup).Wait().ok()) return false;
    numbers->assign(values.floats(), values.floats() + kElements);
    numbers->insert(numbers->end(), rows.floats(), rows.floats() + kRows * kDim);
    return true;
  }
  std::vector<std::string> Argv(const std::vector<std::string>& words) const {
    std::vector<std::string> argv = {CliPath(), "--cluster", cluster_.address(), "checkpoint"};
    argv.insert(argv.end(), words.begin(), words.end());
    return argv;
  }

  TemporaryDirectory directory_;
  const std::string root_ = directory_.File("checkpoints");
  ProcessCluster cluster_{{.servers = kServers, .shards = 1}};
  std::vector<uint64_t> keys_;
  std::map<std::string, Numbers> made_;  // by the checkpoint's name
};

enum class Victim { kProgram, kServer, kCoordinator };
struct Round {
  std::vector<std::string> words;  // the command that is disturbed
  Victim victim;
  int within_ms;
};

// Runs the command, and kills its victim at a random moment. Returns the dead server, or -1. `amid`
// counts the commands that were still running.
int Disturb(World* w, const Round& round, std::mt19937_64* random, int* amid) {
  Process program = w->Start(round.words);
  absl::SleepFor(absl::Milliseconds((*random)() % static_cast<uint64_t>(round.within_ms)));
  *amid += program.running() ? 1 : 0;
  int dead = -1;
  switch (round.victim) {
    case Victim::kProgram:
      program.Signal(SIGKILL);
      break;
    case Victim::kServer:
      dead = static_cast<int>((*random)() % kServers);
      w->cluster().KillServer(dead);
      break;
    case Victim::kCoordinator:
      w->cluster().RestartCoordinator();
      break;
  }
  const auto status = program.Wait(absl::Seconds(60));
  INFO(program.err());
  REQUIRE(status.has_value());  // it does not hang
  if (round.victim == Victim::kProgram) return dead;
  CHECK((*status == 0 || *status == 1));  // nor crash
  if (*status == 1) CHECK_FALSE(program.err().empty());
  return dead;
}

TEST_CASE("whatever is killed while checkpoints are made and loaded, the newest one restores") {
  World w;
  const std::vector<std::string> save = {"save",    w.root(),       "--limit-rate",
                                         "4000000", "--full-every", "3"};
  const std::vector<std::string> restore = {"restore", w.root(), "--replace", "--yes"};
  const Round kRounds[] = {
      {save, Victim::kProgram, 1500},
      {restore, Victim::kServer, 400},
      {{"compact", w.root()}, Victim::kProgram, 100},
      {save, Victim::kServer, 1500},
      {restore, Victim::kProgram, 400},
      {{"prune", w.root(), "--keep-last", "1"}, Victim::kProgram, 50},
      {save, Victim::kCoordinator, 1500},
      {restore, Victim::kCoordinator, 400},
  };
  const uint64_t seed = FromEnvironment("VERBENA_CHECKPOINT_SEED", 1);
  const uint64_t rounds = FromEnvironment("VERBENA_CHECKPOINT_KILLS", kKills);
  std::mt19937_64 random(seed);
  int amid = 0;
  w.Train(seed);
  w.Save();
  for (uint64_t i = 0; i < rounds; ++i) {
    const Round& round = kRounds[i % std::size(kRounds)];
    INFO("round " << i << " of seed " << seed << ": " << round.words.front() << ", victim "
                  << static_cast<int>(round.victim));
    const bool restoring = round.words.front() == "restore";
    w.Train(seed + i + 1);
    const Numbers before = w.now;
    const int dead = Disturb(&w, round, &random, &amid);
    // A compaction has the values of the newest checkpoint, a save those of the tables.
    w.CheckDisk(round.words.front() == "compact" ? Numbers(w.OfNewest()) : before);
    if (dead < 0 && !restoring) {
      Numbers served;
      REQUIRE(w.Look(&served));
      CHECK(Same(served, before));
      w.Save();
      continue;
    }
    if (dead >= 0) w.cluster().RestartServer(dead);
    Numbers served;
    // Old or new, or not there: nothing between.
    if (w.Look(&served)) CHECK((Same(served, before) || Same(served, w.OfNewest())));
    w.Restore();
  }
  INFO("amid: " << amid << " of " << rounds);
  CHECK(amid > 0);
}

}  // namespace checkpoint_kills_test
}  // namespace verbena::test
