// The objects of each control-plane request: one function for each request type, so that a new call
// does not compile without one.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_ACCESS_SCOPE_H_
#define VERBENA_SERVER_ACCESS_SCOPE_H_

#include <cstdint>
#include <string>

#include "server/access/access_control.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

// Finds the objects that requests name in a view. Null: the view does not have it.
class ViewLookup {
 public:
  virtual ~ViewLookup() = default;
  virtual const v1::Server* FindServer(uint64_t incarnation) const = 0;
  virtual const v1::Job* JobOf(uint64_t member) const = 0;
  // Whether it has had a worker, or has a table.
  virtual bool HasJob(const std::string& name) const = 0;
  virtual const v1::Table* FindTable(uint32_t id) const = 0;
  // The served one, or else the one that is being restored.
  virtual const v1::Table* FindTable(const std::string& name) const = 0;
};

// Searches the whole view: for rare calls, without an index.
class ViewScan final : public ViewLookup {
 public:
  // The view outlives it.
  explicit ViewScan(const v1::ClusterView& view) : view_(view) {}
  const v1::Server* FindServer(uint64_t incarnation) const override;
  const v1::Job* JobOf(uint64_t member) const override;
  bool HasJob(const std::string& name) const override;
  const v1::Table* FindTable(uint32_t id) const override;
  const v1::Table* FindTable(const std::string& name) const override;

 private:
  const v1::ClusterView& view_;
};

// The scope of an incarnation in the view; empty if it is not there.
Scope ScopeOfIncarnation(uint64_t incarnation, const ViewLookup& view);

Scope ScopeOf(const v1::JoinServerRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::JoinWorkerRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::HeartbeatRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::LeaveRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::CreateTableRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::DropTableRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::FinishRestoreRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::RenewRestoreRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::AdmitMembersRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::ForgetJobRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::RemoveServerRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::MovePartitionsRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::DrainServerRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::ResetTableRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::ReconfigureRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::MoveLeaderRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::GetViewRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::CreateTokenRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::ListTokensRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::RevokeTokenRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::SetJobLimitsRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::OpenLaneRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::CloseLaneRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::GetStatisticsRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::BeginCheckpointRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::WaitCheckpointRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::EndCheckpointRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::BeginRestoreRequest& request, const ViewLookup& view);
Scope ScopeOf(const v1::WaitRestoreRequest& request, const ViewLookup& view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_SCOPE_H_
