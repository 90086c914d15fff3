// Files and directories that belong only to this process's user.
//
// Other local users may have write access to the directory of such a file. Objects that they place
// there (a link, a pipe, their own file) are refused and not touched.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_PROTO_BASE_OWN_FILE_H_
#define VERBENA_PROTO_BASE_OWN_FILE_H_

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena {

// Converts the errno of a failed system call to a status.
using ErrnoStatus = std::function<absl::Status(int error)>;

// Opens the regular file `path` for reading and writing, and creates it if it does not exist. Its
// mode is 0600, independent of the umask. FAILED_PRECONDITION: a symbolic link, a file with a
// second name, not a regular file, or owned by a user other than this process's and root.
absl::StatusOr<int> OpenOwnFile(const std::string& path, const ErrnoStatus& failed);

// Makes the same checks, except the mode, for a file that was opened with O_NOFOLLOW.
absl::Status CheckOwnFile(const std::string& path, int fd, const ErrnoStatus& failed);
absl::Status RefuseLink(const std::string& path);

// FAILED_PRECONDITION: `path` is a symbolic link owned by a user other than this process's and
// root. Other links may be followed.
absl::Status CheckOwnLink(const std::string& path);

// Creates the directory `path` (mode 0700, independent of the umask) and missing parents.
// FAILED_PRECONDITION: the directory, or the link to it, is owned by a user other than this
// process's and root.
absl::Status MakeOwnDirectory(const std::string& path, const ErrnoStatus& failed);

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_OWN_FILE_H_
