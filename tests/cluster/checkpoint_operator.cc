#include "tests/cluster/checkpoint_operator.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/compact.h"
#include "server/checkpoint/files/manifest.h"

namespace verbena::test {

using checkpoint::CheckpointDirectory;
using checkpoint::CheckpointNumber;
using checkpoint::CheckpointReader;
using checkpoint::Join;

// ---- tables and checkpoints ---------------------------------------------------------------------

// Notes the initial values of new tables, and checks that a restore drops no served table without
// a replacement.
void CheckpointOperator::WatchTables() {
  const v1::ClusterView& view = state_->cluster->view();
  if (view.revision() == revision_) return;
  revision_ = view.revision();
  std::map<uint32_t, TableLife>& lives = state_->model.lives();
  std::set<uint32_t> present;
  for (const v1::Table& table : view.tables()) {
    present.insert(table.id());
    const auto [it, is_new] = lives.try_emplace(table.id());
    TableLife& life = it->second;
    life.served = !table.restoring();
    if (!is_new) continue;
    life.id = table.id();
    while (state_->model.spec(life.table).name() != table.spec().name()) ++life.table;
    if (!table.restoring()) continue;
    life.restore = restores_;
    life.steps = from_->steps[life.table];
    life.base = from_->values[life.table];
  }
  std::set<std::string> served;
  for (const v1::Table& table : view.tables()) {
    if (!table.restoring()) served.insert(table.spec().name());
  }
  for (auto& [id, life] : lives) {
    if (life.gone || present.contains(id)) continue;
    life.gone = true;
    const std::string& name = state_->model.spec(life.table).name();
    if (life.served && !served.contains(name)) {
      state_->Violation(absl::StrCat("table ", id, " '", name,
                                     "' was served and is gone, and none has taken its place"));
    }
    if (!life.served || life.restore == 0 || life.restore != restores_) continue;
    state_->Violation(absl::StrCat("restore ", restores_, " dropped table ", id,
                                   ", which it had made and workers used"));
  }
}

bool CheckpointOperator::NeedsRestore() {
  if (reported_.empty()) return false;
  const v1::ClusterView& view = state_->cluster->view();
  size_t well = 0;
  for (const v1::Table& table : view.tables()) {
    if (table.lost_partitions_size() == 0 && !table.restoring() &&
        !state_->said_lost.contains(table.id())) {
      ++well;
    }
  }
  return well < kCheckpointTables;
}

void CheckpointOperator::LookAtCheckpoint(const std::string& name, const std::string& checksum) {
  const auto reader = CheckpointReader::Open(&disk_, Join(kRoot, name));
  auto content = reader.ok() ? state_->model.CheckCheckpoint(*reader, least_) : reader.status();
  if (!content.ok()) {
    state_->Violation(absl::StrCat(name, ": ", content.status().ToString()));
    return;
  }
  if (compacts_ != nullptr && content->values != compacts_->values) {
    return state_->Violation(name + " does not have what the checkpoint has that it was made of");
  }
  ++state_->result.checked;
  if (reader->links() > 1) ++state_->result.increments;
  if (content->uneven) ++state_->result.uneven;
  known_[{name, checksum}] = *std::move(content);
}

void CheckpointOperator::LookAtDisk() {
  if (disk_.crashed()) return;
  const auto listed = checkpoint::ListCheckpoints(&disk_, kRoot);
  if (absl::IsNotFound(listed.status()) && reported_.empty()) return;
  if (!listed.ok()) return state_->Violation(listed.status().ToString());
  for (const checkpoint::Listed& one : *listed) {
    if (!one.manifest.ok()) return state_->Violation(one.manifest.status().ToString());
    // Any may be damaged by a crash: of those that are known their bytes are looked at again.
    const auto reader = CheckpointReader::Open(&disk_, Join(kRoot, one.name));
    if (!known_.contains({one.name, one.checksum})) {
      LookAtCheckpoint(one.name, one.checksum);
    } else if (const absl::Status whole =
                   reader.ok() ? reader->Verify([](uint64_t) { return absl::OkStatus(); })
                               : reader.status();
               !whole.ok()) {
      state_->Violation(absl::StrCat(one.name, ": ", whole.ToString()));
    }
  }
  if (reported_.empty()) return;
  const std::string newest = listed->empty() ? "none" : listed->back().name;
  if (listed->empty() || listed->back().number < *CheckpointNumber(reported_)) {
    state_->Violation(absl::StrCat(reported_, " was saved, and the newest is ", newest));
  }
  const auto complete = checkpoint::NewestComplete(&disk_, kRoot, nullptr);
  if (!complete.ok() || checkpoint::BaseName(*complete) != newest) {
    state_->Violation(absl::StrCat(newest, " is not complete"));
  }
}

const CheckpointContent* CheckpointOperator::Newest(std::string* path) {
  LookAtDisk();
  const auto newest = checkpoint::NewestComplete(&disk_, kRoot, nullptr);
  if (!newest.ok()) return nullptr;
  *path = *newest;
  const checkpoint::Listed listed = checkpoint::ReadListed(&disk_, *newest);
  const auto known = known_.find({listed.name, listed.checksum});
  return known == known_.end() ? nullptr : &known->second;
}

// After a save that succeeded.
void CheckpointOperator::CheckNoLeftovers(const v1::CheckpointManifest& manifest) {
  const auto entries = disk_.List(kRoot);
  if (!entries.ok()) return;  // it has crashed since
  for (const checkpoint::Disk::Entry& entry : *entries) {
    if (entry.name == "LOCK" || CheckpointNumber(entry.name)) continue;
    state_->Violation(absl::StrCat(reported_, " is saved, and left is ", entry.name));
  }
  std::set<std::string> files = {checkpoint::kManifestName};
  for (const v1::CheckpointFile& file : manifest.files()) files.insert(file.name());
  const auto inside = disk_.List(Join(kRoot, reported_));
  if (!inside.ok()) return;
  for (const checkpoint::Disk::Entry& entry : *inside) {
    if (files.contains(entry.name)) continue;
    state_->Violation(absl::StrCat(reported_, " has a file of no manifest: ", entry.name));
  }
}

// ---- saves --------------------------------------------------------------------------------------

// Plans a disk fault, most often for a time when the next save is in progress.
void CheckpointOperator::PlantDiskFault() {
  disk_.SetCapacity(UINT64_MAX);
  switch (state_->Between(0, 9)) {
    case 0:
    case 1:
    case 2:
      return disk_.CrashAt(disk_.operations() + static_cast<uint64_t>(state_->Between(1, 300)));
    case 3:
      return disk_.FailSync(static_cast<uint64_t>(state_->Between(1, 40)));
    case 4: {
      const uint64_t used = UINT64_MAX - *disk_.FreeBytes(kRoot);
      return disk_.SetCapacity(used + static_cast<uint64_t>(state_->Between(0, 40'000)));
    }
    default:
      return;
  }
}

void CheckpointOperator::StartCheckpoint() {
  after_faults_ = state_->faults_stopped;
  compacts_ = nullptr;
  least_.clear();
  for (const auto& [id, life] : state_->model.lives()) least_[id] = life.acknowledged;
  server::CheckpointTaskOptions options;
  options.coordinator = kCoordinatorAddress;
  options.root = kRoot;
  options.written_by = "a simulator";
  if (state_->options.increments) {
    options.full_every = static_cast<uint32_t>(state_->Chance(0.1) ? 1 : state_->Between(2, 6));
  }
  options.seed = state_->options.seed * 7919 + ++actors_;
  if (state_->Chance(0.5))
    options.bytes_per_second = static_cast<uint64_t>(state_->Between(10'000, 200'000));
  if (state_->Chance(0.5)) options.memory_bytes = static_cast<uint64_t>(state_->Between(1, 2000));
  if (state_->Chance(0.5)) options.file_bytes = static_cast<uint64_t>(state_->Between(500, 5000));
  checkpoint_task_dies_at_ = INT64_MAX;
  if (state_->options.faults && !state_->faults_stopped) {
    if (state_->Chance(0.25)) {
      checkpoint_task_dies_at_ =
          state_->now() + state_->Between(0, state_->Chance(0.5) ? 1000 : 50) * kMilli;
    }
    PlantDiskFault();
  }
  checkpoint_task_channel_ = state_->cluster->control().NewChannel("operator");
  checkpoint_task_ = std::make_unique<server::CheckpointTask>(
      options, &state_->cluster->network().clock(), checkpoint_task_channel_.get(), &disk_);
}

void CheckpointOperator::RunCheckpointTask() {
  if (state_->now() >= checkpoint_task_dies_at_) {
    ++state_->result.checkpoint_tasks_died;
    checkpoint_task_.reset();
    checkpoint_task_channel_.reset();
  } else {
    checkpoint_task_channel_->RunOnce();
    checkpoint_task_->RunOnce();
    if (!checkpoint_task_->done()) return;
    CheckpointEnded();
  }
  LookAtDisk();
  if (state_->options.increments && state_->Chance(0.3)) Compact();
  if (!disk_.crashed() && !state_->Chance(0.2)) disk_.CrashAt(0);
  // A crash may also come at once: a checkpoint that was reported complete survives it.
  const bool faults = state_->options.faults && !state_->faults_stopped;
  if (faults && state_->Chance(0.1)) disk_.CrashAt(disk_.operations() + 1);
  next_checkpoint_ = state_->now() + state_->Between(0, 400) * kMilli;
}

void CheckpointOperator::CheckpointEnded() {
  if (checkpoint_task_->status().ok()) {
    ++state_->result.saved;
    reported_ = checkpoint_task_->name();
    proved_ |= after_faults_;
    CheckNoLeftovers(checkpoint_task_->manifest());
    // One that may still be read is not taken away.
    if (restorer_ == nullptr && state_->Chance(0.5)) Prune();
  } else {
    ++state_->result.checkpoints_failed;
    if (!state_->options.faults ||
        (after_faults_ && !absl::IsAborted(checkpoint_task_->status()))) {
      state_->Violation("a save failed without faults: " + checkpoint_task_->status().ToString());
    }
  }
  checkpoint_task_.reset();
  checkpoint_task_channel_.reset();
}

// ---- upkeep -------------------------------------------------------------------------------------

// Plans a disk fault, most often for a time when checkpoints are compacted or removed.
void CheckpointOperator::PlantUpkeepFault() {
  if (!state_->options.faults || state_->faults_stopped) return;
  switch (state_->Between(0, 5)) {
    case 0:
    case 1:
      return disk_.CrashAt(disk_.operations() + static_cast<uint64_t>(state_->Between(1, 60)));
    case 2:
      return disk_.FailSync(static_cast<uint64_t>(state_->Between(1, 12)));
    case 3: {
      const uint64_t used = UINT64_MAX - *disk_.FreeBytes(kRoot);
      return disk_.SetCapacity(used + static_cast<uint64_t>(state_->Between(0, 15'000)));
    }
    default:
      return;
  }
}

// A chain becomes a full checkpoint, on which the next save may be based.
void CheckpointOperator::Compact() {
  if (disk_.crashed()) return;
  disk_.SetCapacity(UINT64_MAX);
  std::string path;
  const CheckpointContent* content = Newest(&path);
  if (content == nullptr) return;
  const auto reader = CheckpointReader::Open(&disk_, path);
  if (!reader.ok()) return state_->Violation(reader.status().ToString());
  // The compacted content is older than the last save that began.
  least_.clear();
  compacts_ = content;
  PlantUpkeepFault();
  auto directory = CheckpointDirectory::Open(&disk_, kRoot);
  absl::StatusOr<std::string> made = absl::UnknownError("no directory");
  if (!directory.ok()) {
    made = directory.status();
  } else {
    made = checkpoint::Compact(&disk_, *reader, directory->get(),
                               static_cast<uint64_t>(state_->Between(500, 5000)),
                               [](uint64_t) { return absl::OkStatus(); });
    directory->reset();
  }
  if (made.ok()) {
    ++state_->result.compacted;
    reported_ = *made;
    const checkpoint::Listed listed = checkpoint::ReadListed(&disk_, Join(kRoot, *made));
    if (listed.manifest.ok()) CheckNoLeftovers(*listed.manifest);
  } else {
    ++state_->result.compactions_failed;
    if (!state_->options.faults || state_->faults_stopped) {
      state_->Violation("a compaction failed without faults: " + made.status().ToString());
    }
  }
  LookAtDisk();
  if (made.ok() && restorer_ == nullptr && state_->Chance(0.5)) {
    Prune();
    LookAtDisk();
  }
  disk_.FailSync(0);
}

void CheckpointOperator::Prune() {
  const auto directory = CheckpointDirectory::Open(&disk_, kRoot);
  if (!directory.ok()) return;
  checkpoint::Retention retention;
  retention.keep_last = static_cast<uint32_t>(state_->Between(1, 2));
  if (state_->options.increments) {
    if (state_->Chance(0.3)) retention.keep_every = static_cast<uint64_t>(state_->Between(1, 20));
    PlantUpkeepFault();
  }
  const auto removed = (*directory)->Prune(retention);
  if (removed.ok()) state_->result.pruned += static_cast<int>(removed->size());
}

// ---- restores -----------------------------------------------------------------------------------

void CheckpointOperator::StartRestore() {
  next_restore_ = state_->now() + 50 * kMilli;
  server::RestoreTaskOptions options;
  const CheckpointContent* from = Newest(&options.path);
  if (from == nullptr) return;
  options.coordinator = kCoordinatorAddress;
  options.replace = true;
  options.seed = state_->options.seed * 104'729 + ++actors_;
  restorer_channel_ = state_->cluster->control().NewChannel("operator");
  auto made = server::RestoreTask::Make(options, &state_->cluster->network().clock(),
                                        restorer_channel_.get(), &disk_);
  if (!made.ok()) return;
  restorer_ = *std::move(made);
  from_ = from;
  ++restores_;
  restore_wanted_ = false;
  restorer_dies_at_ = INT64_MAX;
  if (!state_->faults_stopped && state_->Chance(0.4)) {
    restorer_dies_at_ = state_->now() + state_->Between(0, state_->Chance(0.5) ? 500 : 20) * kMilli;
  }
}

void CheckpointOperator::RunRestoreTask() {
  const bool dies = state_->now() >= restorer_dies_at_;
  if (dies) {
    ++state_->result.restorers_died;
  } else {
    restorer_channel_->RunOnce();
    restorer_->RunOnce();
    if (!restorer_->done()) return;
    ++(restorer_->status().ok() ? state_->result.restored : state_->result.restores_failed);
  }
  restorer_.reset();
  restorer_channel_.reset();
  // By then all requests of the restore have arrived.
  next_restore_ = state_->now() + state_->Between(10, 200) * kMilli;
}

// ---- the run ------------------------------------------------------------------------------------

void CheckpointOperator::Run() {
  const int64_t now = state_->now();
  WatchTables();
  if (checkpoint_task_ != nullptr) RunCheckpointTask();
  if (restorer_ != nullptr) RunRestoreTask();
  if (disk_.crashed()) {
    if (reboot_at_ == 0) {
      ++state_->result.disk_crashed;
      reboot_at_ = now + (state_->faults_stopped ? 0 : state_->Between(1, 300) * kMilli);
    }
    if (now < reboot_at_) return;
    reboot_at_ = 0;
    disk_.Reboot();
    LookAtDisk();
  }
  if (restorer_ == nullptr && now >= next_restore_ && (restore_wanted_ || NeedsRestore())) {
    StartRestore();
  }
  const bool all = state_->cluster->view().tables_size() == static_cast<int>(kCheckpointTables);
  if (checkpoint_task_ == nullptr && restorer_ == nullptr && all && now >= next_checkpoint_ &&
      !NeedsRestore()) {
    StartCheckpoint();
  }
}

void CheckpointOperator::StopFaults() {
  restore_wanted_ = false;
  checkpoint_task_dies_at_ = restorer_dies_at_ = INT64_MAX;
  disk_.SetCapacity(UINT64_MAX);
  disk_.FailSync(0);
  disk_.CrashAt(0);
  if (disk_.crashed()) reboot_at_ = state_->now();
}

bool CheckpointOperator::proved() { return proved_ && restorer_ == nullptr && !NeedsRestore(); }

std::string CheckpointOperator::Describe() const {
  return absl::StrCat(
      checkpoint_task_ == nullptr ? "no save"
                                  : absl::StrCat("a save, ", checkpoint_task_->progress().doing),
      restorer_ == nullptr ? "" : absl::StrCat(", a restore, ", restorer_->progress().doing),
      ", newest ", reported_);
}

}  // namespace verbena::test
