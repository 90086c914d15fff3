#include "server/cli/verbena/move_command.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/base/json.h"
#include "proto/wire/table_partitions.h"
#include "server/cli/verbena/format.h"
#include "server/cli/verbena/health.h"
#include "server/cli/verbena/json_report.h"
#include "server/cli/verbena/move_progress.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

const v1::Server* Named(const std::string& name, const v1::ClusterView& view) {
  for (const v1::Server& s : view.servers()) {
    if (s.name() == name) return &s;
  }
  return nullptr;
}

// What is left of the moves, and how those ended that had no effect.
struct Progress {
  size_t moving = 0, copied = 0, moved = 0;
  std::map<std::string, std::vector<int64_t>> failed;  // by reason
};

Progress MoveProgress(const std::vector<uint32_t>& partitions, const std::string& to,
                      const v1::ClusterView& view) {
  Progress progress;
  for (const uint32_t id : partitions) {
    if (id >= static_cast<uint32_t>(view.partitions_size())) continue;
    const v1::Partition& p = view.partitions(static_cast<int>(id));
    if (p.move_to() != 0 && p.move_from() == 0 && ServerName(p.move_to(), view) == to) {
      ++progress.moving;
      progress.copied += std::any_of(p.followers().begin(), p.followers().end(),
                                     [&](const auto& r) { return r.server() == p.move_to(); });
    } else if (ServerName(p.primary(), view) == to) {
      ++progress.moved;
    } else {
      progress.failed[MoveEndText(p.last_move(), to)].push_back(id);
    }
  }
  return progress;
}

// Replicas on a server, learners among them.
size_t ReplicasOn(const v1::Server& server, const v1::ClusterView& view) {
  size_t count = 0;
  for (const v1::Partition& p : view.partitions()) {
    count += p.primary() == server.incarnation() ? 1 : 0;
    for (const auto* replicas : {&p.followers(), &p.learners()}) {
      count += static_cast<size_t>(
          std::count_if(replicas->begin(), replicas->end(),
                        [&](const v1::Replica& r) { return r.server() == server.incarnation(); }));
    }
  }
  return count;
}

std::string MovingLine(const std::string& to, size_t partitions, const Progress& progress) {
  std::string line =
      absl::StrCat("moving to ", to, ": ", progress.moved, " of ", CountOfPartitions(partitions),
                   " moved, ", progress.copied, " copied and handed over next");
  for (const auto& [reason, which] : progress.failed) {
    absl::StrAppend(&line, "; ", which.size(), " stayed: ", reason);
  }
  return line;
}

// Why the drain of a server does not go on now; empty: it does.
std::string DrainObstacle(const v1::Server& server, const ClusterState& state) {
  if (server.state() == v1::Server::SILENT) {
    return "the server is silent: what it has alone stays there until it responds";
  }
  const auto others = std::count_if(state.view.servers().begin(), state.view.servers().end(),
                                    [&](const v1::Server& s) {
                                      return s.state() == v1::Server::ALIVE && !s.draining() &&
                                             s.incarnation() != server.incarnation();
                                    });
  const uint32_t wanted = ReplicasOf(state.view);
  if (others < static_cast<int64_t>(wanted)) {
    return absl::StrCat(
        "it waits: ", others, others == 1 ? " other server is" : " other servers are",
        " alive and not being drained, and --replicas is ", wanted, "; start another server");
  }
  return absl::StrReplaceAll(LackingMemoryText(state), {{"\n", " "}});
}

// Servers report their memory, too, where one had too little.
absl::StatusOr<ClusterState> ReadDrain(ClusterReader* reader, ProgressLine* line) {
  absl::StatusOr<ClusterState> state = ReadOrWait(reader, line);
  if (!state.ok() || state->full_servers.empty()) return state;
  return reader->Read(/*with_servers=*/true, &*state);
}

bool NothingToCancel(const absl::Status& status) {
  // Coordinators of an earlier version answer so.
  return absl::IsFailedPrecondition(status);
}

