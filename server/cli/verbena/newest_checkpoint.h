// Selects the checkpoint when a command is given a directory of them.
//
// **Thread safety**: pure functions; they read the disk.
#ifndef VERBENA_SERVER_CLI_VERBENA_NEWEST_CHECKPOINT_H_
#define VERBENA_SERVER_CLI_VERBENA_NEWEST_CHECKPOINT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::cli {

// By its name, or because it has a manifest.
bool IsOneCheckpoint(const std::string& path);

// `path` itself if it is one checkpoint, else the newest one below it. A damaged newest one is
// never skipped: an older one would bring back older parameters without a decision by the operator.
// DATA_LOSS: it is damaged; the message names it, and the newest complete one with `command`
// ("verbena checkpoint restore"; empty: takes directories only) that takes it.
absl::StatusOr<std::string> ChooseCheckpoint(const std::string& path, const std::string& command);

// Adds to a DATA_LOSS of `checkpoint` the commands that find and use a complete one in the same
// directory; returns any other status unchanged.
absl::Status AdviseOnDamage(const absl::Status& status, const std::string& checkpoint,
                            const std::string& command);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_NEWEST_CHECKPOINT_H_
