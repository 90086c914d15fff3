#include "server/cli/verbena/rebalance_command.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/json.h"
#include "server/balance/cluster_load.h"
#include "server/cli/verbena/format.h"
#include "server/cli/verbena/json_report.h"
#include "server/cli/verbena/move_progress.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

using server::BalanceMove;
using server::BalancePlan;

// A partition moves once in a plan, so a cluster that grows manifold needs several. More would not
// end while tables grow faster than they are moved.
constexpr size_t kMostRounds = 16;
constexpr char kNothingPlaced[] =
    "nothing to move: no partition is on a server yet; the first table that is created spreads "
    "them evenly";
constexpr char kGoesOn[] = "the moves go on; verbena rebalance --cancel ends them";

std::string Apart(double share) { return absl::StrCat(Fixed(share * 100, 1), " %"); }

const char* Role(const BalanceMove& move) { return move.primary ? "primary" : "follower"; }

bool HasFollower(const v1::Partition& partition, uint64_t server) {
  return std::any_of(partition.followers().begin(), partition.followers().end(),
                     [&](const v1::Replica& r) { return r.server() == server; });
}

JsonWriter PlanJson(const BalancePlan& plan, const ClusterState& state) {
  JsonArray moves;
  for (const BalanceMove& move : plan.moves) {
    JsonWriter json;
    json.Add("partition", move.partition);
    json.Add("replica", Role(move));
    json.Add("from", ServerName(move.from, state.view));
    json.Add("to", ServerName(move.to, state.view));
    json.Add("bytes", move.bytes);
    json.Add("round", static_cast<uint64_t>(move.round));
    moves.Add(json);
  }
  JsonArray servers;
  for (const server::ServerBalance& server : plan.servers) {
    JsonWriter json;
    json.Add("name", ServerName(server.server, state.view));
    json.Add("bytes", server.bytes_before);
    json.Add("bytes_after", server.bytes_after);
    json.Add("primary_bytes", server.primary_before);
    json.Add("primary_bytes_after", server.primary_after);
    json.Add("primaries", static_cast<uint64_t>(server.primaries_before));
    json.Add("primaries_after", static_cast<uint64_t>(server.primaries_after));
    json.Add("memory_limit_bytes", server.memory_limit);
    json.Add("of_share", server.load_before);
    json.Add("of_share_after", server.load_after);
    servers.Add(json);
  }
  JsonWriter json;
  json.Add("cluster", ClusterJson(state));
  json.Add("balanced", plan.balanced());
  json.Add("imbalance", plan.before);
  json.Add("imbalance_after", plan.after);
  json.Add("primaries_imbalance", plan.primaries_before);
  json.Add("primaries_imbalance_after", plan.primaries_after);
  json.Add("moving", server::PartitionsInMove(state.view));
  json.Add("bytes", plan.bytes);
  json.Add("rounds", static_cast<uint64_t>(plan.rounds));
  json.Add("moves", moves);
  json.Add("servers", servers);
  return json;
}

bool NothingPlaced(const v1::ClusterView& view) {
  return std::all_of(view.partitions().begin(), view.partitions().end(),
                     [](const v1::Partition& p) { return p.primary() == 0; });
}

// What hinders a plan that leaves the servers apart.
std::string Rest(double after, double primaries_after) {
  std::string text;
  if (after > server::kBalanced) {
    text = absl::StrCat("; the servers stay ", Apart(after),
                        " apart: zones, memory limits or the sizes of partitions allow no better");
  }
  if (primaries_after > server::kPrimariesBalanced) {
    absl::StrAppend(&text, "; primaries stay ", Apart(primaries_after),
                    " apart: a primary is exchanged with a follower of another partition, and only "
                    "between servers that do not have the same partitions");
  }
  return text;
}

std::string Differ(double bytes, double primaries) {
  return absl::StrCat("the servers' bytes differ by ", Apart(bytes), " of their average, ",
                      Apart(primaries), " for primaries alone");
}

std::string Summary(const BalancePlan& plan) {
  const std::string differ = Differ(plan.before, plan.primaries_before);
  if (plan.balanced()) return absl::StrCat("balanced: ", differ, "; nothing to move");
  const std::string rest = Rest(plan.after, plan.primaries_after);
  if (plan.moves.empty()) return absl::StrCat("nothing to move: ", differ, rest);
  return absl::StrCat(plan.moves.size(), plan.moves.size() == 1 ? " move" : " moves",
                      plan.rounds > 1 ? absl::StrCat(" in ", plan.rounds, " rounds") : "", ", ",
                      Bytes(plan.bytes), "; ", differ, ", then by ", Apart(plan.after), " and ",
                      Apart(plan.primaries_after), rest);
}