absl::StatusOr<MoveReport> Migrate(const MoveOptions& options, bool json,
                                   const Coordinator& coordinator, ClusterReader* reader) {
  v1::MovePartitionsRequest request;
  request.set_request_id(NewRequestId());
  request.mutable_partitions()->Add(options.partitions.begin(), options.partitions.end());
  if (options.tables.size() == 1) request.set_table(options.tables[0]);
  if (options.tables.size() > 1) {
    // In one call, so that all of them or none are moved.
    const absl::StatusOr<ClusterState> state = reader->Read(/*with_servers=*/false);
    if (!state.ok()) return state.status();
    const auto of_tables = PartitionsOfTables(options.tables, state->view);
    if (!of_tables.ok()) return of_tables.status();
    request.mutable_partitions()->Add(of_tables->begin(), of_tables->end());
  }
  request.set_to(options.server);
  request.set_cancel(options.cancel);
  const auto begun =
      ChangeAndWait<v1::MovePartitionsResponse>(coordinator, "MovePartitions", request);
  const bool none = options.cancel && NothingToCancel(begun.status());
  if (!begun.ok() && !none) return begun.status();
  std::vector<uint32_t> partitions;
  if (!none) partitions.assign(begun->partitions().begin(), begun->partitions().end());
  const std::string to = absl::StrCat("server '", Printable(options.server), "'");
  MoveReport report;
  Progress progress;
  ProgressLine line;
  while (!options.cancel) {
    const absl::StatusOr<ClusterState> state = ReadOrWait(reader, &line);
    if (!state.ok()) return Interrupted(state.status(), "the moves go on; --cancel ends them");
    progress = MoveProgress(partitions, options.server, state->view);
    if (progress.moving == 0 || options.no_wait) break;
    line.Print(MovingLine(to, partitions.size(), progress));
    if (absl::Status slept = reader->Sleep(kBetweenMoveReads); !slept.ok()) {
      return Interrupted(slept, "the moves go on; --cancel ends them");
    }
  }
  if (options.no_wait) progress.failed.clear();
  size_t failed = 0;
  for (const auto& [reason, which] : progress.failed) {
    failed += which.size();
    absl::StrAppend(&report.err, "verbena: ", CountOfPartitions(which.size()), " (", Ranges(which),
                    ") stayed: ", reason, "\n");
  }
  report.done = failed == 0;
  if (json) {
    JsonWriter out;
    out.Add("partitions", static_cast<uint64_t>(partitions.size()));
    out.Add("moved", static_cast<uint64_t>(progress.moved));
    report.out = out.ToString() + "\n";
  }
  absl::StrAppend(
      &report.err, "verbena: ",
      options.cancel && partitions.empty() ? "no move of these partitions is in progress"
      : options.cancel
          ? absl::StrCat("the moves of ", CountOfPartitions(partitions.size()), " are cancelled")
      : partitions.empty() ? absl::StrCat("nothing to move: all of it is at ", to)
      : options.no_wait
          ? absl::StrCat(CountOfPartitions(partitions.size()), " will be moved to ", to)
          : absl::StrCat(CountOfPartitions(progress.moved), " moved to ", to),
      "\n");
  return report;
}

absl::StatusOr<MoveReport> Drain(const MoveOptions& options, bool json,
                                 const Coordinator& coordinator, ClusterReader* reader) {
  v1::DrainServerRequest request;
  request.set_request_id(NewRequestId());
  request.set_name(options.server);
  request.set_cancel(options.cancel);
  bool was_draining = false;
  if (options.cancel) {
    const absl::StatusOr<ClusterState> state = reader->Read(/*with_servers=*/false);
    if (!state.ok()) return state.status();
    const v1::Server* const server = Named(options.server, state->view);
    was_draining = server != nullptr && server->draining();
  }
  const auto begun = ChangeAndWait<v1::DrainServerResponse>(coordinator, "DrainServer", request);
  if (!begun.ok()) return begun.status();
  const std::string name = absl::StrCat("server '", Printable(options.server), "'");
  MoveReport report;
  report.done = true;
  size_t left = 0;
  ProgressLine line;
  bool silent = false;
  reader->WantPartitions();
  while (!options.cancel) {
    const absl::StatusOr<ClusterState> state = ReadDrain(reader, &line);
    if (!state.ok()) {
      return Interrupted(state.status(), "the drain goes on; verbena drain " +
                                             Printable(options.server) + " --cancel ends it");
    }
    const v1::Server* const server = Named(options.server, state->view);
    if (server == nullptr || !server->draining()) {
      return absl::AbortedError(absl::StrCat(
          name, server == nullptr ? " was removed from the cluster"
                                  : " is not drained any more: it has restarted, or the drain was "
                                    "cancelled"));
    }
    left = ReplicasOn(*server, state->view);
    silent = server->state() == v1::Server::SILENT;
    if (left == 0 || options.no_wait) break;
    const std::string obstacle = DrainObstacle(*server, *state);
    line.Print(absl::StrCat("draining ", name, ": ", left,
                            left == 1 ? " replica is" : " replicas are", " left",
                            obstacle.empty() ? "" : "; ", obstacle));
    if (absl::Status slept = reader->Sleep(kBetweenMoveReads); !slept.ok()) {
      return Interrupted(slept, "the drain goes on; verbena drain " + Printable(options.server) +
                                    " --cancel ends it");
    }
  }
  if (json) {
    JsonWriter out;
    out.Add("server", options.server);
    out.Add("replicas", static_cast<uint64_t>(left));
    report.out = out.ToString() + "\n";
  }
  report.err = absl::StrCat("verbena: ", name,
                            options.cancel && !was_draining ? " is not being drained"
                            : options.cancel                ? " may have replicas again"
                            : options.no_wait               ? " is being drained"
                            : silent ? " has no replica any more; it is silent"
                                     : " has no replica any more and may be stopped",
                            "\n");
  return report;
}

