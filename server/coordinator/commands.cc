#include "server/coordinator/commands.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/control/view_difference.h"
#include "proto/control/view_tables.h"
#include "proto/protocol_version.h"
#include "proto/spec/table_spec.h"
#include "server/coordinator/admissions.h"
#include "server/coordinator/failpoints.h"
#include "server/coordinator/job_limits.h"
#include "server/coordinator/jobs.h"
#include "server/coordinator/placement.h"
#include "server/coordinator/protocol_rules.h"
#include "server/coordinator/validation.h"

namespace verbena::server {
namespace {

absl::Status CheckEnoughServers(const CoordinatorOptions& options, const v1::ClusterView& view) {
  const uint32_t alive = AliveServers(view);
  if (alive >= options.expected_servers) return absl::OkStatus();
  std::string silent;
  for (const v1::Server& server : view.servers()) {
    if (server.state() == v1::Server::SILENT) {
      absl::StrAppend(&silent, silent.empty() ? "; silent: " : ", ", server.name());
    }
  }
  return absl::UnavailableError(absl::StrCat(alive, " of ", options.expected_servers,
                                             " expected servers have joined", silent));
}

// One norm has one limit.
absl::Status CheckGlobalNorm(const v1::TableSpec& spec, uint32_t replaced, const ViewEditor& view) {
  const double wanted = spec.optimizer().clip_global_norm();
  if (wanted == 0) return absl::OkStatus();
  const auto& norms = view.SumsOf(spec.job()).norms;
  if (norms.empty() || (norms.size() == 1 && norms.contains(wanted))) return absl::OkStatus();
  for (const auto& [id, existing] : view.TablesOf(spec.job())) {
    const double value = existing->spec().optimizer().clip_global_norm();
    if (value == 0 || value == wanted || id == replaced) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "table '", spec.name(), "': optimizer.clip_global_norm is ", wanted, "; allowed: ", value,
        ", as in table '", existing->spec().name(), "' of the same job '", spec.job(),
        "', or 0: the gradients of these tables are clipped by one norm"));
  }
  return absl::OkStatus();
}

// A partition may come to any server, so all of them need a disk for rows that are not in memory.
absl::Status CheckColdTier(const v1::TableSpec& spec, const v1::ClusterView& view) {
  if (spec.cold_tier().hot_bytes() == 0 || VERBENA_FAILPOINT(server, cold_tier_anywhere)) {
    return absl::OkStatus();
  }
  std::string without;
  for (const v1::Server& server : view.servers()) {
    if (server.cold_tier() || server.state() != v1::Server::ALIVE) continue;
    absl::StrAppend(&without, without.empty() ? "" : ", ", server.name());
  }
  if (without.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "table '", spec.name(), "': cold_tier.hot_bytes is ", spec.cold_tier().hot_bytes(),
      ", but these servers have no --cold-dir: ", without,
      "; start them with --cold-dir DIR, or leave hot_bytes 0"));
}

// Refuses to drop a table that workers use; for requests with only_unused.
absl::Status CheckUnused(const v1::Table& table, const char* done, const ViewEditor& view) {
  if (VERBENA_FAILPOINT(server, drop_used)) return absl::OkStatus();
  const v1::Job* job = view.FindJob(table.spec().job());
  if (job == nullptr || !HasWorkers(*job)) return absl::OkStatus();
  const auto workers = std::count_if(job->members().begin(), job->members().end(),
                                     [](const v1::Worker& w) { return w.rank() >= 0; });
  return absl::FailedPreconditionError(
      absl::StrCat("table '", table.spec().name(), "' is used by ", workers,
                   workers == 1 ? " worker" : " workers", " of job '", job->name(),
                   "', and was not ", done, "; end them first, or agree to that (--yes)"));
}

// The reason for which a valid specification cannot become a table now.
absl::Status CheckNewTable(const v1::TableSpec& spec, uint32_t replaced,
                           const CoordinatorOptions& options, const CoordinatorState& state,
                           const ViewEditor& view) {
  if (absl::Status status = CheckEnoughServers(options, view.view()); !status.ok()) return status;
  if (absl::Status status = CheckGlobalNorm(spec, replaced, view); !status.ok()) return status;
  if (absl::Status status = CheckColdTier(spec, view.view()); !status.ok()) return status;
  if (spec.consistency() == v1::CONSISTENCY_SYNC) {
    absl::Status status = CheckJobOfSyncTable(spec, view);
    if (!status.ok()) return status;
  }
  if (state.next_table == std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError("all 2^32 table ids have been used");
  }
  return absl::OkStatus();
}

