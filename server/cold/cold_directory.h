// The directory for cold rows of a daemon: it has a database for each shard, and nothing of an
// earlier process.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_COLD_COLD_DIRECTORY_H_
#define VERBENA_SERVER_COLD_COLD_DIRECTORY_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::server {

class ColdDirectory {
 public:
  // Created when missing; locked, so that one process uses it at a time. Remains of an earlier
  // process are removed. FAILED_PRECONDITION, PERMISSION_DENIED and RESOURCE_EXHAUSTED name the
  // path and the fix.
  static absl::StatusOr<ColdDirectory> Open(const std::string& path);
  ColdDirectory(ColdDirectory&& other) noexcept
      : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}
  ColdDirectory& operator=(ColdDirectory&&) = delete;
  // Removes the databases, which are closed by then. The locked file stays: removing it would let
  // two processes lock two files of one name.
  ~ColdDirectory();

  std::string OfShard(uint32_t shard) const;

 private:
  ColdDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  absl::Status RemoveDatabases() const;

  std::string path_;
  int lock_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COLD_COLD_DIRECTORY_H_
