#include "server/cli/verbena/repair_command.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/json.h"
#include "proto/view_tables.h"
#include "server/cli/verbena/health.h"
#include "server/cli/verbena/json_report.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

std::string Partitions(size_t count) {
  return absl::StrCat(count, count == 1 ? " partition" : " partitions");
}

std::string RemovalText(const std::string& name, const ClusterState& state) {
  uint32_t sole = 0;
  for (const v1::Server& server : state.view.servers()) {
    if (server.name() != name) continue;
    for (const v1::Partition& partition : state.view.partitions()) {
      sole += partition.primary() == server.incarnation() && partition.followers().empty() ? 1 : 0;
    }
  }
  return absl::StrCat("server '", Printable(name), "' is forgotten for ever",
                      sole == 0 ? ""
                                : absl::StrCat(", and what it alone has (", Partitions(sole),
                                               ") is lost in every table"));
}

std::string ResetText(const RepairOptions& options) {
  return absl::StrCat("table '", Printable(options.name), "' starts again from initial values in ",
                      options.partitions.empty()
                          ? "all partitions that it has lost"
                          : Ranges({options.partitions.begin(), options.partitions.end()}, 64),
                      ", and its job's steps from 0");
}

std::string Names(const google::protobuf::RepeatedPtrField<std::string>& names) {
  return absl::StrJoin(names, ", ", [](std::string* out, const std::string& name) {
    absl::StrAppend(out, "'", Printable(name), "'");
  });
}

absl::StatusOr<RepairReport> RemoveServer(const RepairOptions& options, bool json,
                                          const ClusterState& state,
                                          const Coordinator& coordinator) {
  v1::RemoveServerRequest request;
  request.set_request_id(NewRequestId());
  request.set_name(options.name);
  const absl::StatusOr<v1::RemoveServerResponse> removed =
      ChangeAndWait<v1::RemoveServerResponse>(coordinator, "RemoveServer", request);
  if (!removed.ok()) return removed.status();
  RepairReport report;
  if (json) {
    JsonArray lost;
    for (const std::string& table : removed->lost_tables()) lost.Add(table);
    JsonWriter answer;
    answer.Add("cluster", ClusterJson(state));
    answer.Add("removed", options.name);
    answer.Add("lost_tables", lost);
    report.out = answer.ToString() + "\n";
  }
  report.err = absl::StrCat(
      "verbena: server '", Printable(options.name), "' is removed; ",
      removed->lost_tables().empty()
          ? "no table has lost anything"
          : absl::StrCat("tables that have lost something: ", Names(removed->lost_tables())),
      "\n");
  return report;
}

absl::StatusOr<RepairReport> ResetTable(const RepairOptions& options, bool json,
                                        const ClusterState& state, const Coordinator& coordinator) {
  v1::ResetTableRequest request;
  request.set_request_id(NewRequestId());
  request.set_name(options.name);
  request.mutable_partitions()->Add(options.partitions.begin(), options.partitions.end());
  // The one that was agreed to, and no other of its name.
  if (const v1::Table* table = FindTableNamed(options.name, false, state.view)) {
    request.set_id(table->id());
  }
  const absl::StatusOr<v1::ResetTableResponse> reset =
      ChangeAndWait<v1::ResetTableResponse>(coordinator, "ResetTable", request);
  if (!reset.ok()) return reset.status();
  RepairReport report;
  if (json) {
    JsonArray partitions;
    for (const uint32_t partition : reset->partitions()) partitions.Add(partition);
    JsonWriter answer;
    answer.Add("cluster", ClusterJson(state));
    answer.Add("table", options.name);
    answer.Add("reset_partitions", partitions);
    report.out = answer.ToString() + "\n";
  }
  report.err = absl::StrCat(
      "verbena: table '", Printable(options.name), "' ",
      reset->partitions().empty()
          ? "has lost nothing"
          : absl::StrCat("has initial values in ",
                         Partitions(static_cast<size_t>(reset->partitions_size())), ": ",
                         Ranges({reset->partitions().begin(), reset->partitions().end()}, 64)),
      "\n");
  return report;
}

}  // namespace

std::string Consequences(const RepairOptions& options, const ClusterState& state) {
  return options.action == RepairOptions::Action::kRemoveServer ? RemovalText(options.name, state)
                                                                : ResetText(options);
}

absl::Status Confirm(const std::string& consequences, int interrupt_fd) {
  if (isatty(STDIN_FILENO) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(consequences, ": this cannot be undone. --yes agrees to it"));
  }
  std::fprintf(stderr,
               "verbena: %s. This cannot be undone. Type 'yes' to go on: ", consequences.c_str());
  std::string answer;
  while (answer.find('\n') == std::string::npos && answer.size() < 64) {
    pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_fd, POLLIN, 0}};
    poll(fds, 2, -1);
    if (fds[1].revents != 0) return absl::CancelledError("interrupted");
    char bytes[64];
    const ssize_t size = read(STDIN_FILENO, bytes, sizeof bytes);
    if (size <= 0) break;
    answer.append(bytes, static_cast<size_t>(size));
  }
  if (absl::StripAsciiWhitespace(answer) == "yes") return absl::OkStatus();
  return absl::AbortedError("not agreed to; nothing was changed");
}

absl::StatusOr<RepairReport> RunRepair(const RepairOptions& options, bool json,
                                       const ClusterState& state, const Coordinator& coordinator) {
  return options.action == RepairOptions::Action::kRemoveServer
             ? RemoveServer(options, json, state, coordinator)
             : ResetTable(options, json, state, coordinator);
}

}  // namespace verbena::cli