// A ticket is good for so much of a lease: longer than an answer and the next request take, shorter
// than a process takes to die and come back.
constexpr int64_t kTicketsPerLease = 8;

bool TakesRole(const v1::ConfigurationChange& change) {
  return change.kind() == v1::ConfigurationChange::DROP_REPLICA ||
         change.kind() == v1::ConfigurationChange::PROMOTE ||
         change.kind() == v1::ConfigurationChange::HAND_OVER;
}

bool IsRecent(const v1::ReconfigureTicket& ticket, const v1::ReconfigureTicket& now,
              int64_t good_ns) {
  if (VERBENA_FAILPOINT(server, make_late_changes)) return true;
  return ticket.term() == now.term() && ticket.issued_ns() <= now.issued_ns() &&
         now.issued_ns() - ticket.issued_ns() <= good_ns;
}

constexpr size_t kLongestRestoreTask = 200;
constexpr size_t kTablesNamed = 10;

absl::Status CheckRestoreTask(const std::string& restorer) {
  const bool printable = std::all_of(restorer.begin(), restorer.end(),
                                     [](unsigned char c) { return c >= ' ' && c <= '~'; });
  if (printable && restorer.size() <= kLongestRestoreTask) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("restorer has ", restorer.size(),
                                                 " bytes; allowed: at most ", kLongestRestoreTask,
                                                 " printable ASCII characters"));
}

// The table that a new one of this name takes the place of; null: there is none.
absl::StatusOr<const v1::Table*> TableToReplace(const v1::CreateTableRequest& request,
                                                const std::string& name,
                                                const CoordinatorOptions& options,
                                                const ViewEditor& view) {
  if (absl::Status status = CheckRestoreTask(request.restorer()); !status.ok()) return status;
  if (const v1::Table* other = view.FindTable(name, true)) {
    return absl::FailedPreconditionError(
        absl::StrCat(BeingRestored(*other),
                     "; wait for its end. (If that program ends early the coordinator drops its "
                     "tables, ",
                     RestoreLeaseMillis(options) / 1000.0, " s after its last call)"));
  }
  const v1::Table* served = view.FindTable(name, false);
  if (served != nullptr && request.replace() && request.only_unused()) {
    if (absl::Status unused = CheckUnused(*served, "replaced", view); !unused.ok()) return unused;
  }
  if (served == nullptr || request.replace()) return served;
  return absl::AlreadyExistsError(
      absl::StrCat("there is a table '", name, "' of job '", served->spec().job(), "'"));
}

// By its name: the one that is served, else the one that is being restored.
const v1::Table* FindNamed(const std::string& name, const ViewEditor& view) {
  const v1::Table* served = view.FindTable(name, false);
  return served != nullptr ? served : view.FindTable(name, true);
}

}  // namespace

absl::StatusOr<Effect> AddServer(const v1::JoinServerRequest& request,
                                 const CoordinatorOptions& options, CoordinatorState* state,
                                 ViewEditor* view, v1::JoinServerResponse* response) {
  if (absl::Status status = CheckJoinServer(request); !status.ok()) return status;
  if (absl::Status status = CheckServerProtocol(request, view->view()); !status.ok()) return status;
  v1::Server joined;
  joined.set_incarnation(state->next_incarnation++);
  joined.set_name(request.name());
  joined.set_address(request.address());
  joined.set_shards(request.shards());
  joined.set_state(v1::Server::ALIVE);
  joined.set_zone(request.zone());
  joined.set_cold_tier(request.cold_tier());
  joined.set_memory_bytes(request.memory_bytes());
  SetProtocols(ProtocolsOf(request.protocol()), joined.mutable_protocol());
  joined.set_version(request.version());
  response->set_incarnation(joined.incarnation());
  response->set_lease_ms(options.lease_ms);
  for (v1::Server& server : *view->EditServers()) {
    if (server.name() != request.name()) continue;
    if (server.state() == v1::Server::ALIVE && server.address() != request.address()) {
      return absl::AlreadyExistsError(absl::StrCat(
          "server '", server.name(), "' is alive at ", server.address(),
          "; replacing it would lose its data. Use another --name, or stop it: its name is free "
          "when its lease (",
          options.lease_ms, " ms) has ended"));
    }
    ReplaceServer(server.incarnation(), joined, view);
    server = std::move(joined);
    return Effect::kChanged;
  }
  *view->EditServers()->Add() = std::move(joined);
  return Effect::kChanged;
}

