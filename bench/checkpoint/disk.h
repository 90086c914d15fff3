// The speed of the disk by itself: the limits of saves and restores.
//
// **Thread safety**: functions, for one thread.
#ifndef VERBENA_BENCH_CHECKPOINT_DISK_H_
#define VERBENA_BENCH_CHECKPOINT_DISK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::bench {

// Syncs a path's file system, so that the next measurement does not pay for earlier writes.
void SettleDisk(const std::string& path);

// New files in `directory`, one a thread and so many bytes together, as dd if=... bs=4M conv=fsync
// writes each: in order, made durable once at the end, as a save makes its files durable. Not of
// zeros, which some disks do not store. Bytes a second; the files are removed.
absl::StatusOr<double> WriteRate(const std::string& directory, uint64_t bytes, int threads);

// Waits until a hypervisor has taken back free memory. Memory that a guest has not used for two
// seconds may be reported to it ("free page reporting", CONFIG_PAGE_REPORTING of Linux), and
// touching it again takes ten times as long. So all measurements begin in the same state.
void SettleMemory();

// Puts the files out of the page cache (posix_fadvise(POSIX_FADV_DONTNEED)).
absl::Status DropCache(const std::vector<std::string>& files);
// Reads the files, each in order, 4 MiB at a time; a thread has one after the other. With `keep`
// into new memory for all files (huge pages, as a server's), as a restore does, instead of the same
// 4 MiB. Bytes a second.
absl::StatusOr<double> ReadRate(const std::vector<std::string>& files, int threads, bool keep);

// A folder of its own below `parent`, on a disk with room for `bytes`; removed with the object.
class WorkFolder {
 public:
  static absl::StatusOr<WorkFolder> Make(const std::string& parent, uint64_t bytes);
  WorkFolder(WorkFolder&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder();
  const std::string& path() const { return path_; }

 private:
  explicit WorkFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_CHECKPOINT_DISK_H_
