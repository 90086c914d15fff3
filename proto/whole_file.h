// A file that its readers find complete or not at all: written under another name beside its
// place, then renamed.
//
// A symbolic link is followed, not replaced. What is there and is no regular file (a device such
// as /dev/null, a pipe) stays what it is and is written in place, and so is a descriptor of this
// process under a name (/dev/stdout, /dev/fd/3).
//
// **Thread safety**: one thread at a time an object. Several objects, of any threads, processes and
// machines, may write the same path: the last Commit() stays.
#ifndef VERBENA_PROTO_WHOLE_FILE_H_
#define VERBENA_PROTO_WHOLE_FILE_H_

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena {

class WholeFile {
 public:
  // INVALID_ARGUMENT names `path` and says why it cannot be written: no such directory, no
  // permission, a directory, a pipe that nobody reads.
  static absl::StatusOr<std::unique_ptr<WholeFile>> Open(const std::string& path);
  // Whether Open() would do, to say so before long work; leaves nothing and touches nothing.
  static absl::Status CanWrite(const std::string& path);
  // Removes the file that Open() would replace; a link to it stays. OK where there is none, or
  // where it is no regular file.
  static absl::Status Remove(const std::string& path);
  // Without Commit() nothing is left behind.
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  FILE* stream() { return stream_; }
  // Once, after the last write. INVALID_ARGUMENT as for Open(), such as a full disk.
  absl::Status Commit();

 private:
  WholeFile(std::string path, std::string place, std::string draft, FILE* stream);

  const std::string path_;   // as the caller gave it
  const std::string place_;  // where `path_` leads
  const std::string draft_;  // empty: written in place
  FILE* stream_;             // null after Commit()
  bool committed_ = false;
};

}  // namespace verbena

#endif  // VERBENA_PROTO_WHOLE_FILE_H_