absl::StatusOr<Effect> AddWorker(const v1::JoinWorkerRequest& request, const std::string& token,
                                 const CoordinatorOptions& options, CoordinatorState* state,
                                 ViewEditor* view, v1::JoinWorkerResponse* response) {
  v1::JoinWorkerRequest named = request;
  if (named.job().empty()) named.set_job("default");
  if (absl::Status status = CheckName("job", named.job()); !status.ok()) return status;
  if (!named.name().empty()) {
    if (absl::Status status = CheckName("worker name", named.name()); !status.ok()) return status;
  }
  if (absl::Status s = CheckWorkerProtocol(request, options, view->view()); !s.ok()) return s;
  const uint64_t incarnation = state->next_incarnation++;
  v1::Worker member;
  member.set_incarnation(incarnation);
  member.set_token(token);
  member.set_may_write(true);
  for (const v1::Token& known : state->access.tokens()) {
    if (known.id() != token) continue;
    member.set_only_job(known.job());
    member.set_may_write(known.role() != v1::ROLE_READ_ONLY);
  }
  const absl::StatusOr<int32_t> rank = AdmitWorker(named, std::move(member), view);
  if (!rank.ok()) return rank.status();
  response->set_incarnation(incarnation);
  response->set_rank(*rank);
  response->set_lease_ms(options.lease_ms);
  return Effect::kChanged;
}

absl::StatusOr<Effect> RemoveMember(uint64_t incarnation, CoordinatorState* state,
                                    ViewEditor* view) {
  if (incarnation == 0 || incarnation >= state->next_incarnation) {
    return absl::NotFoundError(absl::StrCat("incarnation ", incarnation, " was never given out"));
  }
  if (const v1::Server* server = FindServer(incarnation, view->view())) {
    if (server->state() == v1::Server::SILENT) return Effect::kNone;
    SetServerState(incarnation, v1::Server::SILENT, view);
    return Effect::kChanged;
  }
  return RetireWorker(incarnation, view) ? Effect::kChanged : Effect::kNone;
}

absl::StatusOr<Effect> AddTable(const v1::CreateTableRequest& request,
                                const CoordinatorOptions& options, CoordinatorState* state,
                                ViewEditor* view, v1::Table* table) {
  v1::TableSpec wanted = request.spec();
  if (wanted.job().empty()) wanted.set_job("default");
  absl::StatusOr<v1::TableSpec> spec = NormalizeTableSpec(std::move(wanted));
  if (!spec.ok()) return spec.status();
  if (options.check_optimizer) {
    absl::Status status = options.check_optimizer(*spec);
    if (!status.ok()) return status;
  }
  // Only a restore knows that values were changed: others are compared with them.
  if (!request.restoring() && spec->optimizer().changed()) {
    spec->mutable_optimizer()->clear_changed();
  }
  uint32_t replaced = 0;
  if (request.restoring()) {
    const absl::StatusOr<const v1::Table*> other =
        TableToReplace(request, spec->name(), options, *view);
    if (!other.ok()) return other.status();
    if (*other != nullptr) replaced = (*other)->id();
  } else if (const v1::Table* served = view->FindTable(spec->name(), false)) {
    if (absl::Status status = CheckSameSpec(served->spec(), *spec); !status.ok()) return status;
    *table = *served;
    return Effect::kNone;
  } else if (const v1::Table* other = view->FindTable(spec->name(), true)) {
    return absl::UnavailableError(
        absl::StrCat(BeingRestored(*other), "; it is there when all of it is loaded"));
  }
  absl::Status status = CheckNewTable(*spec, replaced, options, *state, *view);
  if (!status.ok()) return status;
  if (VERBENA_FAILPOINT(server, replace_at_once)) view->RemoveTable(replaced);
  if (view->view().tables_size() == 0) PlaceAllPartitions(view);
  table->set_id(state->next_table++);
  *table->mutable_spec() = *std::move(spec);
  if (options.changeable_values) {
    for (v1::OptimizerValue& value : options.changeable_values(table->spec().optimizer())) {
      *table->add_optimizer_values() = std::move(value);
    }
  }
  if (options.state_arrays) {
    for (std::string& name : options.state_arrays(table->spec())) {
      *table->add_optimizer_state() = std::move(name);
    }
  }
  table->set_restoring(request.restoring());
  if (request.restoring()) {
    table->set_restored_steps(request.restored_steps());
    table->set_restorer(request.restorer());
    table->set_replaces(replaced);
  }
  absl::Status allowed = CheckLimits(*table, options.chunk_memory, *view);
  if (allowed.ok()) allowed = CheckServerMemory(*table, options.chunk_memory, *view);
  if (!allowed.ok()) return allowed;
  view->AddTable(*table);
  BeginTable(*table, request.ended_steps(), view);
  return Effect::kChanged;
}

