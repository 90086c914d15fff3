#include "server/cli/verbena/coordinator_command.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "proto/base/json.h"
#include "rdma/base/clock.h"
#include "server/cli/etcd_options.h"
#include "server/cli/verbena/seen_coordinator.h"
#include "server/cli/verbena/text_table.h"
#include "server/coordinator/etcd/etcd_store.h"
#include "server/coordinator/etcd/leader_election.h"
#include "server/coordinator/sqlite_store.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::cli {
namespace {

using server::CoordinatorState;
using server::EtcdStore;
using server::LeaderElection;
using server::SqliteStore;
using server::StateChange;

// For the key of the leader: a former one's lease may have to end first.
constexpr absl::Duration kElectionTime = absl::Seconds(10);
constexpr absl::Duration kLongestMove = absl::Minutes(10);

JsonWriter SeenJson(const SeenCoordinator& seen) {
  JsonWriter json;
  json.Add("address", seen.address);
  json.Add("state", seen.state);
  json.Add("leader", seen.leader);
  json.Add("term", seen.term);
  json.Add("problem", seen.problem);
  return json;
}

// Holds the leader's key while it exists.
class Leadership {
 public:
  static absl::StatusOr<std::unique_ptr<Leadership>> Get(const server::EtcdOptions& options,
                                                         const Clock* clock) {
    std::unique_ptr<Leadership> held(new Leadership);
    auto election = LeaderElection::Create(options, clock, [] {});
    if (!election.ok()) return election.status();
    held->election_ = *std::move(election);
    held->election_->Start("verbena coordinator (a command)");
    const absl::Time end = absl::Now() + kElectionTime;
    for (;;) {
      const LeaderElection::Seat seat = held->election_->seat();
      if (held->election_->Leads(seat.create_revision)) {
        held->create_revision_ = seat.create_revision;
        return held;
      }
      // A coordinator that has just ended may have left its key.
      if (absl::Now() > end) {
        if (!seat.problem.ok()) return seat.problem;
        return absl::FailedPreconditionError(
            absl::StrCat("coordinator ", Printable(seat.leader), " leads by this etcd (prefix ",
                         options.prefix, "); stop all coordinators first"));
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
  }

  EtcdStore::Leadership ForStore() const {
    return {create_revision_, [this] { return election_->UntilNanos(create_revision_); }};
  }

 private:
  Leadership() = default;
  std::unique_ptr<LeaderElection> election_;
  int64_t create_revision_ = 0;
};

// All of a state, answers included, as one save.
absl::Status SaveWhole(const CoordinatorState& state, server::Store* store) {
  const v1::ViewChange same;
  std::vector<StateChange> changes(1);
  for (const CoordinatorState::Answered& answered : state.answered) {
    changes.push_back({.view = &same, .gone_members = {}, .access = false, .answered = &answered});
  }
  return store->SaveAll(state, changes);
}

bool IsEmpty(const CoordinatorState& state) { return state.view.cluster_id().empty(); }

absl::Status Import(const CoordinatorState& state, EtcdStore* etcd, const std::string& prefix) {
  if (!etcd->empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("etcd has a coordinator's state below ", prefix,
                     "; nothing was changed. Name another --etcd-prefix, or remove that state if "
                     "it is of no use "
                     "(etcdctl del --prefix ",
                     prefix, ")"));
  }
  return SaveWhole(state, etcd);
}

}  // namespace

std::vector<CLI::App*> AddCoordinatorActions(CLI::App* command, CoordinatorAction* raw,
                                             bool* json) {
  using Action = CoordinatorAction::Action;
  command->require_subcommand(1);
  CLI::App* list =
      command->add_subcommand("list", "List the coordinators that --cluster names, and the leader");
  list->callback([raw] { raw->action = Action::kList; });
  const auto add = [&](const char* name, const char* about, Action action, const char* state) {
    CLI::App* moves = command->add_subcommand(name, about);
    moves->add_option("--state", raw->state, state)->type_name("DIR")->required();
    server::AddEtcdOptions(moves, &raw->etcd, false);
    moves->get_option("--etcd")->required();
    moves->add_flag("--insecure", raw->insecure, "Allow --etcd beyond this host without TLS");
    moves->add_flag("--json", *json, "Print one JSON object on one line, for programs");
    moves->callback([raw, action] {
      raw->action = action;
      if (const std::string wrong = server::CheckEtcdOptions(raw->etcd, raw->insecure);
          !wrong.empty()) {
        throw CLI::ValidationError(wrong);
      }
    });
  };
  add("import-sqlite", "Copy a coordinator's state from its --state directory into an empty etcd",
      Action::kImportSqlite, "State directory of the coordinator, which must be stopped");
  add("export", "Copy the coordinators' state from etcd into a new --state directory",
      Action::kExport, "New state directory, for one coordinator without etcd");
  return {list};
}

absl::StatusOr<CoordinatorReport> ListCoordinators(bool json, const Coordinator& coordinator) {
  CoordinatorReport report;
  report.leads = false;
  JsonArray array;
  TextTable table{{"ADDRESS"}, {"STATE"}, {"LEADER"}, {"TERM"}, {"PROBLEM"}};
  for (const std::string& address :
       std::vector<std::string>(absl::StrSplit(coordinator.address, ','))) {
    const absl::StatusOr<SeenCoordinator> seen = LookAt(address, coordinator);
    if (!seen.ok()) return seen.status();
    report.leads |= seen->leads();
    array.Add(SeenJson(*seen));
    table.AddRow({Printable(seen->address), seen->state,
                  seen->leader.empty() ? "-" : Printable(seen->leader),
                  !seen->leads() ? "-" : absl::StrCat(seen->term),
                  seen->problem.empty() ? "-" : seen->problem});
  }
  if (json) {
    JsonWriter all;
    all.Add("coordinators", array);
    report.out = all.ToString() + "\n";
  } else {
    report.out = table.ToString();
  }
  return report;
}

absl::StatusOr<CoordinatorReport> MoveState(const CoordinatorAction& action, bool json) {
  const bool imports = action.action == CoordinatorAction::Action::kImportSqlite;
  const MonotonicClock clock;
  // Locks the directory: no coordinator uses it.
  absl::StatusOr<std::unique_ptr<SqliteStore>> sqlite = SqliteStore::Open(action.state);
  if (!sqlite.ok()) return sqlite.status();
  absl::StatusOr<CoordinatorState> on_disk = (*sqlite)->Load();
  if (!on_disk.ok()) return on_disk.status();
  if (imports == IsEmpty(*on_disk)) {
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", Printable(action.state),
                     imports ? " has no coordinator's state; name the --state of the coordinator"
                             : " has a coordinator's state; name a new directory"));
  }
  absl::StatusOr<std::unique_ptr<Leadership>> leadership = Leadership::Get(action.etcd, &clock);
  if (!leadership.ok()) return leadership.status();
  absl::StatusOr<std::unique_ptr<server::EtcdClient>> client =
      server::EtcdClient::Create(action.etcd);
  if (!client.ok()) return client.status();
  EtcdStore etcd(client->get(), &clock, (*leadership)->ForStore(), {.longest = kLongestMove});
  absl::StatusOr<CoordinatorState> in_etcd = etcd.Load();
  if (!in_etcd.ok()) return in_etcd.status();
  if (!imports && etcd.empty()) {
    return absl::NotFoundError(absl::StrCat("etcd has no coordinator's state below ",
                                            action.etcd.prefix, "; is --etcd-prefix right?"));
  }
  const CoordinatorState& state = imports ? *on_disk : *in_etcd;
  const absl::Status saved =
      imports ? Import(state, &etcd, action.etcd.prefix) : SaveWhole(state, sqlite->get());
  if (!saved.ok()) return saved;
  CoordinatorReport report;
  if (json) {
    JsonWriter all;
    all.Add("cluster_id", state.view.cluster_id());
    all.Add("term", state.view.term());
    all.Add("revision", state.view.revision());
    all.Add("tables", static_cast<uint64_t>(state.view.tables_size()));
    all.Add("state", action.state);
    all.Add("prefix", action.etcd.prefix);
    report.out = all.ToString() + "\n";
  }
  report.err = absl::StrCat(
      "verbena: cluster ", Printable(state.view.cluster_id()), ", revision ", state.view.revision(),
      " of term ", state.view.term(), ", ", state.view.tables_size(), " tables: copied to ",
      imports
          ? absl::StrCat("etcd below ", action.etcd.prefix, "; start no coordinator on ",
                         Printable(action.state), " any more")
          : absl::StrCat(Printable(action.state), "; start no coordinator on that etcd any more"),
      "\n");
  return report;
}

}  // namespace verbena::cli
