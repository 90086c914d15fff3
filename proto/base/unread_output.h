// Writes output without blocking the program when the reader does not read.
//
// A full pipe or a stopped terminal blocks write(2) until its reader continues. So does a terminal
// with less room than the line, and a pipe that another process has filled since poll(2) found
// room. Therefore pipes and terminals are opened again, without blocking: the flags of the
// descriptor itself are shared with other processes. If that fails (another user's), only poll(2)
// protects.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_PROTO_BASE_UNREAD_OUTPUT_H_
#define VERBENA_PROTO_BASE_UNREAD_OUTPUT_H_

#include <string_view>

#include "absl/time/time.h"

namespace verbena {

// Writes as much of `text` to `fd` as fits within `patience`. False: a part was not written.
bool WriteUnlessFull(int fd, std::string_view text, absl::Duration patience = absl::ZeroDuration());

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_UNREAD_OUTPUT_H_