void AddWait(CLI::App* command, MoveOptions* move) {
  command->add_flag("--no-wait", move->no_wait, "Return when the coordinator has begun");
}

}  // namespace

void AddMigrate(CLI::App* command, MoveOptions* move) {
  CLI::Validator number;
  number.description("");
  number.operation([](std::string& text) -> std::string {
    uint32_t value = 0;
    if (absl::SimpleAtoi(text, &value)) return "";
    return absl::StrCat("'", Printable(text), "' is not allowed: a partition's number");
  });
  CLI::Option* partition =
      command->add_option("--partition", move->partitions, "Partition to move; may be repeated")
          ->type_name("N")
          ->check(number);
  CLI::Option* table =
      command
          ->add_option("--table", move->tables,
                       "Move all partitions that have chunks of it; may be repeated")
          ->type_name("TABLE")
          ->excludes(partition);
  CLI::Option* to =
      command->add_option("--to", move->server, "Name of the server")->type_name("SERVER");
  CLI::Option* cancel =
      command->add_flag("--cancel", move->cancel, "End moves that are under way")->excludes(to);
  AddWait(command, move);
  command->callback([=] {
    move->action = MoveOptions::Action::kMigrate;
    if (partition->empty() && table->empty()) {
      throw CLI::RequiredError("--partition N or --table TABLE");
    }
    if (to->empty() && cancel->empty()) throw CLI::RequiredError("--to SERVER");
  });
}

void AddDrain(CLI::App* command, MoveOptions* move) {
  command->add_option("SERVER", move->server, "Name of the server")->type_name("")->required();
  command->add_flag("--cancel", move->cancel, "It may have replicas again");
  AddWait(command, move);
  command->callback([move] { move->action = MoveOptions::Action::kDrain; });
}

std::string LackingMemoryText(const ClusterState& state) {
  std::map<uint32_t, uint64_t> bytes;  // of partitions; a learner has a part only
  for (const ServerState& server : state.servers) {
    if (!server.statistics.ok()) continue;
    for (const v1::ShardStatistics& shard : server.statistics->shards()) {
      for (const v1::PartitionStatistics& held : shard.partitions()) {
        bytes[held.partition()] = std::max(bytes[held.partition()], held.bytes());
      }
    }
  }
  std::string text;
  for (const v1::FullServer& full : state.full_servers) {
    const auto server = std::find_if(
        state.servers.begin(), state.servers.end(),
        [&](const ServerState& s) { return s.server.incarnation() == full.incarnation(); });
    if (server == state.servers.end()) continue;
    const std::vector<int64_t> partitions(full.partitions().begin(), full.partitions().end());
    absl::StrAppend(&text, "server '", Printable(server->server.name()),
                    "' has no memory for replicas of ", CountOfPartitions(partitions.size()), " (",
                    Ranges(partitions), ")");
    uint64_t needed = 0, limit = 0, reserved = 0;
    for (const uint32_t partition : full.partitions()) needed += bytes[partition];
    if (server->statistics.ok()) {
      for (const v1::ShardStatistics& shard : server->statistics->shards()) {
        limit = std::max(limit, shard.memory_limit_bytes());
        reserved = std::max(reserved, shard.memory_reserved_bytes());
      }
    }
    if (limit > 0) {
      const uint64_t free = limit - std::min(limit, reserved);
      absl::StrAppend(&text, ": they need ", Bytes(needed), " beside room for growth, and ",
                      Bytes(free), " of its limit of ", Bytes(limit), " are free");
      if (needed > free) absl::StrAppend(&text, ", so ", Bytes(needed - free), " are lacking");
    }
    absl::StrAppend(
        &text, "; it is tried again: raise its --memory-limit, add a server, or drop tables\n");
  }
  return text;
}

absl::StatusOr<std::vector<uint32_t>> PartitionsOfTables(const std::vector<std::string>& tables,
                                                         const v1::ClusterView& view) {
  const auto count = static_cast<uint32_t>(view.partitions_size());
  std::set<uint32_t> partitions;
  for (const std::string& name : tables) {
    const auto table =
        std::find_if(view.tables().begin(), view.tables().end(),
                     [&](const v1::Table& t) { return t.spec().name() == name && !t.restoring(); });
    if (table == view.tables().end()) {
      return absl::NotFoundError(absl::StrCat("there is no table '", Printable(name), "'"));
    }
    for (uint32_t p = 0; p < count; ++p) {
      if (HasChunkIn(*table, p, count)) partitions.insert(p);
    }
  }
  return std::vector<uint32_t>(partitions.begin(), partitions.end());
}

absl::StatusOr<MoveReport> RunMove(const MoveOptions& options, bool json,
                                   const Coordinator& coordinator, ClusterReader* reader) {
  return options.action == MoveOptions::Action::kDrain
             ? Drain(options, json, coordinator, reader)
             : Migrate(options, json, coordinator, reader);
}

}  // namespace verbena::cli
