// What each request of the control plane is about: one function for each, so that a new call does
// not compile without it.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_ACCESS_SCOPE_H_
#define VERBENA_SERVER_ACCESS_SCOPE_H_

#include "proto/verbena/v1/cluster.pb.h"
#include "proto/verbena/v1/shard.pb.h"
#include "server/access/access_control.h"

namespace verbena::server {

// Of an incarnation in the view; of none that is there: nothing.
Scope ScopeOfIncarnation(uint64_t incarnation, const v1::ClusterView& view);

Scope ScopeOf(const v1::JoinServerRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::JoinWorkerRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::HeartbeatRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::LeaveRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::CreateTableRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::DropTableRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::FinishRestoreRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::RenewRestoreRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::ForgetJobRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::RemoveServerRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::ResetTableRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::ReconfigureRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::GetViewRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::CreateTokenRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::ListTokensRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::RevokeTokenRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::SetJobLimitsRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::OpenLaneRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::CloseLaneRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::GetStatisticsRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::BeginSaveRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::WaitSaveRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::EndSaveRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::BeginRestoreRequest& request, const v1::ClusterView& view);
Scope ScopeOf(const v1::WaitRestoreRequest& request, const v1::ClusterView& view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_SCOPE_H_
