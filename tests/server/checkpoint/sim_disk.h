// A file system in memory that keeps no more than POSIX promises: unsynced data may be lost, torn
// or reordered by a crash, which comes at any operation; a full disk; bits that flip.
//
// A crash at operation N: that one is done in part (of a write any of its sectors), all later ones
// are UNAVAILABLE until Reboot(). Unsynced data is then kept or lost sector by sector, by the seed;
// unsynced entries of directories change by change.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SERVER_CHECKPOINT_SIM_DISK_H_
#define VERBENA_TESTS_SERVER_CHECKPOINT_SIM_DISK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/checkpoint/files/disk.h"

namespace verbena::checkpoint::test {

class SimDisk final : public Disk {
 public:
  explicit SimDisk(uint64_t seed);
  ~SimDisk() override;

  // ---- faults ----
  uint64_t operations() const { return operations_; }  // that change something
  uint64_t opens() const { return opens_; }            // of files, to be read
  void CrashAt(uint64_t operation) { crash_at_ = operation; }
  bool crashed() const { return crashed_; }
  void Reboot();
  void SetCapacity(uint64_t bytes) { capacity_ = bytes; }
  void FlipBit(const std::string& path, uint64_t bit);
  void Truncate(const std::string& path, uint64_t size);
  // The n-th Sync() of a file or directory from now on returns EIO, once.
  void FailSync(uint64_t n) { fail_sync_ = n; }
  // Descriptors: Open() fails while so many files are open to be read.
  void SetMostOpen(uint64_t files) { most_open_ = files; }
  // From now on Sync() of a file returns OK and does nothing: a crash shows code that relies on it.
  void IgnoreSyncs() { ignores_syncs_ = true; }

  std::string Content(const std::string& path);
  void Put(const std::string& path, const std::string& content);  // durable

  // ---- Disk ----
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<Entry>> List(const std::string& path) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<DiskLock>> Lock(const std::string& path) override;

 private:
  friend class SimWritable;
  friend class SimReadable;
  friend class SimLock;
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  using Entries = std::map<std::string, NodePtr>;
  // A change of a directory's entries; a rename is one change.
  struct Change {
    std::string removed;  // empty: none
    std::string added;    // empty: none
    NodePtr node;
  };
  struct Write {
    uint64_t offset;
    std::string bytes;
  };
  struct Node {
    bool directory = false;
    bool locked = false;
    std::string now, durable;     // of a file
    std::vector<Write> unsynced;  // of a file
    Entries entries, kept;        // of a directory, now and durable
    std::vector<Change> changes;  // of a directory, not durable
  };

  // False: the crash is now, or was.
  bool Step();
  absl::Status Down() const;
  NodePtr Find(const std::string& path) const;
  NodePtr Parent(const std::string& path, absl::Status* status) const;
  void Apply(const Change& change, Entries* entries);
  void RebootNode(Node* node);
  uint64_t Used(const Node& node) const;
  absl::Status WriteTo(const NodePtr& node, const std::string& path, uint64_t offset,
                       absl::Span<const std::byte> bytes);
  bool SyncFails();

  std::mt19937_64 random_;
  NodePtr root_;
  uint64_t operations_ = 0;
  uint64_t opens_ = 0;
  std::shared_ptr<uint64_t> open_ = std::make_shared<uint64_t>(0);  // files to be read
  uint64_t most_open_ = UINT64_MAX;
  uint64_t crash_at_ = 0;
  uint64_t boots_ = 0;
  uint64_t capacity_ = UINT64_MAX;
  uint64_t fail_sync_ = 0;
  bool crashed_ = false;
  bool ignores_syncs_ = false;
};

}  // namespace verbena::checkpoint::test

#endif  // VERBENA_TESTS_SERVER_CHECKPOINT_SIM_DISK_H_
