// A file that is either complete or absent for its readers: it is written under another name in the
// same directory, then renamed.
//
// A symbolic link is followed, not replaced. An existing object that is not a regular file (a
// device such as /dev/null, a pipe) is written in place. So is a descriptor of this process under a
// name (/dev/stdout, /dev/fd/3).
//
// **Thread safety**: one thread at a time per object. Several objects of any threads, processes and
// machines may write the same path; the last Commit() wins.
#ifndef VERBENA_PROTO_BASE_WHOLE_FILE_H_
#define VERBENA_PROTO_BASE_WHOLE_FILE_H_

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena {

class WholeFile {
 public:
  // INVALID_ARGUMENT has `path` and the reason: no such directory, no permission, a directory, or a
  // pipe without a reader.
  static absl::StatusOr<std::unique_ptr<WholeFile>> Open(const std::string& path);
  // Whether Open() would succeed, for a check before long work. Leaves no file and changes none.
  static absl::Status CanWrite(const std::string& path);
  // Removes the file that Open() would replace; a link to it stays. OK if it does not exist or is
  // not a regular file.
  static absl::Status Remove(const std::string& path);
  // Without Commit() no file is left.
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  FILE* stream() { return stream_; }
  // Call once, after the last write. Returns INVALID_ARGUMENT on failure, such as a full disk.
  absl::Status Commit();

 private:
  WholeFile(std::string path, std::string place, std::string draft, FILE* stream);

  const std::string path_;   // as passed by the caller
  const std::string place_;  // `path` after following links
  const std::string draft_;  // empty: written in place
  FILE* stream_;             // null after Commit()
  bool committed_ = false;
};

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_WHOLE_FILE_H_
