#include "server/checkpoint/files/checkpoint_directory.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/spec_text.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/failpoints.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/files/manifest_check.h"

namespace verbena::checkpoint {
namespace {

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kTemporary = ".tmp";
constexpr std::string_view kTrash = ".trash";
constexpr size_t kDigits = 8;
constexpr size_t kAttemptDigits = 16;

bool TakeSuffix(std::string* name, std::string_view suffix) {
  if (name->size() < suffix.size()) return false;
  if (std::string_view(*name).substr(name->size() - suffix.size()) != suffix) return false;
  name->resize(name->size() - suffix.size());
  return true;
}

enum class Kind : uint8_t { kCommitted, kAttempt, kRemoved };

// The number of a committed checkpoint, or of an attempt's or removal's remains. Attempts of older
// programs had no id.
std::optional<uint64_t> AnyNumber(std::string name, Kind* kind) {
  *kind = TakeSuffix(&name, kTemporary) ? Kind::kAttempt
          : TakeSuffix(&name, kTrash)   ? Kind::kRemoved
                                        : Kind::kCommitted;
  if (*kind != Kind::kCommitted && name.size() > kAttemptDigits) {
    const size_t dot = name.size() - kAttemptDigits - 1;
    const bool has_id =
        name[dot] == '.' && name.find_first_not_of("0123456789abcdef", dot + 1) == name.npos;
    if (has_id) name.resize(dot);
  }
  return CheckpointNumber(name);
}

uint64_t SystemSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// The number that keep_every divides.
uint64_t Place(const Listed& listed) {
  return listed.manifest->step() > 0 ? listed.manifest->step() : listed.number;
}

// Whether one of the two continues the other, according to their tables: a table that is made
// again, or restored, has another id.
bool SameRun(const v1::CheckpointManifest& a, const v1::CheckpointManifest& b) {
  if (a.cluster_id() != b.cluster_id()) return false;
  std::set<uint32_t> ids;
  for (const v1::CheckpointTable& table : a.tables()) ids.insert(table.id());
  return std::any_of(b.tables().begin(), b.tables().end(),
                     [&](const v1::CheckpointTable& table) { return ids.contains(table.id()); });
}

// The checkpoints that Retention::keep_former_runs keeps. At most two, whatever the number of runs.
void KeepFormerRuns(const std::vector<Listed>& all, std::set<std::string>* kept) {
  const Listed* newest = nullptr;
  const Listed* former = nullptr;
  const Listed* farthest = nullptr;
  for (auto i = all.rbegin(); i != all.rend(); ++i) {
    if (!i->manifest.ok()) continue;
    if (newest == nullptr) newest = &*i;
    if (farthest == nullptr || i->manifest->step() > farthest->manifest->step()) farthest = &*i;
    if (former == nullptr && !SameRun(*i->manifest, *newest->manifest)) former = &*i;
  }
  if (farthest != nullptr) kept->insert(farthest->name);
  if (former != nullptr) kept->insert(former->name);
}

// Newest first, so that a checkpoint precedes its base.
std::vector<std::string> NotKept(const std::vector<Listed>& all, const Retention& retention) {
  std::set<std::string> kept;
  std::set<uint64_t> intervals;
  for (const Listed& listed : all) {
    // An unreadable manifest cannot be judged: an operator has to.
    if (!listed.manifest.ok()) continue;
    if (retention.keep_every > 0 && intervals.insert(Place(listed) / retention.keep_every).second) {
      kept.insert(listed.name);
    }
  }
  uint32_t last = 0;
  for (auto i = all.rbegin(); i != all.rend() && last < retention.keep_last; ++i) {
    if (!i->manifest.ok()) continue;
    kept.insert(i->name);
    ++last;
  }
  std::set<std::string> former = kept;
  if (retention.keep_former_runs) KeepFormerRuns(all, &former);
  if (former.size() > kept.size() && !VERBENA_FAILPOINT(checkpoint, forget_former_runs))
    kept = std::move(former);
  // From the newest on: a base is older than the checkpoints based on it. The base of a checkpoint
  // with an unreadable manifest is not known: all older ones stay.
  bool unread = false;
  for (auto i = all.rbegin(); i != all.rend(); ++i) {
    unread |= !i->manifest.ok() && !VERBENA_FAILPOINT(checkpoint, prune_unread);
    if (unread) kept.insert(i->name);
    if (kept.contains(i->name) && i->manifest.ok() && i->manifest->has_base() &&
        !VERBENA_FAILPOINT(checkpoint, prune_bases)) {
      kept.insert(i->manifest->base().name());
    }
  }
  std::vector<std::string> others;
  for (auto i = all.rbegin(); i != all.rend(); ++i) {
    if (i->manifest.ok() && !kept.contains(i->name)) others.push_back(i->name);
  }
  return others;
}

}  // namespace

std::vector<std::string> JobsOf(const std::vector<Listed>& all) {
  std::set<std::string> jobs;
  for (const Listed& listed : all) {
    if (listed.manifest.ok()) jobs.insert(listed.manifest->job());
  }
  return {jobs.begin(), jobs.end()};
}

std::optional<uint64_t> CheckpointNumber(const std::string& name) {
  if (name.rfind(std::string(kPrefix), 0) != 0) return std::nullopt;
  const std::string digits = name.substr(kPrefix.size());
  uint64_t number = 0;
  if (digits.size() < kDigits || digits.find_first_not_of("0123456789") != std::string::npos ||
      !absl::SimpleAtoi(digits, &number) || CheckpointName(number) != name) {
    return std::nullopt;
  }
  return number;
}

std::string CheckpointName(uint64_t number) {
  std::string digits = absl::StrCat(number);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return absl::StrCat(std::string(kPrefix), digits);
}

Listed ReadListed(Disk* disk, const std::string& path) {
  Listed listed;
  listed.name = BaseName(path);
  listed.number = CheckpointNumber(listed.name).value_or(0);
  const std::string file = Join(path, kManifestName);
  const absl::StatusOr<std::string> text = ReadWhole(disk, file, kMaxManifestBytes);
  if (!text.ok()) {
    listed.manifest = text.status();
    return listed;
  }
  listed.checksum = ManifestChecksum(*text);
  listed.manifest = ParseManifest(file, *text);
  return listed;
}

absl::StatusOr<std::vector<Listed>> ListCheckpoints(Disk* disk, const std::string& root) {
  const absl::StatusOr<std::vector<Disk::Entry>> entries = disk->List(root);
  if (!entries.ok()) return entries.status();
  std::vector<Listed> all;
  for (const Disk::Entry& entry : *entries) {
    if (!entry.directory || !CheckpointNumber(entry.name)) continue;
    all.push_back(ReadListed(disk, Join(root, entry.name)));
    // It was removed meanwhile.
    if (absl::IsNotFound(all.back().manifest.status()) &&
        absl::IsNotFound(disk->List(Join(root, entry.name)).status())) {
      all.pop_back();
    }
  }
  std::sort(all.begin(), all.end(),
            [](const Listed& a, const Listed& b) { return a.number < b.number; });
  return all;
}

absl::StatusOr<std::string> NewestComplete(Disk* disk, const std::string& root,
                                           std::vector<std::string>* passed) {
  absl::StatusOr<std::vector<Listed>> all = ListCheckpoints(disk, root);
  if (!all.ok()) return all.status();
  for (auto i = all->rbegin(); i != all->rend(); ++i) {
    const std::string path = Join(root, i->name);
    const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(disk, path);
    const absl::Status status = reader.ok() ? reader->CheckSizes() : reader.status();
    if (status.ok()) return path;
    if (passed != nullptr) passed->emplace_back(status.message());
  }
  return absl::NotFoundError(absl::StrCat(root, " has no complete checkpoint (of ", all->size(),
                                          "); 'verbena checkpoint list' lists its checkpoints"));
}

CheckpointDirectory::CheckpointDirectory(Disk* disk, std::string root,
                                         std::unique_ptr<DiskLock> lock, uint64_t seed)
    : disk_(disk),
      root_(std::move(root)),
      lock_(std::move(lock)),
      random_(seed == 0 ? SystemSeed() : seed) {}

CheckpointDirectory::~CheckpointDirectory() = default;

absl::StatusOr<std::unique_ptr<CheckpointDirectory>> CheckpointDirectory::Open(
    Disk* disk, const std::string& root, uint64_t seed) {
  if (root.empty()) return absl::InvalidArgumentError("the checkpoint directory's name is empty");
  absl::Status status = disk->MakeDirectory(root);
  // Or nothing in it would be durable.
  if (status.ok()) status = disk->SyncDirectory(ParentOf(root));
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<DiskLock>> lock = disk->Lock(Join(root, "LOCK"));
  if (!lock.ok()) return lock.status();
  return std::unique_ptr<CheckpointDirectory>(
      new CheckpointDirectory(disk, root, *std::move(lock), seed));
}

absl::Status CheckpointDirectory::RemoveLeftovers() {
  const absl::StatusOr<std::vector<Disk::Entry>> entries = disk_->List(root_);
  if (!entries.ok()) return entries.status();
  for (const Disk::Entry& entry : *entries) {
    Kind kind = Kind::kCommitted;
    const std::optional<uint64_t> number = AnyNumber(entry.name, &kind);
    if (!number || !entry.directory) continue;
    number_ = std::max(number_, *number);
    if (kind == Kind::kCommitted) continue;
    absl::Status status = kind == Kind::kAttempt ? RemoveAttempt(entry.name)
                                                 : RemoveTree(disk_, Join(root_, entry.name));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// A late writer of it may make files at any time: under another name it finds no directory.
absl::Status CheckpointDirectory::RemoveAttempt(const std::string& name) {
  std::string trash = name;
  (void)TakeSuffix(&trash, kTemporary);
  trash = Join(root_, absl::StrCat(trash, std::string(kTrash)));
  // Left by an older program, whose attempts had no ids.
  absl::Status status = RemoveTree(disk_, trash);
  if (status.ok()) status = disk_->Rename(Join(root_, name), trash);
  if (status.ok()) status = RemoveTree(disk_, trash);
  return status;
}

absl::StatusOr<std::string> CheckpointDirectory::Begin() {
  path_.clear();
  if (absl::Status status = RemoveLeftovers(); !status.ok()) return status;
  ++number_;
  std::string id = absl::StrCat(".", absl::Hex(random_(), absl::kZeroPad16));
  if (VERBENA_FAILPOINT(checkpoint, reuse_attempts)) id.clear();
  const std::string path =
      Join(root_, absl::StrCat(CheckpointName(number_), id, std::string(kTemporary)));
  if (absl::Status status = disk_->MakeDirectory(path); !status.ok()) return status;
  path_ = path;
  return path;
}

absl::Status CheckpointDirectory::CheckFiles(const v1::CheckpointManifest& manifest) const {
  for (const v1::CheckpointFile& entry : manifest.files()) {
    const absl::StatusOr<std::unique_ptr<ReadableFile>> file =
        disk_->Open(Join(path_, entry.name()));
    if (!file.ok()) return absl::DataLossError(file.status().message());
    if ((*file)->size() != entry.bytes()) {
      return absl::DataLossError(absl::StrCat(Join(path_, entry.name()), " has ", (*file)->size(),
                                              " bytes, and its writer reported ", entry.bytes()));
    }
  }
  if (!manifest.has_base()) return absl::OkStatus();
  const Listed base = ReadListed(disk_, Join(root_, manifest.base().name()));
  if (!base.manifest.ok() || base.checksum != manifest.base().checksum()) {
    return absl::FailedPreconditionError(absl::StrCat("the base ", manifest.base().name(),
                                                      " of an incremental checkpoint is not in ",
                                                      root_, ", or another: save a full one"));
  }
  return CheckBase(manifest, *base.manifest);
}

absl::StatusOr<std::string> CheckpointDirectory::Commit(const v1::CheckpointManifest& manifest) {
  if (path_.empty()) return absl::FailedPreconditionError("no checkpoint was begun");
  const absl::StatusOr<std::string> text = ManifestText(manifest);
  if (!text.ok()) return text.status();
  absl::Status status = CheckFiles(manifest);
  const std::string name = CheckpointName(number_);
  if (status.ok()) status = WriteWhole(disk_, Join(path_, kManifestName), *text);
  if (status.ok()) status = disk_->SyncDirectory(path_);
  if (status.ok()) status = disk_->Rename(path_, Join(root_, name));
  if (!status.ok()) return status;
  path_.clear();
  status = disk_->SyncDirectory(root_);
  if (!status.ok()) return status;
  return name;
}

absl::Status CheckpointDirectory::Abandon() {
  path_.clear();
  return RemoveLeftovers();
}

absl::Status CheckpointDirectory::RemoveCommitted(const std::string& name) {
  const std::string trash = Join(root_, absl::StrCat(name, std::string(kTrash)));
  absl::Status status = disk_->Rename(Join(root_, name), trash);
  if (status.ok()) status = disk_->SyncDirectory(root_);
  if (status.ok()) status = RemoveTree(disk_, trash);
  return status;
}

absl::StatusOr<std::vector<std::string>> CheckpointDirectory::WouldPrune(
    const Retention& retention) const {
  if (retention.keep_last == 0) {
    return absl::InvalidArgumentError("keep_last is 0; allowed: 1 or more");
  }
  const absl::StatusOr<std::vector<Listed>> all = ListCheckpoints(disk_, root_);
  if (!all.ok()) return all.status();
  const std::vector<std::string> jobs = JobsOf(*all);
  if (retention.job.empty() && jobs.size() > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        root_, " has checkpoints of ", jobs.size(), " jobs (",
        absl::StrJoin(jobs, ", ",
                      [](std::string* out, const std::string& job) { *out += Quoted(job); }),
        "); name the job whose checkpoints are to be removed (verbena checkpoint prune --job)"));
  }
  std::vector<Listed> own;
  for (const Listed& listed : *all) {
    const bool foreign =
        listed.manifest.ok() && !retention.job.empty() && listed.manifest->job() != retention.job;
    if (!foreign || VERBENA_FAILPOINT(checkpoint, share_directories)) own.push_back(listed);
  }
  return NotKept(own, retention);
}

absl::StatusOr<std::vector<std::string>> CheckpointDirectory::Prune(const Retention& retention) {
  absl::StatusOr<std::vector<std::string>> names = WouldPrune(retention);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (absl::Status status = RemoveCommitted(name); !status.ok()) return status;
  }
  return names;
}

}  // namespace verbena::checkpoint
