#include "tests/server/checkpoint/sim_disk.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::checkpoint::test {
namespace {

constexpr uint64_t kSector = 512;

std::vector<std::string> Parts(const std::string& path) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : path + "/") {
    if (c != '/') {
      part.push_back(c);
    } else if (!part.empty()) {
      parts.push_back(std::exchange(part, ""));
    }
  }
  return parts;
}

void WriteInto(std::string* content, uint64_t offset, const std::string& bytes) {
  if (content->size() < offset + bytes.size()) content->resize(offset + bytes.size());
  content->replace(offset, bytes.size(), bytes);
}

}  // namespace

class SimWritable final : public WritableFile {
 public:
  SimWritable(SimDisk* disk, std::string path, SimDisk::NodePtr node)
      : disk_(disk), path_(std::move(path)), node_(std::move(node)), boots_(disk->boots_) {}

  absl::Status Reserve(uint64_t bytes) override {
    if (bytes <= node_->now.size()) return absl::OkStatus();
    const std::string zeros(bytes - node_->now.size(), '\0');
    return WriteAt(node_->now.size(),
                   {reinterpret_cast<const std::byte*>(zeros.data()), zeros.size()});
  }
  absl::Status WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) override {
    if (boots_ != disk_->boots_) return disk_->Down();
    return disk_->WriteTo(node_, path_, offset, bytes);
  }
  absl::Status Sync() override {
    if (boots_ != disk_->boots_ || !disk_->Step()) return disk_->Down();
    if (disk_->SyncFails()) return absl::DataLossError(absl::StrCat(path_, ": EIO"));
    if (disk_->ignores_syncs_) return absl::OkStatus();
    node_->durable = node_->now;
    node_->unsynced.clear();
    return absl::OkStatus();
  }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  SimDisk* const disk_;
  const std::string path_;
  const SimDisk::NodePtr node_;
  const uint64_t boots_;
};

class SimReadable final : public ReadableFile {
 public:
  SimReadable(std::string path, SimDisk::NodePtr node, std::shared_ptr<uint64_t> open)
      : path_(std::move(path)),
        node_(std::move(node)),
        size_(node_->now.size()),
        open_(std::move(open)) {
    ++*open_;
  }
  ~SimReadable() override { --*open_; }
  uint64_t size() const override { return size_; }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> bytes) const override {
    if (offset > node_->now.size() || bytes.size() > node_->now.size() - offset) {
      return absl::DataLossError(absl::StrCat(path_, " is too short"));
    }
    if (!bytes.empty()) std::memcpy(bytes.data(), node_->now.data() + offset, bytes.size());
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const SimDisk::NodePtr node_;
  const uint64_t size_;
  const std::shared_ptr<uint64_t> open_;
};

class SimLock final : public DiskLock {
 public:
  SimLock(SimDisk* disk, SimDisk::NodePtr node)
      : disk_(disk), node_(std::move(node)), boots_(disk->boots_) {}
  ~SimLock() override {
    if (boots_ == disk_->boots_) node_->locked = false;
  }

 private:
  SimDisk* const disk_;
  const SimDisk::NodePtr node_;
  const uint64_t boots_;
};

SimDisk::SimDisk(uint64_t seed) : random_(seed), root_(std::make_shared<Node>()) {
  root_->directory = true;
}
SimDisk::~SimDisk() = default;

bool SimDisk::Step() {
  if (crashed_) return false;
  if (++operations_ == crash_at_) crashed_ = true;
  return !crashed_;
}

absl::Status SimDisk::Down() const { return absl::UnavailableError("the machine has crashed"); }

bool SimDisk::SyncFails() { return fail_sync_ > 0 && --fail_sync_ == 0; }

SimDisk::NodePtr SimDisk::Find(const std::string& path) const {
  NodePtr node = root_;
  for (const std::string& part : Parts(path)) {
    if (!node->directory || !node->entries.contains(part)) return nullptr;
    node = node->entries.at(part);
  }
  return node;
}

