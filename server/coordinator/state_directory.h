// A daemon's state directory: created when missing, writable, and used by one process at a time.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_COORDINATOR_STATE_DIRECTORY_H_
#define VERBENA_SERVER_COORDINATOR_STATE_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::server {

class StateDirectory {
 public:
  // Locks PATH/LOCK and writes our pid into it. The kernel drops the lock with the process.
  static absl::StatusOr<StateDirectory> Open(const std::string& path);
  StateDirectory(StateDirectory&& other) noexcept;
  StateDirectory& operator=(StateDirectory&&) = delete;
  ~StateDirectory();

  const std::string& path() const { return path_; }
  std::string File(const char* name) const { return path_ + "/" + name; }
  // Makes creations, renames and removals in it durable.
  absl::Status Sync() const;

 private:
  StateDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_;
};

// PERMISSION_DENIED (or FAILED_PRECONDITION: not a directory) with the path and the fix.
absl::Status CannotUse(const std::string& path, int error);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_STATE_DIRECTORY_H_
