#include "server/cli/verbena/repair_command.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/json.h"
#include "proto/control/view_tables.h"
#include "proto/wire/table_partitions.h"
#include "server/cli/verbena/format.h"
#include "server/cli/verbena/health.h"
#include "server/cli/verbena/json_report.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

struct RepairText {
  RepairOptions::Action action;
  const char* name;
  const char* about;
  const char* argument;
  const char* object;
};
constexpr RepairText kRepairs[] = {
    {RepairOptions::Action::kResetTable, "reset", "Reset the lost partitions of a table", "TABLE",
     "table"},
    {RepairOptions::Action::kRemoveServer, "remove", "Remove a server that is silent", "NAME",
     "server"},
    {RepairOptions::Action::kDropTable, "drop", "Drop a table with its parameters", "NAME",
     "table"},
    {RepairOptions::Action::kForgetJob, "forget",
     "Remove a job that has ended from the list of jobs", "NAME", "job"},
};

CLI::Validator PartitionNumber() {
  CLI::Validator number;
  number.description("");
  number.operation([](std::string& text) -> std::string {
    uint32_t value = 0;
    if (absl::SimpleAtoi(text, &value)) return "";
    return absl::StrCat("'", Printable(text), "' is not allowed: a partition's number");
  });
  return number;
}

std::string Partitions(size_t count) {
  return absl::StrCat(count, count == 1 ? " partition" : " partitions");
}

std::vector<std::string> QuotedNames(const std::vector<const v1::Table*>& tables) {
  std::vector<std::string> names;
  for (const v1::Table* table : tables) {
    names.push_back(absl::StrCat("'", Printable(table->spec().name()), "'"));
  }
  return names;
}

// The coordinator's rule: a follower that is no longer listed has no data.
bool HasHeir(const v1::Partition& partition, const v1::ClusterView& view) {
  return std::any_of(
      partition.followers().begin(), partition.followers().end(), [&](const v1::Replica& copy) {
        return std::any_of(view.servers().begin(), view.servers().end(),
                           [&](const v1::Server& s) { return s.incarnation() == copy.server(); });
      });
}

std::string RemovalText(const std::string& name, const ClusterState& state) {
  const v1::ClusterView& view = state.view;
  std::vector<int64_t> sole;
  for (const v1::Server& server : view.servers()) {
    if (server.name() != name) continue;
    for (const v1::Partition& partition : view.partitions()) {
      if (partition.primary() == server.incarnation() && !HasHeir(partition, view)) {
        sole.push_back(partition.id());
      }
    }
  }
  const std::string forgotten =
      absl::StrCat("server '", Printable(name), "' is forgotten for ever");
  if (sole.empty()) return forgotten;
  const auto partitions = static_cast<uint32_t>(view.partitions_size());
  std::vector<std::string> losses;
  for (const v1::Table& table : view.tables()) {
    const auto lost = std::count_if(sole.begin(), sole.end(), [&](int64_t partition) {
      return HasChunkIn(table, static_cast<uint32_t>(partition), partitions);
    });
    if (lost == 0) continue;
    losses.push_back(absl::StrCat("table '", Printable(table.spec().name()), "' loses ",
                                  Partitions(static_cast<size_t>(lost))));
  }
  return absl::StrCat(
      forgotten, ", with the last replica of ", Partitions(sole.size()), " (", Ranges(sole),
      "): ", losses.empty() ? "no table has anything there" : absl::StrJoin(losses, ", "));
}

// The table that `verbena table drop` names: the served one first, as the coordinator takes it.
const v1::Table* TableToDrop(const RepairOptions& options, const v1::ClusterView& view) {
  return options.restoring ? FindTableNamed(options.name, true, view)
                           : FindTableNamed(options.name, view);
}

std::string DropText(const RepairOptions& options, const ClusterState& state) {
  const v1::Table* table = TableToDrop(options, state.view);
  if (table->restoring()) {
    return absl::StrCat(Printable(BeingRestored(*table)), "; that restore ends without it");
  }
  const std::string users = UsersText({table}, state.view);
  return absl::StrCat("table '", Printable(options.name), "' of job '",
                      Printable(table->spec().job()), "' is dropped with all that it has",
                      users.empty() ? "" : absl::StrCat("; ", users, ", whose calls on it fail"));
}