SimDisk::NodePtr SimDisk::Parent(const std::string& path, absl::Status* status) const {
  if (crashed_) {
    *status = Down();
    return nullptr;
  }
  NodePtr parent = Find(ParentOf(path));
  if (parent == nullptr || !parent->directory) {
    *status = absl::NotFoundError(absl::StrCat(path, ": no such directory"));
    return nullptr;
  }
  return parent;
}

void SimDisk::Apply(const Change& change, Entries* entries) {
  if (!change.removed.empty()) entries->erase(change.removed);
  if (!change.added.empty()) (*entries)[change.added] = change.node;
}

absl::Status SimDisk::WriteTo(const NodePtr& node, const std::string& path, uint64_t offset,
                              absl::Span<const std::byte> bytes) {
  if (crashed_) return Down();
  const uint64_t grows =
      std::max<uint64_t>(node->now.size(), offset + bytes.size()) - node->now.size();
  if (Used(*root_) + grows > capacity_) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot write ", path, ": no space left"));
  }
  Write write{offset, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
  const bool whole = Step();
  // A write in progress at a crash counts as unsynced: any of its sectors may be kept.
  node->unsynced.push_back(write);
  if (!whole) return Down();
  WriteInto(&node->now, offset, write.bytes);
  return absl::OkStatus();
}

uint64_t SimDisk::Used(const Node& node) const {
  uint64_t used = node.now.size();
  for (const auto& [name, entry] : node.entries) used += Used(*entry);
  return used;
}

void SimDisk::RebootNode(Node* node) {
  node->locked = false;
  if (node->directory) {
    for (const Change& change : node->changes) {
      if (random_() % 2 == 0) Apply(change, &node->kept);
    }
    node->changes.clear();
    node->entries = node->kept;
    for (const auto& [name, entry] : node->entries) RebootNode(entry.get());
    return;
  }
  std::vector<Write> sectors;
  for (const Write& write : node->unsynced) {
    for (uint64_t at = 0; at < write.bytes.size(); at += kSector) {
      sectors.push_back({write.offset + at, write.bytes.substr(at, kSector)});
    }
  }
  // All, none, or some, in any order.
  const uint64_t mode = random_() % 4;
  std::shuffle(sectors.begin(), sectors.end(), random_);
  for (const Write& sector : sectors) {
    if (mode == 0 || (mode > 1 && random_() % 2 == 0)) continue;
    WriteInto(&node->durable, sector.offset, sector.bytes);
  }
  node->unsynced.clear();
  node->now = node->durable;
}

void SimDisk::Reboot() {
  ++boots_;
  crashed_ = false;
  crash_at_ = 0;
  RebootNode(root_.get());
}

void SimDisk::FlipBit(const std::string& path, uint64_t bit) {
  Node& node = *Find(path);
  node.now[bit / 8] = static_cast<char>(node.now[bit / 8] ^ (1 << bit % 8));
}

void SimDisk::Truncate(const std::string& path, uint64_t size) { Find(path)->now.resize(size); }

std::string SimDisk::Content(const std::string& path) { return Find(path)->now; }

void SimDisk::Put(const std::string& path, const std::string& content) {
  NodePtr node = std::make_shared<Node>();
  node->now = node->durable = content;
  Node& parent = *Find(ParentOf(path));
  parent.entries[BaseName(path)] = parent.kept[BaseName(path)] = node;
}