// Servers and moves that the plan presumes.
std::string Notes(const BalancePlan& plan, const v1::ClusterView& view) {
  std::string text;
  if (const uint32_t moving = server::PartitionsInMove(view); moving > 0) {
    absl::StrAppend(&text, "moves of ", CountOfPartitions(moving),
                    " are in progress: bytes and moves below are as from their end\n");
  }
  for (const uint64_t server : plan.too_small) {
    absl::StrAppend(&text, "server '", Printable(ServerName(server, view)),
                    "' is left out: its memory limit holds no partition\n");
  }
  return text;
}

absl::StatusOr<ClusterState> ReadLoad(ClusterReader* reader, ProgressLine* line) {
  while (true) {
    absl::StatusOr<ClusterState> state = reader->Read(/*with_servers=*/true);
    const bool away =
        absl::IsUnavailable(state.status()) || absl::IsDeadlineExceeded(state.status());
    if (!away) return state;
    line->Print("waiting for the coordinator");
    if (absl::Status slept = reader->Sleep(kBetweenMoveReads); !slept.ok()) return slept;
  }
}

// One call for each target and role.
absl::Status BeginMoves(const BalancePlan& plan, const v1::ClusterView& view,
                        const Coordinator& coordinator) {
  std::map<std::pair<uint64_t, uint64_t>, v1::MovePartitionsRequest> requests;
  for (const BalanceMove& move : plan.moves) {
    requests[{move.to, move.primary ? 0 : move.from}].add_partitions(move.partition);
  }
  for (auto& [servers, request] : requests) {
    request.set_request_id(NewRequestId());
    request.set_to(ServerName(servers.first, view));
    if (servers.second != 0) request.set_from(ServerName(servers.second, view));
    const auto begun =
        ChangeAndWait<v1::MovePartitionsResponse>(coordinator, "MovePartitions", request);
    if (!begun.ok()) return begun.status();
  }
  return absl::OkStatus();
}

struct RebalanceProgress {
  size_t moving = 0, moved = 0;
  uint64_t bytes = 0;                                  // of those that have moved
  std::map<std::string, std::vector<int64_t>> failed;  // partitions by reason
};

RebalanceProgress ProgressOf(const BalancePlan& plan, const v1::ClusterView& names,
                             const v1::ClusterView& view) {
  RebalanceProgress progress;
  for (const BalanceMove& move : plan.moves) {
    if (move.partition >= static_cast<uint32_t>(view.partitions_size())) continue;
    const v1::Partition& p = view.partitions(static_cast<int>(move.partition));
    const bool there = move.primary ? p.primary() == move.to : HasFollower(p, move.to);
    if (p.move_to() == move.to || (there && p.unwanted() != 0)) {
      ++progress.moving;
    } else if (there) {
      ++progress.moved;
      progress.bytes += move.bytes;
    } else {
      progress.failed[MoveEndText(p.last_move(), ServerName(move.to, names))].push_back(
          move.partition);
    }
  }
  return progress;
}

// Waits for the end of the moves.
absl::StatusOr<RebalanceProgress> AwaitMoves(const BalancePlan& plan, const v1::ClusterView& names,
                                             ClusterReader* reader, ProgressLine* line) {
  while (true) {
    const absl::StatusOr<ClusterState> state = ReadOrWait(reader, line);
    if (!state.ok()) return Interrupted(state.status(), kGoesOn);
    RebalanceProgress progress = ProgressOf(plan, names, state->view);
    if (progress.moving == 0) return progress;
    line->Print(absl::StrCat("rebalancing: ", progress.moved, " of ", plan.moves.size(), " moves, ",
                             Bytes(progress.bytes), " of ", Bytes(plan.bytes)));
    if (absl::Status slept = reader->Sleep(kBetweenMoveReads); !slept.ok()) {
      return Interrupted(slept, kGoesOn);
    }
  }
}