absl::StatusOr<Effect> FinishRestore(const v1::FinishRestoreRequest& request, ViewEditor* view) {
  Effect effect = Effect::kNone;
  for (const uint32_t id : request.tables()) {
    const v1::Table* table = view->FindTable(id);
    if (table == nullptr) return absl::NotFoundError(absl::StrCat("there is no table ", id));
    if (!table->restoring()) continue;
    const v1::Table* served = view->FindTable(table->spec().name(), false);
    if (served != nullptr && served->id() != table->replaces()) {
      return absl::AlreadyExistsError(absl::StrCat("there is a table '", served->spec().name(),
                                                   "' of job '", served->spec().job(), "'"));
    }
    if (served != nullptr && request.only_unused()) {
      absl::Status unused = CheckUnused(*served, "replaced", *view);
      if (!unused.ok()) return unused;
    }
    if (served != nullptr) view->RemoveTable(served->id());
    view->SetServed(id);
    effect = Effect::kChanged;
  }
  return effect;
}

absl::StatusOr<Effect> RemoveTable(const v1::DropTableRequest& request, ViewEditor* view) {
  const v1::Table* table =
      request.id() != 0 ? view->FindTable(request.id()) : FindNamed(request.name(), *view);
  if (table == nullptr) {
    const std::string name = request.name().empty() ? "" : absl::StrCat(" '", request.name(), "'");
    const std::string id = request.id() == 0 ? "" : absl::StrCat(" with id ", request.id());
    return absl::NotFoundError(absl::StrCat("there is no table", name, id));
  }
  const bool by_name = VERBENA_FAILPOINT(server, drop_by_name);
  if (by_name) table = FindNamed(table->spec().name(), *view);
  if (request.only_restoring() && !table->restoring() && !by_name) {
    return absl::FailedPreconditionError(
        absl::StrCat("table '", table->spec().name(), "' is served, not being restored"));
  }
  if (request.only_unused() && !table->restoring()) {
    absl::Status unused = CheckUnused(*table, "dropped", *view);
    if (!unused.ok()) return unused;
  }
  view->RemoveTable(table->id());
  return Effect::kChanged;
}

absl::StatusOr<Effect> AdmitMembers(const v1::AdmitMembersRequest& request, ViewEditor* view) {
  const v1::Job* job = view->JobOf(request.incarnation());
  const v1::Worker* caller = job == nullptr ? nullptr : FindMember(request.incarnation(), *job);
  if (caller == nullptr || caller->rank() < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation is ", request.incarnation(),
                     "; allowed: a worker's that takes part in a run of its job"));
  }
  return Admit(request, view) ? Effect::kChanged : Effect::kNone;
}

absl::StatusOr<Effect> ForgetJob(const v1::ForgetJobRequest& request, ViewEditor* view) {
  const v1::Job* job = view->FindJob(request.job());
  if (job == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no job '", request.job(), "'"));
  }
  if (job->members_size() > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", job->name(), "' has ", job->members_size(),
                     " members (workers and observers): end them first"));
  }
  std::vector<std::string> tables;
  for (const auto& [id, table] : view->TablesOf(job->name())) {
    tables.push_back(table->spec().name());
  }
  if (!tables.empty()) {
    const size_t more = tables.size() > kTablesNamed ? tables.size() - kTablesNamed : 0;
    tables.resize(tables.size() - more);
    return absl::FailedPreconditionError(
        absl::StrCat("job '", job->name(), "' has tables (", absl::StrJoin(tables, ", "),
                     more > 0 ? absl::StrCat(" and ", more, " more") : "",
                     "): drop them first ('verbena table drop')"));
  }
  view->EditJob(request.job())->clear_limits();
  view->RemoveIfEnded(request.job());
  return Effect::kChanged;
}

