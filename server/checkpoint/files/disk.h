// The file system operations that checkpoints need: an interface, so that tests can crash it at any
// write.
//
// Errors have the file, the system's message and a hint at the fix: NOT_FOUND, ALREADY_EXISTS,
// RESOURCE_EXHAUSTED (no space left, a quota), PERMISSION_DENIED (also for a read-only file
// system), DATA_LOSS (the device failed, a file is shorter than it must be), FAILED_PRECONDITION (a
// file where a directory must be), UNAVAILABLE (anything else).
//
// **Thread safety**: a Disk may be used by any threads at once; a file by one at a time.
//
// Invariants:
//  1. Written data are durable once Sync() of the file returned OK, and only then.
//  2. The creation, renaming or removal of a directory's entry is durable once SyncDirectory() of
//     that directory returned OK, and only then.
//  3. Rename() takes place at once or not at all.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_DISK_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_DISK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace verbena::checkpoint {

class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes, without an error status
  // Reserves room for so many bytes, so that a full disk is found before the work; the file's size
  // becomes that. OK too if the file system cannot reserve room.
  virtual absl::Status Reserve(uint64_t bytes) = 0;
  virtual absl::Status WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) = 0;
  virtual absl::Status Sync() = 0;
  // Starts writing back, so that Sync() waits for less. Guarantees nothing.
  virtual void BeginSync() {}
  // Some file systems (NFS) report write errors only here.
  virtual absl::Status Close() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual uint64_t size() const = 0;  // when it was opened
  // All of `bytes`; DATA_LOSS when the file ends before.
  virtual absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> bytes) const = 0;
};

// Released with the object, or when the process ends.
class DiskLock {
 public:
  virtual ~DiskLock() = default;
};

class Disk {
 public:
  struct Entry {
    std::string name;
    bool directory = false;
  };

  virtual ~Disk() = default;
  // ALREADY_EXISTS: an existing file is never opened for writing.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  // Renames within one directory. A file `to` is replaced; a directory is not.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  virtual absl::Status RemoveDirectory(const std::string& path) = 0;  // that is empty
  // The parent is there. OK if it exists already.
  virtual absl::Status MakeDirectory(const std::string& path) = 0;
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  virtual absl::StatusOr<std::vector<Entry>> List(const std::string& path) = 0;  // sorted by name
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& path) = 0;
  // Locks a file, which is created when missing. FAILED_PRECONDITION names the process that has it.
  virtual absl::StatusOr<std::unique_ptr<DiskLock>> Lock(const std::string& path) = 0;
};

// The computer's own.
Disk* PosixDisk();

// All of a file; RESOURCE_EXHAUSTED when it has more than `most` bytes.
absl::StatusOr<std::string> ReadWhole(Disk* disk, const std::string& path, uint64_t most);
// Creates a file with this content, durable except for its name.
absl::Status WriteWhole(Disk* disk, const std::string& path, const std::string& content);
// Removes a directory with its files and subdirectories. OK if there is none.
absl::Status RemoveTree(Disk* disk, const std::string& path);

// The part behind the last slash, and the part before it ("." without one).
std::string BaseName(const std::string& path);
std::string ParentOf(const std::string& path);
std::string Join(const std::string& directory, const std::string& name);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_DISK_H_