absl::StatusOr<MoveReport> ApplyPlan(const RebalanceOptions& options, bool json,
                                     const Coordinator& coordinator, ClusterReader* reader) {
  MoveReport report;
  ProgressLine line;
  size_t moved = 0, stayed = 0;
  uint64_t bytes = 0;
  std::string result;
  double first = 0, last = 0;
  bool balanced = false;  // when last measured
  for (size_t round = 0; round < kMostRounds; ++round) {
    // Before the first moves there is nothing to wait for.
    const absl::StatusOr<ClusterState> state =
        round == 0 ? reader->Read(/*with_servers=*/true) : ReadLoad(reader, &line);
    if (!state.ok()) return round == 0 ? state.status() : Interrupted(state.status(), kGoesOn);
    if (NothingPlaced(state->view)) {
      report.done = balanced = true;
      result = kNothingPlaced;
      break;
    }
    if (absl::Status status = server::MayBalance(state->view); !status.ok()) return status;
    const absl::StatusOr<BalancePlan> plan = PlanFor(*state);
    if (!plan.ok()) return plan.status();
    if (round == 0) first = plan->before;
    last = plan->before;
    balanced = plan->balanced();
    if (plan->balanced() || plan->moves.empty()) {
      report.done = balanced;
      result = round == 0
                   ? Summary(*plan)
                   : absl::StrCat(report.done ? "balanced: " : "not balanced: ", moved, " moves, ",
                                  Bytes(bytes), "; ", Differ(plan->before, plan->primaries_before),
                                  Rest(plan->before, plan->primaries_before));
      break;
    }
    if (absl::Status begun = BeginMoves(*plan, state->view, coordinator); !begun.ok()) return begun;
    if (options.no_wait) {
      report.done = true;
      result = absl::StrCat(CountOfPartitions(plan->moves.size()), " will be moved, ",
                            Bytes(plan->bytes));
      break;
    }
    const absl::StatusOr<RebalanceProgress> progress =
        AwaitMoves(*plan, state->view, reader, &line);
    if (!progress.ok()) return progress.status();
    moved += progress->moved;
    bytes += progress->bytes;
    for (const auto& [reason, which] : progress->failed) {
      stayed += which.size();
      absl::StrAppend(&report.err, "verbena: ", CountOfPartitions(which.size()), " (",
                      Ranges(which), ") stayed: ", reason, "\n");
    }
    result = absl::StrCat(CountOfPartitions(moved), " moved, ", Bytes(bytes));
    if (stayed > 0) break;
    if (round + 1 == kMostRounds) absl::StrAppend(&result, "; run it again");
  }
  if (json) {
    JsonWriter out;
    out.Add("balanced", balanced);
    out.Add("imbalance", first);
    out.Add("imbalance_after", last);
    out.Add("moved", static_cast<uint64_t>(moved));
    out.Add("stayed", static_cast<uint64_t>(stayed));
    out.Add("bytes", bytes);
    report.out = out.ToString() + "\n";
  }
  absl::StrAppend(&report.err, "verbena: ", result, "\n");
  return report;
}

absl::StatusOr<MoveReport> CancelMoves(bool json, const Coordinator& coordinator,
                                       ClusterReader* reader) {
  const absl::StatusOr<ClusterState> state = reader->Read(/*with_servers=*/false);
  if (!state.ok()) return state.status();
  v1::MovePartitionsRequest request;
  for (const v1::Partition& partition : state->view.partitions()) {
    if (partition.move_to() != 0) request.add_partitions(partition.id());
  }
  size_t cancelled = 0;
  if (!request.partitions().empty()) {
    request.set_request_id(NewRequestId());
    request.set_cancel(true);
    const auto ended =
        ChangeAndWait<v1::MovePartitionsResponse>(coordinator, "MovePartitions", request);
    // They may have ended meanwhile.
    if (!ended.ok() && !absl::IsFailedPrecondition(ended.status())) return ended.status();
    if (ended.ok()) cancelled = static_cast<size_t>(ended->partitions_size());
  }
  MoveReport report;
  report.done = true;
  report.err = cancelled == 0 ? "verbena: no move is in progress\n"
                              : absl::StrCat("verbena: the moves of ", CountOfPartitions(cancelled),
                                             " are cancelled\n");
  if (json) {
    JsonWriter out;
    out.Add("cancelled", static_cast<uint64_t>(cancelled));
    report.out = out.ToString() + "\n";
  }
  return report;
}

}  // namespace

void AddRebalance(CLI::App* command, RebalanceOptions* options) {
  CLI::Option* plan =
      command->add_flag("--plan", options->plan, "Print the moves and change nothing");
  CLI::Option* apply = command->add_flag("--apply", options->apply, "Carry out the moves");
  CLI::Option* cancel =
      command->add_flag("--cancel", options->cancel, "End all moves that are in progress");
  plan->excludes(apply)->excludes(cancel);
  apply->excludes(cancel);
  command->add_flag("--no-wait", options->no_wait, "Return when the coordinator has begun")
      ->needs(apply);
  command->callback([=] {
    if (!options->plan && !options->apply && !options->cancel) {
      throw CLI::RequiredError("--plan, --apply or --cancel");
    }
  });
}

