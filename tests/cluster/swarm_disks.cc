#include "tests/cluster/swarm_disks.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/files/manifest.h"

namespace verbena::test {

SwarmDisks::SwarmDisks(SwarmWorld* world, SwarmCheckpoints* checkpoints)
    : world_(world),
      checkpoints_(checkpoints),
      random_(world->plan.seed * 32'452'843 + 5),
      aims_(world->plan.seed * 49'979'687 + 9) {
  if (checkpoints_ == nullptr) return;
  world_->plan.cluster.file_io_ns = [this] {
    return std::max(file_io_ns_, checkpoints_->slow_files_ns());
  };
}

void SwarmDisks::Run() {
  while (!later_.empty() && later_.begin()->first <= world_->now()) {
    later_.extract(later_.begin()).mapped()();
  }
  const bool faults = world_->stage == SwarmStage::kFaults;
  if (faults && world_->has(SwarmFeature::kChainFaults)) BreakChain();
  if (faults && world_->has(SwarmFeature::kRestoreCrashes)) CrashRestore();
  if (world_->stage != SwarmStage::kFaults || world_->now() < next_at_) return;
  next_at_ = world_->now() + Between(50, 1500) * kMilli;
  const bool cold = world_->has(SwarmFeature::kColdTier);
  if (cold && (checkpoints_ == nullptr || Between(0, 2) == 0)) return ColdFault();
  if (checkpoints_ != nullptr) CheckpointFault();
}

void SwarmDisks::Stop() {
  while (!later_.empty()) later_.extract(later_.begin()).mapped()();
  file_io_ns_ = 0;
}

// A fault of the cold store of a server's process: the server's next process has a new store.
void SwarmDisks::ColdFault() {
  const int index = static_cast<int>(Pick(static_cast<size_t>(world_->cluster->servers())));
  SimServer* server = world_->cluster->server(index);
  if (server == nullptr) return;
  const bool full = Between(0, 1) == 0;
  world_->Trace(
      absl::StrCat("fault: the cold disk of ", server->host(), full ? " is full" : " is slow"));
  if (full) {
    server->SetColdFull(true);
  } else {
    server->SetColdIo(world_->plan.cluster.cold_io_ns * Between(10, 50));
  }
  Later([this, index] {
    SimServer* same = world_->cluster->server(index);
    if (same == nullptr) return;
    same->SetColdFull(false);
    same->SetColdIo(world_->plan.cluster.cold_io_ns);
  });
}

void SwarmDisks::CheckpointFault() {
  checkpoint::test::SimDisk& disk = checkpoints_->disk();
  if (disk.crashed()) return;
  const int64_t kind = Between(0, 6);
  world_->Trace(absl::StrCat("fault: the disk with checkpoints, ", kind));
  switch (kind) {
    case 0:
    case 1:
      return disk.CrashAt(disk.operations() + static_cast<uint64_t>(Between(1, 200)));
    case 2:
      return disk.FailSync(static_cast<uint64_t>(Between(1, 40)));
    case 3:
    case 4:
      return Fill();
    case 5:
      file_io_ns_ = Between(1, 40) * kMilli;
      return Later([this] { file_io_ns_ = 0; });
    default:
      return WrongBit();
  }
}

void SwarmDisks::Fill() {
  checkpoint::test::SimDisk& disk = checkpoints_->disk();
  disk.SetCapacity(UINT64_MAX);
  const uint64_t used = UINT64_MAX - *disk.FreeBytes("/");
  disk.SetCapacity(used + static_cast<uint64_t>(Between(0, 100'000)));
  Later([&disk] { disk.SetCapacity(UINT64_MAX); });
}

void SwarmDisks::WrongBit() {
  checkpoint::test::SimDisk& disk = checkpoints_->disk();
  std::vector<std::string> paths;
  for (const std::string& root : checkpoints_->saved().roots()) {
    for (const auto& known : checkpoints_->saved().Known(root)) paths.push_back(known->path);
  }
  if (paths.empty() || checkpoints_->saved().damaged_any()) return;
  std::string path = paths[Pick(paths.size())];
  const auto files = disk.List(path);
  if (!files.ok() || files->empty()) return;
  std::string file = checkpoint::Join(path, (*files)[Pick(files->size())].name);
  // A manifest is one of many files, and is read when older checkpoints are removed: some are.
  if (std::bernoulli_distribution(0.6)(aims_)) {
    path = paths[aims_() % paths.size()];
    file = checkpoint::Join(path, checkpoint::kManifestName);
    checkpoints_->PruneNext(checkpoint::ParentOf(path));
  }
  const std::string content = disk.Content(file);
  if (content.empty()) return;
  Flip(path, file, Pick(content.size() * 8));
}

void SwarmDisks::BreakChain() {
  if (checkpoints_->disk().crashed() || checkpoints_->saved().damaged_any()) return;
  if (world_->now() < next_chain_at_) return;
  next_chain_at_ = world_->now() + static_cast<int64_t>(20 + aims_() % 200) * kMilli;
  for (const std::string& root : checkpoints_->saved().roots()) {
    const auto listed = checkpoint::ListCheckpoints(&checkpoints_->disk(), root);
    if (!listed.ok() || listed->empty() || !listed->back().manifest->has_base()) continue;
    const std::string& base = listed->back().manifest->base().name();
    for (const checkpoint::Listed& one : *listed) {
      if (one.name != base || !one.manifest->has_base()) continue;
      const std::string path = checkpoint::Join(root, one.name);
      const std::string file = checkpoint::Join(path, checkpoint::kManifestName);
      checkpoints_->PruneNext(root);
      return Flip(path, file, aims_() % (checkpoints_->disk().Content(file).size() * 8));
    }
  }
}

void SwarmDisks::CrashRestore() {
  const uint64_t begun = checkpoints_->saved().restores_begun();
  if (std::exchange(restores_seen_, begun) == begun) return;
  checkpoint::test::SimDisk& disk = checkpoints_->disk();
  if (disk.crashed() || aims_() % 4 == 0) return;
  file_io_ns_ = static_cast<int64_t>(1 + aims_() % 8) * kMilli;
  later_.emplace(world_->now() + static_cast<int64_t>(aims_() % 40) * kMilli, [this, &disk] {
    file_io_ns_ = 0;
    disk.CrashAt(disk.operations() + 1);
    (void)disk.SyncDirectory("/");
  });
}

void SwarmDisks::Flip(const std::string& path, const std::string& file, uint64_t bit) {
  checkpoints_->disk().FlipBit(file, bit);
  world_->Trace(absl::StrCat("bit ", bit, " of ", file, " is wrong"));
  checkpoints_->saved().Damage(path, true);
  checkpoints_->saved().Look(checkpoint::ParentOf(path), true);
  Later([this, path, file, bit, damage = ++damage_] {
    // A crash has put the right bit back, perhaps before another one went wrong; a removed file is
    // not there any more.
    checkpoint::test::SimDisk& device = checkpoints_->disk();
    if (damage != damage_ || !checkpoints_->saved().damaged(path)) return;
    checkpoints_->saved().Damage(path, false);
    if (!device.crashed() && device.Open(file).ok()) device.FlipBit(file, bit);
    checkpoints_->saved().Look(checkpoint::ParentOf(path), true);
  });
}

}  // namespace verbena::test