absl::StatusOr<std::unique_ptr<WritableFile>> SimDisk::Create(const std::string& path) {
  absl::Status status;
  const NodePtr parent = Parent(path, &status);
  if (parent == nullptr) return status;
  const std::string name = BaseName(path);
  if (parent->entries.contains(name)) {
    return absl::AlreadyExistsError(absl::StrCat("cannot create ", path));
  }
  const NodePtr node = std::make_shared<Node>();
  const Change change{"", name, node};
  parent->changes.push_back(change);
  if (!Step()) return Down();
  Apply(change, &parent->entries);
  return std::make_unique<SimWritable>(this, path, node);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> SimDisk::Open(const std::string& path) {
  ++opens_;
  if (crashed_) return Down();
  const NodePtr node = Find(path);
  if (node == nullptr) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  if (node->directory) return absl::FailedPreconditionError(absl::StrCat(path, ": a directory"));
  if (*open_ >= most_open_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot open ", path, ": too many open files"));
  }
  return std::make_unique<SimReadable>(path, node, open_);
}

absl::Status SimDisk::Rename(const std::string& from, const std::string& to) {
  ++opens_;
  absl::Status status;
  const NodePtr parent = Parent(from, &status);
  if (parent == nullptr) return status;
  const auto node = parent->entries.find(BaseName(from));
  if (node == parent->entries.end())
    return absl::NotFoundError(absl::StrCat("cannot rename ", from));
  const auto target = parent->entries.find(BaseName(to));
  if (target != parent->entries.end() && target->second->directory &&
      !target->second->entries.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("cannot rename to ", to, ": not empty"));
  }
  const Change change{BaseName(from), BaseName(to), node->second};
  parent->changes.push_back(change);
  if (!Step()) return Down();
  Apply(change, &parent->entries);
  return absl::OkStatus();
}

absl::Status SimDisk::Remove(const std::string& path) {
  absl::Status status;
  const NodePtr parent = Parent(path, &status);
  if (parent == nullptr) return status;
  if (!parent->entries.contains(BaseName(path))) {
    return absl::NotFoundError(absl::StrCat("cannot remove ", path));
  }
  const Change change{BaseName(path), "", nullptr};
  parent->changes.push_back(change);
  if (!Step()) return Down();
  Apply(change, &parent->entries);
  return absl::OkStatus();
}

absl::Status SimDisk::RemoveDirectory(const std::string& path) {
  const NodePtr node = Find(path);
  if (node != nullptr && !node->entries.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("cannot remove ", path, ": not empty"));
  }
  return Remove(path);
}

absl::Status SimDisk::MakeDirectory(const std::string& path) {
  absl::Status status;
  const NodePtr parent = Parent(path, &status);
  if (parent == nullptr) return status;
  if (parent->entries.contains(BaseName(path))) return absl::OkStatus();
  const NodePtr node = std::make_shared<Node>();
  node->directory = true;
  const Change change{"", BaseName(path), node};
  parent->changes.push_back(change);
  if (!Step()) return Down();
  Apply(change, &parent->entries);
  return absl::OkStatus();
}

absl::Status SimDisk::SyncDirectory(const std::string& path) {
  if (crashed_) return Down();
  const NodePtr node = path == "." ? root_ : Find(path);
  if (node == nullptr) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  if (!Step()) return Down();
  if (SyncFails()) return absl::DataLossError(absl::StrCat(path, ": EIO"));
  node->kept = node->entries;
  node->changes.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Disk::Entry>> SimDisk::List(const std::string& path) {
  if (crashed_) return Down();
  const NodePtr node = Find(path);
  if (node == nullptr) return absl::NotFoundError(absl::StrCat("cannot list ", path));
  std::vector<Entry> entries;
  for (const auto& [name, entry] : node->entries) entries.push_back({name, entry->directory});
  return entries;
}

absl::StatusOr<uint64_t> SimDisk::FreeBytes(const std::string&) {
  return capacity_ - std::min(capacity_, Used(*root_));
}

absl::StatusOr<std::unique_ptr<DiskLock>> SimDisk::Lock(const std::string& path) {
  if (Find(path) == nullptr) {
    const auto made = Create(path);
    if (!made.ok()) return made.status();
  }
  const NodePtr node = Find(path);
  if (node->locked) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is locked by another process"));
  }
  node->locked = true;
  return std::make_unique<SimLock>(this, node);
}

}  // namespace verbena::checkpoint::test