namespace {

absl::StatusOr<server::BalanceInput> InputOf(const ClusterState& state) {
  if (absl::Status status = server::MayPlanBalance(state.view); !status.ok()) return status;
  server::ServerReports reports;
  for (const ServerState& server : state.servers) {
    if (server.server.state() == v1::Server::SILENT) continue;
    if (!server.statistics.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("rebalance: server '", Printable(server.server.name()),
                       "' is alive and has not reported its load (",
                       server.statistics.status().message(), "); try again"));
    }
    reports[server.server.incarnation()] = *server.statistics;
  }
  std::set<uint64_t> full;
  for (const v1::FullServer& server : state.full_servers) full.insert(server.incarnation());
  return server::BalanceInputOf(state.view, reports, full);
}

}  // namespace

absl::StatusOr<BalancePlan> PlanFor(const ClusterState& state) {
  const absl::StatusOr<server::BalanceInput> input = InputOf(state);
  if (!input.ok()) return input.status();
  return server::PlanBalance(*input, {});
}

absl::StatusOr<BalancePlan> WholePlanFor(const ClusterState& state) {
  const absl::StatusOr<server::BalanceInput> input = InputOf(state);
  if (!input.ok()) return input.status();
  return server::PlanAllRounds(*input, {}, kMostRounds);
}

std::string PlanText(const BalancePlan& plan, const ClusterState& state) {
  constexpr auto kRight = TextTable::Align::kRight;
  std::string text = Summary(plan) + "\n" + Notes(plan, state.view) + "\n";
  TextTable servers({{"SERVER"},
                     {"LIMIT", kRight},
                     {"BYTES", kRight},
                     {"OF SHARE", kRight},
                     {"AFTER", kRight},
                     {"OF SHARE", kRight},
                     {"PRIMARIES", kRight},
                     {"BYTES", kRight},
                     {"AFTER", kRight},
                     {"BYTES", kRight}});
  for (const server::ServerBalance& server : plan.servers) {
    servers.AddRow({Printable(ServerName(server.server, state.view)),
                    server.memory_limit == 0 ? "none" : Bytes(server.memory_limit),
                    Bytes(server.bytes_before), Apart(server.load_before),
                    Bytes(server.bytes_after), Apart(server.load_after),
                    absl::StrCat(server.primaries_before), Bytes(server.primary_before),
                    absl::StrCat(server.primaries_after), Bytes(server.primary_after)});
  }
  absl::StrAppend(&text, servers.ToString());
  if (plan.balanced() || plan.moves.empty()) return text;
  TextTable moves(
      {{"ROUND", kRight}, {"PARTITION", kRight}, {"REPLICA"}, {"FROM"}, {"TO"}, {"BYTES", kRight}});
  for (const BalanceMove& move : plan.moves) {
    moves.AddRow({absl::StrCat(move.round), absl::StrCat(move.partition), Role(move),
                  Printable(ServerName(move.from, state.view)),
                  Printable(ServerName(move.to, state.view)), Bytes(move.bytes)});
  }
  return absl::StrCat(text, "\n", moves.ToString());
}

absl::StatusOr<MoveReport> RunRebalance(const RebalanceOptions& options, bool json,
                                        const Coordinator& coordinator, ClusterReader* reader) {
  if (options.cancel) return CancelMoves(json, coordinator, reader);
  reader->WantPartitions();
  if (options.apply) return ApplyPlan(options, json, coordinator, reader);
  const absl::StatusOr<ClusterState> state = reader->Read(/*with_servers=*/true);
  if (!state.ok()) return state.status();
  if (NothingPlaced(state->view)) {
    BalancePlan none;
    none.rounds = 0;
    MoveReport report;
    report.done = true;
    report.out =
        json ? PlanJson(none, *state).ToString() + "\n" : absl::StrCat(kNothingPlaced, "\n");
    return report;
  }
  absl::StatusOr<BalancePlan> plan = WholePlanFor(*state);
  if (!plan.ok()) return plan.status();
  // One within the bound is left alone.
  if (plan->balanced()) {
    plan->moves.clear();
    plan->rounds = 0;
    plan->bytes = 0;
    plan->after = plan->before;
    plan->primaries_after = plan->primaries_before;
    for (server::ServerBalance& server : plan->servers) {
      server.bytes_after = server.bytes_before;
      server.primary_after = server.primary_before;
      server.primaries_after = server.primaries_before;
      server.load_after = server.load_before;
    }
  }
  MoveReport report;
  report.done = true;
  report.out = json ? PlanJson(*plan, *state).ToString() + "\n" : PlanText(*plan, *state);
  return report;
}

}  // namespace verbena::cli
