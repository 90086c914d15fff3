// Reading input files, with errors that name the file and the reason.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_DATA_FILE_H_
#define VERBENA_WORKER_DATA_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::worker {

// Read until `size` bytes are there or the end is, and return how many. `name` is for errors.
// `interrupted` is called when a signal came; its error ends the read.
absl::StatusOr<size_t> ReadSome(int fd, const std::string& name, char* to, size_t size,
                                const std::function<absl::Status()>& interrupted);
absl::StatusOr<size_t> ReadAt(int fd, const std::string& name, uint64_t offset, char* to,
                              size_t size);

// NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT: "cannot ACTION NAME: error".
absl::Status FileError(const std::string& name, const char* action, int error);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_FILE_H_
