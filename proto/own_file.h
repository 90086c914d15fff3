// Files and directories that belong to this process's user alone.
//
// Other local users may be able to write to the directory in which such a file is made. What they
// place there (a link, a pipe, a file of their own) is refused and not touched.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_PROTO_OWN_FILE_H_
#define VERBENA_PROTO_OWN_FILE_H_

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena {

// The status of a system call that failed with this errno.
using ErrnoStatus = std::function<absl::Status(int error)>;

// A descriptor of the regular file `path`, opened to read and write, made if there is none; its
// mode is 0600 whatever the umask. FAILED_PRECONDITION: a symbolic link, a file with a second
// name, no regular file, or a file of a user other than this process's and root.
absl::StatusOr<int> OpenOwnFile(const std::string& path, const ErrnoStatus& failed);

// The same checks for a file that was opened with O_NOFOLLOW, without its mode.
absl::Status CheckOwnFile(const std::string& path, int fd, const ErrnoStatus& failed);
absl::Status RefuseLink(const std::string& path);

// FAILED_PRECONDITION: `path` is a symbolic link of a user other than this process's and root.
// Links of one's own are followed.
absl::Status CheckOwnLink(const std::string& path);

// Makes the directory `path` (0700 whatever the umask) and what is missing above it.
// FAILED_PRECONDITION: the directory, or the link that leads to it, belongs to a user other than
// this process's and root.
absl::Status MakeOwnDirectory(const std::string& path, const ErrnoStatus& failed);

}  // namespace verbena

#endif  // VERBENA_PROTO_OWN_FILE_H_
