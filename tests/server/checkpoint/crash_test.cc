// A machine that crashes at any write of a save, a commit or a prune: the newest committed
// checkpoint is whole, no incomplete one looks committed, and the next save removes leftovers.
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/compact.h"
#include "tests/cluster/seeds.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::checkpoint::test {
namespace {

constexpr char kRoot[] = "/root";

// The work of a process until it is done or the machine crashes. Records the models of checkpoints
// that were committed, or may have been.
struct Life {
  SimDisk* disk;
  Model model;
  std::map<std::string, Model> saved;  // Save() returned OK
  std::map<std::string, Model> maybe;  // Save() was in progress
  uint64_t number = 0;                 // the lowest number of the next checkpoint

  void Run(int saves, bool incremental) {
    auto directory = CheckpointDirectory::Open(disk, kRoot);
    if (!directory.ok()) return;
    for (int i = 0; i < saves && !disk->crashed(); ++i) {
      model.Train();
      CheckpointStartOptions options;
      options.writers = 1 + i % 3;
      options.slices = i % 2 == 1;
      Listed base;
      const auto listed = ListCheckpoints(disk, kRoot);
      // The base is a checkpoint that this process saved, or that it has read whole.
      if (incremental && i % 3 != 0 && listed.ok() && !listed->empty()) {
        base = listed->back();
        options.base = &base;
      }
      // Every number that it may get.
      for (uint64_t n = number; n < number + 3; ++n)
        maybe.insert_or_assign(CheckpointName(n), model);
      const auto name = Save(disk, directory->get(), model, options);
      if (!name.ok()) return;
      maybe.clear();
      saved.insert_or_assign(*name, model);
      number = *CheckpointNumber(*name) + 1;
      if (i % 3 == 2) {
        const auto removed = (*directory)->Prune({.keep_last = 1, .keep_every = 4});
        if (!removed.ok()) return;
        for (const std::string& gone : *removed) saved.erase(gone);
      }
    }
  }
};

// Compares each checkpoint that looks committed with its model; fails the test if one is not whole.
void CheckDisk(SimDisk* disk, const Life& life) {
  const auto listed = ListCheckpoints(disk, kRoot);
  if (absl::IsNotFound(listed.status())) {
    CHECK(life.saved.empty());
    return;
  }
  REQUIRE(listed.ok());
  for (const Listed& one : *listed) {
    INFO(one.name);
    INFO(one.manifest.status());
    REQUIRE(one.manifest.ok());
    const auto saved = life.saved.find(one.name);
    const auto maybe = life.maybe.find(one.name);
    // Prune() may have been about to remove it; then it is in neither.
    if (saved == life.saved.end() && maybe == life.maybe.end()) continue;
    const Model& model = saved == life.saved.end() ? maybe->second : saved->second;
    CHECK(Differs(disk, Join(kRoot, one.name), model) == "");
  }
  std::vector<std::string> passed;
  const auto newest = NewestComplete(disk, kRoot, &passed);
  CHECK(passed.empty());
  if (!life.saved.empty()) {
    REQUIRE(newest.ok());
    // Each checkpoint for which Save() returned OK is there.
    CHECK(BaseName(*newest) >= life.saved.rbegin()->first);
  }
}

void CheckNoLeftovers(SimDisk* disk) {
  const auto entries = disk->List(kRoot);
  REQUIRE(entries.ok());
  for (const Disk::Entry& entry : *entries) {
    CHECK((entry.name == "LOCK" || CheckpointNumber(entry.name).has_value()));
  }
}

uint64_t OperationsOf(uint64_t seed, int saves, bool incremental) {
  SimDisk disk(seed);
  Life life{&disk, Model(seed), {}, {}, 1};
  life.Run(saves, incremental);
  return disk.operations();
}

void CrashOnce(uint64_t seed, uint64_t at, int saves, bool incremental) {
  INFO("seed " << seed << ", crash at operation " << at);
  // The seed selects the unsynced writes that survive: others for each crash.
  SimDisk disk(seed * 1'000'003 + at);
  Life life{&disk, Model(seed), {}, {}, 1};
  disk.CrashAt(at);
  life.Run(saves, incremental);
  REQUIRE(disk.crashed());
  disk.Reboot();
  CheckDisk(&disk, life);
  // Another life saves again, and leaves nothing behind.
  Life next{&disk, life.model, life.saved, {}, life.number};
  if (incremental) next.saved.clear();
  next.model.Train();
  const auto name = Save(&disk, kRoot, next.model);
  INFO(name.status());
  REQUIRE(name.ok());
  CheckNoLeftovers(&disk);
  CHECK(Differs(&disk, Join(kRoot, *name), next.model) == "");
}

TEST_CASE("a crash at every write of saving and pruning leaves the newest checkpoint whole") {
  const uint64_t operations = OperationsOf(1, 4, false);
  REQUIRE(operations > 100);
  for (uint64_t at = 1; at <= operations; ++at) CrashOnce(1, at, 4, false);
}

TEST_CASE("a crash at any write of incremental saves leaves the chain whole, for many seeds") {
  const verbena::test::Seeds seeds = verbena::test::SeedsToRun(300);
  for (uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    std::mt19937_64 random(seed);
    // More operations than that every seed has.
    const uint64_t operations = seed <= 3 ? OperationsOf(seed, 7, true) : 420;
    CrashOnce(seed, 1 + random() % operations, 7, true);
  }
}

TEST_CASE("a crash at every write of a compaction leaves the chain, or the compacted checkpoint") {
  const auto prepare = [](SimDisk* disk, Model* model) {
    REQUIRE(Save(disk, kRoot, *model).ok());
    for (int i = 0; i < 2; ++i) {
      model->Train();
      const Listed base = ListCheckpoints(disk, kRoot)->back();
      REQUIRE(Save(disk, kRoot, *model, {.writers = 2, .base = &base}).ok());
    }
  };
  const auto compact = [](SimDisk* disk) {
    const auto reader = CheckpointReader::Open(disk, *NewestComplete(disk, kRoot, nullptr));
    const auto directory = CheckpointDirectory::Open(disk, kRoot);
    if (!reader.ok() || !directory.ok()) return absl::UnavailableError("crashed");
    return Compact(disk, *reader, directory->get(), 2048, [](uint64_t) { return absl::OkStatus(); })
        .status();
  };
  uint64_t first = 0, last = 0;
  {
    SimDisk disk(1);
    Model model(1);
    prepare(&disk, &model);
    first = disk.operations();
    REQUIRE(compact(&disk).ok());
    last = disk.operations();
    const auto reader = CheckpointReader::Open(&disk, *NewestComplete(&disk, kRoot, nullptr));
    REQUIRE(reader.ok());
    CHECK(reader->links() == 1);
    CHECK(Differs(*reader, model) == "");
    // Nothing needs the chain any more.
    CHECK((*CheckpointDirectory::Open(&disk, kRoot))->Prune({.keep_last = 1})->size() == 3);
    CHECK(Differs(&disk, *NewestComplete(&disk, kRoot, nullptr), model) == "");
  }
  REQUIRE(last > first + 20);
  for (uint64_t at = first + 1; at <= last; ++at) {
    INFO("crash at operation " << at);
    SimDisk disk(at);
    Model model(1);
    prepare(&disk, &model);
    disk.CrashAt(at);
    CHECK_FALSE(compact(&disk).ok());
    disk.Reboot();
    CHECK(Differs(&disk, *NewestComplete(&disk, kRoot, nullptr), model) == "");
  }
}

TEST_CASE("a disk that is full, or fails to sync, fails the save and leaves the one before") {
  SimDisk disk(5);
  Model model(5);
  REQUIRE(Save(&disk, kRoot, model).ok());
  Model later = model;
  later.Train();
  const uint64_t used = UINT64_MAX - *disk.FreeBytes("/");
  SECTION("full") {
    bool ever = false;
    for (uint64_t room = 0;; room += 700) {
      INFO("room for " << room);
      disk.SetCapacity(used + room);
      const auto name = Save(&disk, kRoot, later);
      if (name.ok()) break;
      ever = true;
      CHECK(name.status().code() == absl::StatusCode::kResourceExhausted);
      CheckNoLeftovers(&disk);
      CHECK(Differs(&disk, *NewestComplete(&disk, kRoot, nullptr), model) == "");
    }
    CHECK(ever);
    CHECK(Differs(&disk, *NewestComplete(&disk, kRoot, nullptr), later) == "");
  }
  SECTION("a sync fails") {
    bool committed = false;
    for (uint64_t n = 1; !committed; ++n) {
      INFO("sync " << n);
      disk.FailSync(n);
      const auto name = Save(&disk, kRoot, later);
      const std::string newest = *NewestComplete(&disk, kRoot, nullptr);
      if (name.ok()) {
        committed = true;
        continue;
      }
      CHECK(absl::IsDataLoss(name.status()));
      // The last one is that of the name: it may be there all the same.
      const bool before = Differs(&disk, newest, model).empty();
      CHECK((before || Differs(&disk, newest, later).empty()));
      if (!before) break;
    }
  }
}

}  // namespace
}  // namespace verbena::checkpoint::test
