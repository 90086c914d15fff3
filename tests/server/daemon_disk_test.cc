// Errors of a running cluster about a disk that cannot be written, and about concurrent saves; the
// previous checkpoint stays, and training goes on.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/cli_fixture.h"
#include "tests/support/cluster.h"
#include "tests/support/connected.h"
#include "tests/support/good.h"
#include "tests/support/process.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

constexpr uint64_t kSmall = 2'000, kLarge = 400'000;

// A worker of a sync table, for whose checkpoint there is room, and of one for which there is none.
class World {
 public:
  World() {
    client_ = Connected(cluster);
    gradient_ = Value(client_->AllocateRegion(kLarge * 4));
    parameters_ = Value(client_->AllocateRegion(kLarge * 4));
    small_ = Make("small", kSmall);
    large_ = Make("large", kLarge);
  }
  // Ends with an error if training does not go on.
  void Step() {
    for (uint64_t i = 0; i < kLarge; ++i) gradient_.floats()[i] = static_cast<float>(i % 31) - 15;
    Ticket small = client_->PushPull(small_, gradient_, parameters_);
    Good(small.Wait());
    served.assign(parameters_.floats(), parameters_.floats() + kSmall);
    Good(client_->PushPull(large_, gradient_, parameters_).Wait());
  }
  // The command line for both tables.
  std::vector<std::string> Words(std::vector<std::string> more) const {
    more.insert(more.begin(), {"--cluster", cluster.address(), "checkpoint"});
    return more;
  }

  ProcessCluster cluster{{.servers = 2, .shards = 1}};
  std::vector<float> served;  // small's parameters

 private:
  Table Make(const char* name, uint64_t elements) {
    v1::TableSpec spec;
    spec.set_name(name);
    spec.add_shape(elements);
    spec.set_consistency(v1::CONSISTENCY_SYNC);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(0.5);
    return Value(client_->CreateTable(spec));
  }
  std::unique_ptr<Client> client_;
  Region gradient_, parameters_;
  Table small_, large_;
};

bool OnlyCheckpoints(const std::string& root) {
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (entry.path().extension() == ".tmp") return false;
  }
  return true;
}

// `small` as it is in the newest checkpoint, after NumPy's header.
std::vector<float> Exported(const std::string& root, const TemporaryDirectory& to) {
  const Finished run = Cli({"checkpoint", "export", root, "--to", to.File("npy"), "--format", "npy",
                            "--table", "small"});
  INFO(run.err);
  REQUIRE(run.status == 0);
  std::string bytes = ReadFile(to.File("npy") + "/small.npy");
  REQUIRE(bytes.size() > kSmall * 4);
  std::vector<float> values(kSmall);
  std::memcpy(values.data(), bytes.data() + bytes.size() - kSmall * 4, kSmall * 4);
  return values;
}

std::string SmallDisk() {
  const char* disk = std::getenv("VERBENA_SMALL_DISK");
  REQUIRE(disk != nullptr);
  return disk;
}

TEST_CASE("a save that fills the disk fails; the previous checkpoint stays, and training goes on",
          "[.small-disk]") {
  // Of 1 MiB, made by small_disk_test.sh: large is larger.
  const std::string root = SmallDisk() + "/checkpoints";
  World w;
  w.Step();
  const Finished first = Cli(w.Words({"save", root, "--table", "small"}));
  INFO(first.err);
  REQUIRE(first.status == 0);
  const std::vector<float> saved = w.served;
  w.Step();
  const Finished second = Cli(w.Words({"save", root}));
  CHECK(second.status == 1);
  CHECK_THAT(second.err, StartsWith("verbena: ") && Contains("checkpoint-00000002.") &&
                             Contains("No space left on device"));
  CHECK(OnlyCheckpoints(root));
  w.Step();
  TemporaryDirectory to;
  CHECK(Exported(root, to) == saved);
  // The checkpoint of a small table has room again.
  const Finished third = Cli(w.Words({"save", root, "--table", "small"}));
  INFO(third.err);
  CHECK(third.status == 0);
}

TEST_CASE("a save to a read-only disk gives an error, a restore from it works",
          "[.read-only-disk]") {
  const std::string root = SmallDisk() + "/checkpoints";
  World w;
  w.Step();
  const Finished save = Cli(w.Words({"save", root}));
  CHECK(save.status == 1);
  CHECK_THAT(save.err, StartsWith("verbena: ") && Contains(root) && Contains("Read-only"));
  w.Step();
  const Finished restore = Cli(w.Words({"restore", root, "--rename", "small=again"}));
  INFO(restore.err);
  CHECK(restore.status == 0);
}

TEST_CASE("of two saves at once the second is refused, and the previous checkpoint stays") {
  TemporaryDirectory directory;
  const std::string root = directory.File("checkpoints");
  World w;
  w.Step();
  REQUIRE(Cli(w.Words({"save", root})).status == 0);
  const std::vector<float> saved = w.served;
  std::vector<std::string> slow = w.Words({"save", root, "--limit-rate", "20000"});
  slow.insert(slow.begin(), CliPath());
  Process first(slow);
  REQUIRE(Eventually([&] { return !OnlyCheckpoints(root); }));  // the attempt's directory
  const Finished second = Cli(w.Words({"save", root}));
  CHECK(second.status == 1);
  CHECK_THAT(second.err, StartsWith("verbena: ") && Contains("LOCK is locked by another process"));
  // Servers do not save a table twice at a time; it waits a little, as the other may be about done.
  const Finished elsewhere = Cli(w.Words({"save", directory.File("others")}));
  CHECK(elsewhere.status == 1);
  CHECK_THAT(elsewhere.err, StartsWith("verbena: ") && Contains("is being saved already"));
  w.Step();
  REQUIRE(first.running());
  first.Signal(SIGINT);
  REQUIRE(first.Wait().value_or(0) == 128 + SIGINT);
  CHECK(OnlyCheckpoints(root));
  TemporaryDirectory to;
  CHECK(Exported(root, to) == saved);
  const Finished third = Cli(w.Words({"save", root}));
  INFO(third.err);
  CHECK(third.status == 0);
}

}  // namespace
}  // namespace verbena::test
