// Reading input files in pieces, with errors that say which file and why.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_FILE_H_
#define VERBENA_WORKER_FILE_H_

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::worker {

// Calls `take` with the file's bytes in order. NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT
// (such as a directory) name the path; the first error of `take` ends it.
absl::Status ReadPieces(const std::string& path,
                        const std::function<absl::Status(std::string_view)>& take);

// The whole file.
absl::StatusOr<std::string> ReadBytes(const std::string& path);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_FILE_H_