absl::StatusOr<Effect> RemoveServer(const v1::RemoveServerRequest& request, CoordinatorState* state,
                                    ViewEditor* view, v1::RemoveServerResponse* response) {
  if (absl::Status status = CheckName("server name", request.name()); !status.ok()) return status;
  const auto& servers = state->view.servers();
  const auto it = std::find_if(servers.begin(), servers.end(),
                               [&](const v1::Server& s) { return s.name() == request.name(); });
  if (it == servers.end()) {
    return absl::NotFoundError(absl::StrCat("there is no server '", request.name(), "'"));
  }
  if (it->state() == v1::Server::ALIVE) {
    return absl::FailedPreconditionError(
        absl::StrCat("server '", request.name(), "' at ", it->address(),
                     " is alive; only a server that is silent can be removed: stop it first"));
  }
  absl::StatusOr<std::vector<std::string>> lost = ForgetServer(it->incarnation(), view);
  if (!lost.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("server '", request.name(), "': ", lost.status().message()));
  }
  for (const std::string& table : *lost) response->add_lost_tables(table);
  return Effect::kChanged;
}

absl::StatusOr<Effect> ResetTable(const v1::ResetTableRequest& request, ViewEditor* view,
                                  v1::ResetTableResponse* response) {
  const v1::Table* table = view->FindTable(request.name(), false);
  if (table == nullptr || (request.id() != 0 && request.id() != table->id())) {
    return absl::NotFoundError(absl::StrCat("there is no table '", request.name(), "'",
                                            request.id() != 0 ? " with id " : "",
                                            request.id() != 0 ? absl::StrCat(request.id()) : ""));
  }
  const auto* lost = &table->lost_partitions();
  std::set<uint32_t> reset(request.partitions().begin(), request.partitions().end());
  for (const uint32_t partition : reset) {
    if (std::find(lost->begin(), lost->end(), partition) != lost->end()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "partition ", partition, " of table '", request.name(),
        "' is not lost; lost are: ", lost->empty() ? "none" : absl::StrJoin(*lost, ", ")));
  }
  const v1::Job* job = view->FindJob(table->spec().job());
  if (job != nullptr && HasWorkers(*job)) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", job->name(), "' of table '", request.name(), "' has workers (",
                     job->members_size(), " members): end them first"));
  }
  if (reset.empty()) reset.insert(lost->begin(), lost->end());
  if (reset.empty()) return Effect::kNone;
  auto* edited = view->EditTable(table->id())->mutable_lost_partitions();
  edited->erase(std::remove_if(edited->begin(), edited->end(),
                               [&](uint32_t partition) { return reset.contains(partition); }),
                edited->end());
  response->mutable_partitions()->Add(reset.begin(), reset.end());
  if (job != nullptr) StartGeneration(view->EditJob(job->name()));
  return Effect::kChanged;
}

absl::StatusOr<Effect> ChangeConfigurations(const v1::ReconfigureRequest& request, int64_t now_ns,
                                            int64_t lease_ns, LearnerBars* bars,
                                            CoordinatorState* state, ViewEditor* view,
                                            v1::ReconfigureResponse* response) {
  const v1::Server* server = FindServer(request.incarnation(), state->view);
  if (server == nullptr || server->state() != v1::Server::ALIVE) {
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation is ", request.incarnation(), ", which is ",
                     server == nullptr ? "no server of this cluster, or none any more" : "silent",
                     "; allowed: a server's that is alive"));
  }
  response->mutable_ticket()->set_term(state->view.term());
  response->mutable_ticket()->set_issued_ns(now_ns);
  const bool recent = IsRecent(request.ticket(), response->ticket(), lease_ns / kTicketsPerLease);
  bool any = false;
  for (const v1::ConfigurationChange& change : request.changes()) {
    if (TakesRole(change) && !recent) {
      response->add_made(false);
      response->set_late(true);
      continue;
    }
    const absl::StatusOr<bool> made =
        Reconfigure(change, request.incarnation(), now_ns, lease_ns, bars, view);
    if (!made.ok()) return made.status();
    response->add_made(*made);
    any |= *made;
  }
  return any ? Effect::kChanged : Effect::kNone;
}

absl::StatusOr<Effect> ChangeLimits(const v1::SetJobLimitsRequest& request, ViewEditor* view) {
  if (absl::Status status = CheckName("job", request.job()); !status.ok()) return status;
  const bool changed = SetLimits(request.job(), request.limits(), view);
  return changed ? Effect::kChanged : Effect::kNone;
}

}  // namespace verbena::server
