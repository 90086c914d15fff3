// Output that must never stop the program: its reader may not read.
//
// A pipe that is full, or a terminal that is stopped, blocks write(2) until somebody reads.
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
