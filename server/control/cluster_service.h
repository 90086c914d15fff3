// verbena.v1.Cluster over gRPC: each call is posted to the coordinator's thread and judged there.
//
// **Thread safety**: thread-safe (gRPC calls it from its own threads).
#ifndef VERBENA_SERVER_CONTROL_CLUSTER_SERVICE_H_
#define VERBENA_SERVER_CONTROL_CLUSTER_SERVICE_H_

#include "proto/verbena/v1/cluster.grpc.pb.h"
#include "server/access/gate.h"
#include "server/control/coordinator_machine.h"

namespace verbena::server {

class ClusterService final : public v1::Cluster::CallbackService {
 public:
  // Both outlive it.
  ClusterService(CoordinatorMachine* machine, AuditLog* audit) : machine_(machine), gate_(audit) {}

  grpc::ServerUnaryReactor* JoinServer(grpc::CallbackServerContext* context,
                                       const v1::JoinServerRequest* request,
                                       v1::JoinServerResponse* response) override;
  grpc::ServerUnaryReactor* JoinWorker(grpc::CallbackServerContext* context,
                                       const v1::JoinWorkerRequest* request,
                                       v1::JoinWorkerResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request,
                                  v1::LeaveResponse* response) override;
  grpc::ServerUnaryReactor* CreateTable(grpc::CallbackServerContext* context,
                                        const v1::CreateTableRequest* request,
                                        v1::CreateTableResponse* response) override;
  grpc::ServerUnaryReactor* FinishRestore(grpc::CallbackServerContext* context,
                                          const v1::FinishRestoreRequest* request,
                                          v1::FinishRestoreResponse* response) override;
  grpc::ServerUnaryReactor* RenewRestore(grpc::CallbackServerContext* context,
                                         const v1::RenewRestoreRequest* request,
                                         v1::RenewRestoreResponse* response) override;
  grpc::ServerUnaryReactor* DropTable(grpc::CallbackServerContext* context,
                                      const v1::DropTableRequest* request,
                                      v1::DropTableResponse* response) override;
  grpc::ServerUnaryReactor* RemoveServer(grpc::CallbackServerContext* context,
                                         const v1::RemoveServerRequest* request,
                                         v1::RemoveServerResponse* response) override;
  grpc::ServerUnaryReactor* ResetTable(grpc::CallbackServerContext* context,
                                       const v1::ResetTableRequest* request,
                                       v1::ResetTableResponse* response) override;
  grpc::ServerUnaryReactor* Reconfigure(grpc::CallbackServerContext* context,
                                        const v1::ReconfigureRequest* request,
                                        v1::ReconfigureResponse* response) override;
  grpc::ServerUnaryReactor* GetView(grpc::CallbackServerContext* context,
                                    const v1::GetViewRequest* request,
                                    v1::GetViewResponse* response) override;
  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext* context,
                                        const v1::CreateTokenRequest* request,
                                        v1::CreateTokenResponse* response) override;
  grpc::ServerUnaryReactor* ListTokens(grpc::CallbackServerContext* context,
                                       const v1::ListTokensRequest* request,
                                       v1::ListTokensResponse* response) override;
  grpc::ServerUnaryReactor* RevokeToken(grpc::CallbackServerContext* context,
                                        const v1::RevokeTokenRequest* request,
                                        v1::RevokeTokenResponse* response) override;
  grpc::ServerUnaryReactor* SetJobLimits(grpc::CallbackServerContext* context,
                                         const v1::SetJobLimitsRequest* request,
                                         v1::SetJobLimitsResponse* response) override;

 private:
  CoordinatorMachine* const machine_;
  const Gate gate_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_CLUSTER_SERVICE_H_