const v1::Job* JobNamed(const std::string& name, const v1::ClusterView& view) {
  const auto job = std::find_if(view.jobs().begin(), view.jobs().end(),
                                [&](const v1::Job& j) { return j.name() == name; });
  return job == view.jobs().end() ? nullptr : &*job;
}

std::string ForgetText(const RepairOptions& options, const ClusterState& state) {
  const v1::Job* job = JobNamed(options.name, state.view);
  return absl::StrCat("job '", Printable(options.name), "' (generation ", job->generation(),
                      ") is forgotten", job->has_limits() ? ", with its limits" : "");
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
  // The confirmed table, not another one of its name.
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

absl::StatusOr<RepairReport> DropTable(const RepairOptions& options, bool json,
                                       const ClusterState& state, const Coordinator& coordinator) {
  const v1::Table* table = TableToDrop(options, state.view);
  v1::DropTableRequest request;
  request.set_request_id(NewRequestId());
  // The confirmed table, not another one of its name.
  request.set_id(table->id());
  request.set_name(table->spec().name());  // for messages
  request.set_only_restoring(table->restoring());
  // Agreed to as it was: not to workers that have come since.
  request.set_only_unused(!options.yes && UsersText({table}, state.view).empty());
  const absl::StatusOr<v1::DropTableResponse> dropped =
      ChangeAndWait<v1::DropTableResponse>(coordinator, "DropTable", request);
  if (!dropped.ok()) return dropped.status();
  RepairReport report;
  if (json) {
    JsonWriter answer;
    answer.Add("cluster", ClusterJson(state));
    answer.Add("dropped", options.name);
    answer.Add("id", table->id());
    answer.Add("job", table->spec().job());
    answer.Add("restoring", table->restoring());
    report.out = answer.ToString() + "\n";
  }
  report.err = absl::StrCat(
      "verbena: table '", Printable(options.name), "' of job '", Printable(table->spec().job()),
      "' (id ", table->id(), ", ", Printable(ShapeWord(table->spec())), ")",
      table->restoring() ? ", which was being restored," : "", " is dropped\n");
  return report;
}

absl::StatusOr<RepairReport> ForgetJob(const RepairOptions& options, bool json,
                                       const ClusterState& state, const Coordinator& coordinator) {
  v1::ForgetJobRequest request;
  request.set_request_id(NewRequestId());
  request.set_job(options.name);
  const absl::StatusOr<v1::ForgetJobResponse> forgotten =
      ChangeAndWait<v1::ForgetJobResponse>(coordinator, "ForgetJob", request);
  if (!forgotten.ok()) return forgotten.status();
  RepairReport report;
  if (json) {
    JsonWriter answer;
    answer.Add("cluster", ClusterJson(state));
    answer.Add("forgotten", options.name);
    report.out = answer.ToString() + "\n";
  }
  report.err = absl::StrCat("verbena: job '", Printable(options.name), "' is forgotten\n");
  return report;
}

}  // namespace

CLI::App* AddRepair(RepairOptions::Action action, CLI::App* command, RepairOptions* repair) {
  const RepairText& text = *std::find_if(std::begin(kRepairs), std::end(kRepairs),
                                         [&](const RepairText& r) { return r.action == action; });
  command->require_subcommand(1);
  CLI::App* added = command->add_subcommand(text.name, text.about);
  added->callback([repair, action] { repair->action = action; });
  added->add_option(text.argument, repair->name, absl::StrCat("Name of the ", text.object))
      ->type_name("")
      ->required();
  if (action == RepairOptions::Action::kDropTable) {
    added->add_flag("--restoring", repair->restoring,
                    "Drop the table that is being restored, not the one that is served");
  }
  if (action == RepairOptions::Action::kResetTable) {
    added
        ->add_option(
            "--partition", repair->partitions,
            "Reset this partition; may be repeated (default: all lost partitions of the table)")
        ->type_name("N")
        ->allow_extra_args(false)
        ->check(PartitionNumber());
  }
  added->add_flag("--yes", repair->yes, "Do not ask for confirmation");
  return added;
}

