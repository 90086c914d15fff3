// Shared by the commands that move partitions: their progress, and the reason why a move ended.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_MOVE_PROGRESS_H_
#define VERBENA_SERVER_CLI_VERBENA_MOVE_PROGRESS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cli/verbena/cluster_reader.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::cli {

inline constexpr absl::Duration kBetweenMoveReads = absl::Milliseconds(250);

// "1 partition", "7 partitions"
std::string CountOfPartitions(size_t count);
// Empty: it is not in the view.
std::string ServerName(uint64_t server, const v1::ClusterView& view);
// Why a move to that server had no effect.
std::string MoveEndText(v1::MoveEnd end, const std::string& to);

// Prints a line on standard error when it has changed.
class ProgressLine {
 public:
  void Print(const std::string& text);

 private:
  std::string printed_;
};

// Prints `what` if the status is CANCELLED: an interrupt ends the wait alone.
absl::Status Interrupted(const absl::Status& status, const std::string& what);

// Reads the view; waits for a coordinator that restarts meanwhile: its state goes on from there.
absl::StatusOr<ClusterState> ReadOrWait(ClusterReader* reader, ProgressLine* line);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_MOVE_PROGRESS_H_
