// Output that must never stop the program: its reader may not read.
//
// A pipe that is full, or a terminal that is stopped, blocks write(2) until somebody reads. So does
// a terminal that has less room than the line, and a pipe that another process has filled since
// poll(2) found room. So pipes and terminals are opened anew, without blocking: the flags of the
// descriptor itself are shared with other processes. Where they cannot be opened (another user's),
// poll(2) is all there is.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_PROTO_UNREAD_OUTPUT_H_
#define VERBENA_PROTO_UNREAD_OUTPUT_H_

#include <string_view>

#include "absl/time/time.h"

namespace verbena {

// Writes `text` to `fd` as far as there is room, or is within `patience`. False: not all of it was
// written.
bool WriteUnlessFull(int fd, std::string_view text, absl::Duration patience = absl::ZeroDuration());

}  // namespace verbena

#endif  // VERBENA_PROTO_UNREAD_OUTPUT_H_
