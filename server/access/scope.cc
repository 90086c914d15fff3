#include "server/access/scope.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/control/view_difference.h"
#include "proto/control/view_tables.h"
#include "proto/security/role.h"
#include "server/access/shown.h"

namespace verbena::server {
namespace {

// Where requests name no job, as the coordinator has it.
std::string JobName(const std::string& given) { return given.empty() ? "default" : given; }

Scope ScopeOfTable(const std::string& name, const v1::Table* table) {
  if (table == nullptr) return {.about = absl::StrCat("table '", Shown(name), "'")};
  const std::string& job = table->spec().job();
  return {.job = job,
          .about = absl::StrCat("table '", table->spec().name(), "' of job '", job, "'")};
}

}  // namespace

const v1::Server* ViewScan::FindServer(uint64_t incarnation) const {
  const auto& servers = view_.servers();
  const auto it = std::find_if(servers.begin(), servers.end(), [&](const v1::Server& server) {
    return server.incarnation() == incarnation;
  });
  return it == servers.end() ? nullptr : &*it;
}

const v1::Job* ViewScan::JobOf(uint64_t member) const {
  const auto& jobs = view_.jobs();
  const auto it = std::find_if(jobs.begin(), jobs.end(), [&](const v1::Job& job) {
    return FindMember(member, job) != nullptr;
  });
  return it == jobs.end() ? nullptr : &*it;
}

bool ViewScan::HasJob(const std::string& name) const {
  return FindJobNamed(name, view_) != nullptr ||
         std::any_of(view_.tables().begin(), view_.tables().end(),
                     [&](const v1::Table& table) { return table.spec().job() == name; });
}

const v1::Table* ViewScan::FindTable(uint32_t id) const { return FindTableById(id, view_); }

const v1::Table* ViewScan::FindTable(const std::string& name) const {
  return FindTableNamed(name, view_);
}

Scope ScopeOfIncarnation(uint64_t incarnation, const ViewLookup& view) {
  if (const v1::Server* server = view.FindServer(incarnation)) {
    return {.of_server = true, .about = absl::StrCat("server '", server->name(), "'")};
  }
  const v1::Job* job = view.JobOf(incarnation);
  const v1::Worker* worker = job == nullptr ? nullptr : FindMember(incarnation, *job);
  if (worker == nullptr) return {.about = absl::StrCat("incarnation ", incarnation)};
  return {.job = job->name(),
          .observes = worker->rank() < 0,
          .about = absl::StrCat("worker '", worker->name(), "' of job '", job->name(), "'")};
}

namespace {

// Null: it is no member of a job.
const v1::Worker* MemberOf(uint64_t incarnation, const ViewLookup& view) {
  const v1::Job* job = view.JobOf(incarnation);
  return job == nullptr ? nullptr : FindMember(incarnation, *job);
}

// The scope of a call that ends the member, or a lane of it.
Scope ScopeOfEnd(uint64_t incarnation, const ViewLookup& view) {
  Scope scope = ScopeOfIncarnation(incarnation, view);
  const v1::Worker* member = MemberOf(incarnation, view);
  if (member != nullptr) scope.ends_member_of = member->token();
  return scope;
}

}  // namespace

Scope ScopeOf(const v1::JoinServerRequest& request, const ViewLookup&) {
  return {
      .of_server = true,
      .about = absl::StrCat("server '", Shown(request.name()), "' at ", Shown(request.address()))};
}

Scope ScopeOf(const v1::JoinWorkerRequest& request, const ViewLookup& view) {
  const std::string job = JobName(request.job());
  return {.job = job,
          .observes = request.observer(),
          .makes_job = !view.HasJob(job),
          .about = absl::StrCat("worker '", Shown(request.name()), "' of job '", Shown(job), "'")};
}

Scope ScopeOf(const v1::HeartbeatRequest& request, const ViewLookup& view) {
  return ScopeOfIncarnation(request.incarnation(), view);
}

Scope ScopeOf(const v1::AdmitMembersRequest& request, const ViewLookup& view) {
  return ScopeOfIncarnation(request.incarnation(), view);
}

Scope ScopeOf(const v1::LeaveRequest& request, const ViewLookup& view) {
  return ScopeOfEnd(request.incarnation(), view);
}

// A name that another job's table has is refused by the coordinator, which compares jobs, too.
Scope ScopeOf(const v1::CreateTableRequest& request, const ViewLookup&) {
  const std::string job = JobName(request.spec().job());
  return {.job = job,
          .restores = request.restoring(),
          .about =
              absl::StrCat("table '", Shown(request.spec().name()), "' of job '", Shown(job), "'")};
}

Scope ScopeOf(const v1::DropTableRequest& request, const ViewLookup& view) {
  if (request.id() == 0) return ScopeOfTable(request.name(), view.FindTable(request.name()));
  return ScopeOfTable(absl::StrCat("with id ", request.id()), view.FindTable(request.id()));
}

Scope ScopeOf(const v1::RenewRestoreRequest& request, const ViewLookup&) {
  return {.about = absl::StrCat(request.tables_size(), " tables that are being restored")};
}

Scope ScopeOf(const v1::FinishRestoreRequest& request, const ViewLookup&) {
  return {.about = absl::StrCat(request.tables_size(), " restored tables")};
}

Scope ScopeOf(const v1::RemoveServerRequest& request, const ViewLookup&) {
  return {.of_server = true, .about = absl::StrCat("server '", Shown(request.name()), "'")};
}

Scope ScopeOf(const v1::MovePartitionsRequest& request, const ViewLookup&) {
  return {.of_server = true, .about = absl::StrCat("server '", Shown(request.to()), "'")};
}

Scope ScopeOf(const v1::DrainServerRequest& request, const ViewLookup&) {
  return {.of_server = true, .about = absl::StrCat("server '", Shown(request.name()), "'")};
}

Scope ScopeOf(const v1::ResetTableRequest& request, const ViewLookup& view) {
  return ScopeOfTable(request.name(), view.FindTable(request.name()));
}

Scope ScopeOf(const v1::ReconfigureRequest& request, const ViewLookup& view) {
  return ScopeOfIncarnation(request.incarnation(), view);
}

Scope ScopeOf(const v1::GetViewRequest&, const ViewLookup&) { return {}; }
Scope ScopeOf(const v1::ListTokensRequest&, const ViewLookup&) { return {}; }

Scope ScopeOf(const v1::CreateTokenRequest& request, const ViewLookup&) {
  return {.about = absl::StrCat("token ", Shown(request.id()), ", ", RoleName(request.role()),
                                request.job().empty() ? "" : " of job '", Shown(request.job()),
                                request.job().empty() ? "" : "'")};
}

Scope ScopeOf(const v1::RevokeTokenRequest& request, const ViewLookup&) {
  return {.about = absl::StrCat("token ", Shown(request.id()))};
}

Scope ScopeOf(const v1::ForgetJobRequest& request, const ViewLookup&) {
  return {.job = request.job(), .about = absl::StrCat("forget job '", Shown(request.job()), "'")};
}

Scope ScopeOf(const v1::SetJobLimitsRequest& request, const ViewLookup&) {
  return {.job = request.job(),
          .about = absl::StrCat("limits of job '", Shown(request.job()), "'")};
}

Scope ScopeOf(const v1::MoveLeaderRequest& request, const ViewLookup&) {
  return {.about = absl::StrCat("leader in term ", request.term(), " to be ",
                                Shown(request.successor()))};
}

Scope ScopeOf(const v1::OpenLaneRequest& request, const ViewLookup& view) {
  Scope scope = ScopeOfIncarnation(request.incarnation(), view);
  const v1::Worker* member = MemberOf(request.incarnation(), view);
  scope.reads_all_jobs = member != nullptr && scope.observes && member->only_job().empty();
  scope.writes = member != nullptr && scope.observes && member->may_write();
  return scope;
}

// Numbers of lanes can be guessed.
Scope ScopeOf(const v1::CloseLaneRequest& request, const ViewLookup& view) {
  return ScopeOfEnd(request.incarnation(), view);
}

namespace {

// Only for a cluster's operators and servers.
Scope ScopeOfCheckpoint(uint64_t save) {
  return {.of_server = true, .about = absl::StrCat("save ", save)};
}

}  // namespace

Scope ScopeOf(const v1::BeginCheckpointRequest& request, const ViewLookup&) {
  return ScopeOfCheckpoint(request.checkpoint());
}
Scope ScopeOf(const v1::WaitCheckpointRequest& request, const ViewLookup&) {
  return ScopeOfCheckpoint(request.checkpoint());
}
Scope ScopeOf(const v1::EndCheckpointRequest& request, const ViewLookup&) {
  return ScopeOfCheckpoint(request.checkpoint());
}
Scope ScopeOf(const v1::BeginRestoreRequest& request, const ViewLookup&) {
  return {.of_server = true, .about = absl::StrCat("restore ", request.restore())};
}
Scope ScopeOf(const v1::WaitRestoreRequest& request, const ViewLookup&) {
  return {.of_server = true, .about = absl::StrCat("restore ", request.restore())};
}
Scope ScopeOf(const v1::GetStatisticsRequest&, const ViewLookup&) { return {}; }

}  // namespace verbena::server
