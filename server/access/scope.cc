#include "server/access/scope.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/role.h"
#include "proto/view_tables.h"
#include "server/access/shown.h"

namespace verbena::server {
namespace {

// Where requests name no job, as the coordinator has it.
std::string JobName(const std::string& given) { return given.empty() ? "default" : given; }

// A job has had a worker, or has a table.
bool HasJob(const std::string& name, const v1::ClusterView& view) {
  return std::any_of(view.jobs().begin(), view.jobs().end(),
                     [&](const v1::Job& job) { return job.name() == name; }) ||
         std::any_of(view.tables().begin(), view.tables().end(),
                     [&](const v1::Table& table) { return table.spec().job() == name; });
}

Scope ScopeOfTable(const std::string& name, const v1::Table* table) {
  if (table == nullptr) return {.about = absl::StrCat("table '", Shown(name), "'")};
  const std::string& job = table->spec().job();
  return {.job = job,
          .about = absl::StrCat("table '", table->spec().name(), "' of job '", job, "'")};
}

// `scope`: of the incarnation. Null: it is no member of a job.
const v1::Worker* FindMember(uint64_t incarnation, const Scope& scope,
                             const v1::ClusterView& view) {
  for (const v1::Job& job : view.jobs()) {
    if (job.name() != scope.job) continue;
    for (const v1::Worker& worker : job.members()) {
      if (worker.incarnation() == incarnation) return &worker;
    }
  }
  return nullptr;
}

}  // namespace

Scope ScopeOfIncarnation(uint64_t incarnation, const v1::ClusterView& view) {
  for (const v1::Server& server : view.servers()) {
    if (server.incarnation() != incarnation) continue;
    return {.of_server = true, .about = absl::StrCat("server '", server.name(), "'")};
  }
  for (const v1::Job& job : view.jobs()) {
    for (const v1::Worker& worker : job.members()) {
      if (worker.incarnation() != incarnation) continue;
      return {.job = job.name(),
              .observes = worker.rank() < 0,
              .about = absl::StrCat("worker '", worker.name(), "' of job '", job.name(), "'")};
    }
  }
  return {.about = absl::StrCat("incarnation ", incarnation)};
}

namespace {

// Of a call that ends the member, or a lane of it.
Scope ScopeOfEnd(uint64_t incarnation, const v1::ClusterView& view) {
  Scope scope = ScopeOfIncarnation(incarnation, view);
  const v1::Worker* member = FindMember(incarnation, scope, view);
  if (member != nullptr) scope.ends_member_of = member->token();
  return scope;
}

}  // namespace

Scope ScopeOf(const v1::JoinServerRequest& request, const v1::ClusterView&) {
  return {
      .of_server = true,
      .about = absl::StrCat("server '", Shown(request.name()), "' at ", Shown(request.address()))};
}

Scope ScopeOf(const v1::JoinWorkerRequest& request, const v1::ClusterView& view) {
  const std::string job = JobName(request.job());
  return {.job = job,
          .observes = request.observer(),
          .makes_job = !HasJob(job, view),
          .about = absl::StrCat("worker '", Shown(request.name()), "' of job '", Shown(job), "'")};
}

Scope ScopeOf(const v1::HeartbeatRequest& request, const v1::ClusterView& view) {
  return ScopeOfIncarnation(request.incarnation(), view);
}

Scope ScopeOf(const v1::LeaveRequest& request, const v1::ClusterView& view) {
  return ScopeOfEnd(request.incarnation(), view);
}

// A name that another job's table has is refused by the coordinator, which compares jobs, too.
Scope ScopeOf(const v1::CreateTableRequest& request, const v1::ClusterView&) {
  const std::string job = JobName(request.spec().job());
  return {.job = job,
          .restores = request.restoring(),
          .about =
              absl::StrCat("table '", Shown(request.spec().name()), "' of job '", Shown(job), "'")};
}

Scope ScopeOf(const v1::DropTableRequest& request, const v1::ClusterView& view) {
  if (request.id() == 0) return ScopeOfTable(request.name(), FindTableNamed(request.name(), view));
  return ScopeOfTable(absl::StrCat("with id ", request.id()), FindTableById(request.id(), view));
}

Scope ScopeOf(const v1::RenewRestoreRequest& request, const v1::ClusterView&) {
  return {.about = absl::StrCat(request.tables_size(), " tables that are being restored")};
}

Scope ScopeOf(const v1::FinishRestoreRequest& request, const v1::ClusterView&) {
  return {.about = absl::StrCat(request.tables_size(), " restored tables")};
}

Scope ScopeOf(const v1::RemoveServerRequest& request, const v1::ClusterView&) {
  return {.of_server = true, .about = absl::StrCat("server '", Shown(request.name()), "'")};
}

Scope ScopeOf(const v1::ResetTableRequest& request, const v1::ClusterView& view) {
  return ScopeOfTable(request.name(), FindTableNamed(request.name(), view));
}

Scope ScopeOf(const v1::ReconfigureRequest& request, const v1::ClusterView& view) {
  return ScopeOfIncarnation(request.incarnation(), view);
}

Scope ScopeOf(const v1::GetViewRequest&, const v1::ClusterView&) { return {}; }
Scope ScopeOf(const v1::ListTokensRequest&, const v1::ClusterView&) { return {}; }

Scope ScopeOf(const v1::CreateTokenRequest& request, const v1::ClusterView&) {
  return {.about = absl::StrCat("token ", Shown(request.id()), ", ", RoleName(request.role()),
                                request.job().empty() ? "" : " of job '", Shown(request.job()),
                                request.job().empty() ? "" : "'")};
}

Scope ScopeOf(const v1::RevokeTokenRequest& request, const v1::ClusterView&) {
  return {.about = absl::StrCat("token ", Shown(request.id()))};
}

Scope ScopeOf(const v1::ForgetJobRequest& request, const v1::ClusterView&) {
  return {.job = request.job(), .about = absl::StrCat("forget job '", Shown(request.job()), "'")};
}

Scope ScopeOf(const v1::SetJobLimitsRequest& request, const v1::ClusterView&) {
  return {.job = request.job(),
          .about = absl::StrCat("limits of job '", Shown(request.job()), "'")};
}

Scope ScopeOf(const v1::OpenLaneRequest& request, const v1::ClusterView& view) {
  Scope scope = ScopeOfIncarnation(request.incarnation(), view);
  const v1::Worker* member = FindMember(request.incarnation(), scope, view);
  scope.reads_all_jobs = member != nullptr && scope.observes && member->only_job().empty();
  return scope;
}

// Numbers of lanes can be guessed.
Scope ScopeOf(const v1::CloseLaneRequest& request, const v1::ClusterView& view) {
  return ScopeOfEnd(request.incarnation(), view);
}

namespace {

// Only for a cluster's operators and servers.
Scope ScopeOfSave(uint64_t save) {
  return {.of_server = true, .about = absl::StrCat("save ", save)};
}

}  // namespace

Scope ScopeOf(const v1::BeginSaveRequest& request, const v1::ClusterView&) {
  return ScopeOfSave(request.save());
}
Scope ScopeOf(const v1::WaitSaveRequest& request, const v1::ClusterView&) {
  return ScopeOfSave(request.save());
}
Scope ScopeOf(const v1::EndSaveRequest& request, const v1::ClusterView&) {
  return ScopeOfSave(request.save());
}
Scope ScopeOf(const v1::BeginRestoreRequest& request, const v1::ClusterView&) {
  return {.of_server = true, .about = absl::StrCat("restore ", request.restore())};
}
Scope ScopeOf(const v1::WaitRestoreRequest& request, const v1::ClusterView&) {
  return {.of_server = true, .about = absl::StrCat("restore ", request.restore())};
}
Scope ScopeOf(const v1::GetStatisticsRequest&, const v1::ClusterView&) { return {}; }

}  // namespace verbena::server
