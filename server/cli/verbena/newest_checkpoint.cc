#include "server/cli/verbena/newest_checkpoint.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/manifest.h"

namespace verbena::cli {

using checkpoint::PosixDisk;

bool IsOneCheckpoint(const std::string& path) {
  return checkpoint::CheckpointNumber(checkpoint::BaseName(path)).has_value() ||
         PosixDisk()->Open(checkpoint::Join(path, checkpoint::kManifestName)).ok();
}

absl::StatusOr<std::string> ChooseCheckpoint(const std::string& path, const std::string& command) {
  if (IsOneCheckpoint(path)) return path;
  std::vector<std::string> passed;
  const absl::StatusOr<std::string> newest = checkpoint::NewestComplete(PosixDisk(), path, &passed);
  if (passed.empty()) return newest;
  const std::string damaged = absl::StrJoin(passed, "; ");
  if (!newest.ok()) {
    return absl::Status(newest.status().code(),
                        absl::StrCat(newest.status().message(), ": ", damaged));
  }
  const int64_t step = checkpoint::ReadListed(PosixDisk(), *newest).manifest->step();
  return absl::DataLossError(absl::StrCat(
      passed.size() == 1 ? "the newest checkpoint of " : "the newest checkpoints of ", path,
      passed.size() == 1 ? " is damaged (" : " are damaged (", damaged,
      "); nothing was done. The newest complete one is ", *newest, ", of step ", step, "; ",
      command.empty()
          ? "to go on with it, give the damaged directory another name, such as NAME.damaged"
          : absl::StrCat("'", command, " ", *newest, "' takes that one")));
}

absl::Status AdviseOnDamage(const absl::Status& status, const std::string& checkpoint,
                            const std::string& command) {
  const bool in_directory =
      checkpoint::CheckpointNumber(checkpoint::BaseName(checkpoint)).has_value();
  if (!absl::IsDataLoss(status) || !in_directory) return status;
  return absl::DataLossError(absl::StrCat(
      status.message(), ". 'verbena checkpoint verify ", checkpoint::ParentOf(checkpoint),
      " --all' finds the checkpoints that are whole",
      command.empty() ? "" : absl::StrCat("; '", command, " PATH' takes one by its own path")));
}

}  // namespace verbena::cli
