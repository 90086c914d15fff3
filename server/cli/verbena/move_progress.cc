#include "server/cli/verbena/move_progress.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {

std::string CountOfPartitions(size_t count) {
  return absl::StrCat(count, count == 1 ? " partition" : " partitions");
}

std::string ServerName(uint64_t server, const v1::ClusterView& view) {
  for (const v1::Server& s : view.servers()) {
    if (s.incarnation() == server) return s.name();
  }
  return "";
}

std::string MoveEndText(v1::MoveEnd end, const std::string& to) {
  const std::string target = absl::StrCat("server '", Printable(to), "'");
  switch (end) {
    case v1::MOVE_END_TARGET_GONE:
      return absl::StrCat(target, " is silent, or is being drained");
    case v1::MOVE_END_SOURCE_GONE:
      return "its primary is silent, or was lost during the move";
    case v1::MOVE_END_NO_MEMORY:
      return absl::StrCat(target,
                          " has no memory for more (raise its --memory-limit, or name another)");
    case v1::MOVE_END_CANCELLED:
      return "the move was cancelled";
    default:
      return "another move took its place";
  }
}

void ProgressLine::Print(const std::string& text) {
  if (text != printed_) std::fprintf(stderr, "verbena: %s\n", text.c_str());
  printed_ = text;
}

absl::Status Interrupted(const absl::Status& status, const std::string& what) {
  if (absl::IsCancelled(status)) std::fprintf(stderr, "verbena: %s\n", what.c_str());
  return status;
}

absl::StatusOr<ClusterState> ReadOrWait(ClusterReader* reader, ProgressLine* line) {
  while (true) {
    absl::StatusOr<ClusterState> state = reader->Read(/*with_servers=*/false);
    const bool away =
        absl::IsUnavailable(state.status()) || absl::IsDeadlineExceeded(state.status());
    if (!away) return state;
    line->Print("waiting for the coordinator");
    if (absl::Status slept = reader->Sleep(kBetweenMoveReads); !slept.ok()) return slept;
  }
}

}  // namespace verbena::cli
