#include "server/cli/verbena/move_leader.h"

#include <poll.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "proto/base/json.h"
#include "server/cli/validators.h"
#include "server/cli/verbena/seen_coordinator.h"
#include "server/cli/verbena/text_table.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::cli {
namespace {

constexpr int kPauseMs = 20;
// A standby looks at the leader's key every 100 ms, so it may not know a new leader yet.
constexpr absl::Duration kSettleTime = absl::Seconds(1);

struct Move {
  SeenCoordinator leader;
  std::string successor;
};

std::string Name(const std::string& address) {
  return absl::StrCat("coordinator ", Printable(address));
}

std::string Problems(const std::vector<SeenCoordinator>& all) {
  return absl::StrJoin(all, "; ", [](std::string* out, const SeenCoordinator& seen) {
    absl::StrAppend(out, Printable(seen.address), " ",
                    seen.problem.empty() ? std::string(seen.state) : seen.problem);
  });
}

// Whether it can succeed `leader`; if not, *why has the reason.
bool Follows(const SeenCoordinator& seen, const SeenCoordinator& leader, std::string* why) {
  if (!seen.standby()) {
    *why = absl::StrCat(Name(seen.address), " does not answer: ", seen.problem);
  } else if (seen.leader != leader.address) {
    // It is asked for by the address that it has in etcd, as the leader is.
    *why = absl::StrCat(Name(seen.address), " follows ",
                        seen.leader.empty() ? "no leader" : Name(seen.leader), ", not ",
                        Name(leader.address),
                        "; name coordinators by their own addresses (verbenad --advertise)");
  } else {
    return true;
  }
  return false;
}

absl::Status Pause(const Coordinator& coordinator) {
  pollfd interrupt = {coordinator.interrupt_fd, POLLIN, 0};
  return poll(&interrupt, 1, kPauseMs) > 0 ? absl::CancelledError("interrupted") : absl::OkStatus();
}

// *unsettled: a standby follows another leader, or none.
absl::StatusOr<Move> PlanOnce(const std::string& successor, const Coordinator& coordinator,
                              bool* unsettled) {
  std::vector<std::string> addresses = absl::StrSplit(coordinator.address, ',');
  if (!successor.empty() &&
      std::find(addresses.begin(), addresses.end(), successor) == addresses.end()) {
    addresses.push_back(successor);
  }
  std::vector<SeenCoordinator> all;
  for (const std::string& address : addresses) {
    absl::StatusOr<SeenCoordinator> seen = LookAt(address, coordinator);
    if (!seen.ok()) return seen.status();
    all.push_back(*std::move(seen));
  }
  const auto leader = std::find_if(all.begin(), all.end(),
                                   [](const SeenCoordinator& seen) { return seen.leads(); });
  if (leader == all.end()) {
    return absl::UnavailableError(
        absl::StrCat("no coordinator leads that --cluster names: ", Problems(all)));
  }
  if (successor == leader->address) {
    return absl::FailedPreconditionError(
        absl::StrCat(Name(successor), " leads already; name one of its standbys"));
  }
  std::string why;
  for (const SeenCoordinator& seen : all) {
    if (seen.leads() || (!successor.empty() && seen.address != successor)) continue;
    if (Follows(seen, *leader, &why)) return Move{*leader, seen.address};
    *unsettled |= seen.standby();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      Name(leader->address), " has no ", successor.empty() ? "standby" : "such standby",
      why.empty() ? "" : absl::StrCat(": ", why),
      ". Standbys share the leader's --etcd, and --cluster names all coordinators; one with "
      "--state "
      "has none"));
}

absl::StatusOr<Move> Plan(const std::string& successor, const Coordinator& coordinator) {
  const absl::Time end = absl::Now() + kSettleTime;
  for (;;) {
    bool unsettled = false;
    absl::StatusOr<Move> move = PlanOnce(successor, coordinator, &unsettled);
    if (move.ok() || !unsettled || absl::Now() >= end) return move;
    if (absl::Status paused = Pause(coordinator); !paused.ok()) return paused;
  }
}

// OK: the leader hands over, or its answer is lost.
absl::Status Request(const Move& move, const Coordinator& coordinator) {
  Coordinator leader = coordinator;
  leader.address = move.leader.address;
  v1::MoveLeaderRequest request;
  request.set_successor(move.successor);
  request.set_term(move.leader.term);
  const absl::Status asked =
      CallOnce<v1::MoveLeaderResponse>(leader, "MoveLeader", request, leader.timeout).status();
  if (absl::IsUnimplemented(asked)) {
    return absl::FailedPreconditionError(absl::StrCat(
        Name(leader.address),
        " is of an earlier version, which cannot hand over; stop it (SIGTERM), and a standby leads "
        "at once"));
  }
  if (asked.ok() || absl::IsCancelled(asked) || absl::IsUnavailable(asked) ||
      absl::IsDeadlineExceeded(asked)) {
    return absl::IsCancelled(asked) ? asked : absl::OkStatus();
  }
  return Explain(asked, leader);
}

// The successor, once it leads.
absl::StatusOr<SeenCoordinator> Wait(const Move& move, const Coordinator& coordinator) {
  const absl::Time end = absl::Now() + coordinator.timeout;
  for (;;) {
    const absl::StatusOr<SeenCoordinator> seen = LookAt(move.successor, coordinator);
    if (!seen.ok() || seen->term > move.leader.term) return seen;
    const std::string& other = seen->leader;
    if (!other.empty() && other != move.leader.address && other != move.successor) {
      return absl::UnknownError(
          absl::StrCat(Name(other), " was elected, not ", Name(move.successor)));
    }
    if (absl::Now() >= end) {
      return absl::UnknownError(absl::StrCat(
          Name(move.successor), " does not lead after ", absl::FormatDuration(coordinator.timeout),
          ": ", other.empty() ? seen->problem : absl::StrCat("the leader is ", Printable(other)),
          ". 'verbena coordinator list' shows all; --timeout waits longer"));
    }
    if (absl::Status paused = Pause(coordinator); !paused.ok()) return paused;
  }
}

}  // namespace

void AddMoveLeader(CLI::App* command, std::string* successor) {
  command
      ->add_option("ADDRESS", *successor,
                   "Standby that is to lead, by its own address (default: any that answers)")
      ->type_name("")
      ->check(server::HostPort(true).description(""));
}

absl::StatusOr<MovedLeader> MoveLeader(const std::string& successor, bool json,
                                       const Coordinator& coordinator) {
  const absl::StatusOr<Move> move = Plan(successor, coordinator);
  if (!move.ok()) return move.status();
  const absl::Time began = absl::Now();
  if (absl::Status asked = Request(*move, coordinator); !asked.ok()) return asked;
  const absl::StatusOr<SeenCoordinator> leads = Wait(*move, coordinator);
  if (!leads.ok()) return leads.status();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
  MovedLeader report;
  if (json) {
    JsonWriter answer;
    answer.Add("former_leader", move->leader.address);
    answer.Add("leader", leads->address);
    answer.Add("term", leads->term);
    answer.Add("seconds", seconds);
    report.out = answer.ToString() + "\n";
  }
  report.err = absl::StrCat("verbena: ", Name(leads->address), " leads in place of ",
                            Printable(move->leader.address), ", term ", leads->term, ", after ",
                            Fixed(seconds, 2), " s\n");
  return report;
}

}  // namespace verbena::cli