std::string UsersText(const std::vector<const v1::Table*>& tables, const v1::ClusterView& view) {
  std::vector<std::string> users;
  for (const v1::Job& job : view.jobs()) {
    const auto workers = static_cast<int>(
        std::count_if(job.members().begin(), job.members().end(),
                      [](const v1::Worker& worker) { return worker.rank() >= 0; }));
    std::vector<const v1::Table*> used;
    for (const v1::Table* table : tables) {
      if (table->spec().job() == job.name()) used.push_back(table);
    }
    if (workers == 0 || used.empty()) continue;
    users.push_back(absl::StrCat(
        used.size() == 1 ? "table " : "tables ", absl::StrJoin(QuotedNames(used), ", "),
        used.size() == 1 ? " is used by " : " are used by ", workers,
        workers == 1 ? " worker" : " workers", " of job '", Printable(job.name()), "'"));
  }
  return absl::StrJoin(users, "; ");
}

// The coordinator checks it again when it is asked to.
absl::Status CheckServer(const std::string& name, const v1::ClusterView& view) {
  for (const v1::Server& server : view.servers()) {
    if (server.name() != name) continue;
    if (server.state() != v1::Server::ALIVE) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("server '", Printable(name), "' at ", Printable(server.address()),
                     " is alive; only a server that is silent can be removed: stop it first"));
  }
  return absl::NotFoundError(
      absl::StrCat("there is no server '", Printable(name), "'; 'verbena status' lists them"));
}

absl::Status CheckTarget(const RepairOptions& options, const ClusterState& state) {
  switch (options.action) {
    case RepairOptions::Action::kNone:
      return absl::OkStatus();
    case RepairOptions::Action::kRemoveServer:
      return CheckServer(options.name, state.view);
    case RepairOptions::Action::kForgetJob:
      if (JobNamed(options.name, state.view) != nullptr) return absl::OkStatus();
      return absl::NotFoundError(absl::StrCat("there is no job '", Printable(options.name),
                                              "'; 'verbena jobs' lists them"));
    case RepairOptions::Action::kResetTable:
      if (FindTableNamed(options.name, state.view) != nullptr) return absl::OkStatus();
      break;
    case RepairOptions::Action::kDropTable:
      if (TableToDrop(options, state.view) != nullptr) return absl::OkStatus();
      break;
  }
  return absl::NotFoundError(absl::StrCat("there is no table '", Printable(options.name), "'",
                                          options.restoring ? " that is being restored" : "",
                                          "; 'verbena tables' lists them"));
}

std::string Consequences(const RepairOptions& options, const ClusterState& state) {
  switch (options.action) {
    case RepairOptions::Action::kRemoveServer:
      return RemovalText(options.name, state);
    case RepairOptions::Action::kDropTable:
      return DropText(options, state);
    case RepairOptions::Action::kForgetJob:
      return ForgetText(options, state);
    case RepairOptions::Action::kResetTable:
    case RepairOptions::Action::kNone:
      break;
  }
  return ResetText(options);
}

absl::Status Confirm(const std::string& consequences, int interrupt_fd) {
  if (isatty(STDIN_FILENO) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("nothing was changed, as nobody can be asked: ", consequences,
                     ": this cannot be undone. --yes agrees to it"));
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
  switch (options.action) {
    case RepairOptions::Action::kRemoveServer:
      return RemoveServer(options, json, state, coordinator);
    case RepairOptions::Action::kDropTable:
      return DropTable(options, json, state, coordinator);
    case RepairOptions::Action::kForgetJob:
      return ForgetJob(options, json, state, coordinator);
    case RepairOptions::Action::kResetTable:
    case RepairOptions::Action::kNone:
      break;
  }
  return ResetTable(options, json, state, coordinator);
}

}  // namespace verbena::cli
