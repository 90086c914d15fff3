// verbena.v1.Cluster over gRPC: each call is posted to the coordinator's thread and authorized
// there.
//
// **Thread safety**: thread-safe (gRPC calls it from its own threads).
#ifndef VERBENA_SERVER_CONTROL_CLUSTER_SERVICE_H_
#define VERBENA_SERVER_CONTROL_CLUSTER_SERVICE_H_

#include "server/access/gate.h"
#include "server/checkpoint/failing_checkpoints.h"
#include "server/control/control_call.h"
#include "server/control/coordinator_task.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

class ClusterService final : public ControlService {
 public:
  // All outlive it. `failing` may be null.
  ClusterService(CoordinatorTask* machine, AuditLog* audit,
                 const FailingCheckpoints* failing = nullptr);

  void JoinServer(ControlCall* call, const v1::JoinServerRequest* request,
                  v1::JoinServerResponse* response);
  void JoinWorker(ControlCall* call, const v1::JoinWorkerRequest* request,
                  v1::JoinWorkerResponse* response);
  void Heartbeat(ControlCall* call, const v1::HeartbeatRequest* request,
                 v1::HeartbeatResponse* response);
  void Leave(ControlCall* call, const v1::LeaveRequest* request, v1::LeaveResponse* response);
  void CreateTable(ControlCall* call, const v1::CreateTableRequest* request,
                   v1::CreateTableResponse* response);
  void FinishRestore(ControlCall* call, const v1::FinishRestoreRequest* request,
                     v1::FinishRestoreResponse* response);
  void RenewRestore(ControlCall* call, const v1::RenewRestoreRequest* request,
                    v1::RenewRestoreResponse* response);
  void DropTable(ControlCall* call, const v1::DropTableRequest* request,
                 v1::DropTableResponse* response);
  void AdmitMembers(ControlCall* call, const v1::AdmitMembersRequest* request,
                    v1::AdmitMembersResponse* response);
  void ForgetJob(ControlCall* call, const v1::ForgetJobRequest* request,
                 v1::ForgetJobResponse* response);
  void RemoveServer(ControlCall* call, const v1::RemoveServerRequest* request,
                    v1::RemoveServerResponse* response);
  void MovePartitions(ControlCall* call, const v1::MovePartitionsRequest* request,
                      v1::MovePartitionsResponse* response);
  void DrainServer(ControlCall* call, const v1::DrainServerRequest* request,
                   v1::DrainServerResponse* response);
  void ResetTable(ControlCall* call, const v1::ResetTableRequest* request,
                  v1::ResetTableResponse* response);
  void Reconfigure(ControlCall* call, const v1::ReconfigureRequest* request,
                   v1::ReconfigureResponse* response);
  void GetView(ControlCall* call, const v1::GetViewRequest* request, v1::GetViewResponse* response);
  void CreateToken(ControlCall* call, const v1::CreateTokenRequest* request,
                   v1::CreateTokenResponse* response);
  void ListTokens(ControlCall* call, const v1::ListTokensRequest* request,
                  v1::ListTokensResponse* response);
  void RevokeToken(ControlCall* call, const v1::RevokeTokenRequest* request,
                   v1::RevokeTokenResponse* response);
  void SetJobLimits(ControlCall* call, const v1::SetJobLimitsRequest* request,
                    v1::SetJobLimitsResponse* response);
  void MoveLeader(ControlCall* call, const v1::MoveLeaderRequest* request,
                  v1::MoveLeaderResponse* response);

 private:
  absl::Status Admit(Caller* caller, const std::string& method) const override;

  CoordinatorTask* const machine_;
  const FailingCheckpoints* const failing_;
  const Gate gate_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_CLUSTER_SERVICE_H_
