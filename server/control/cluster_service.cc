#include "server/control/cluster_service.h"

#include <utility>

#include "server/control/unary_call.h"

namespace verbena::server {
namespace {

// Beyond what a healthy coordinator takes, also with a slow disk.
constexpr absl::Duration kTimeout = absl::Seconds(10);

template <typename Request, typename Response>
using Method = void (Coordinator::*)(const Request&, Coordinator::Reply<Response>);

template <typename Request, typename Response>
grpc::ServerUnaryReactor* Forward(CoordinatorMachine* machine, grpc::CallbackServerContext* context,
                                  const Request* request, Response* response,
                                  Method<Request, Response> method,
                                  absl::Duration timeout = kTimeout) {
  return HandleOn(&machine->inbox(), context, *request, response, timeout, "the coordinator",
                  [machine, method](const Request& copy, Answerer<Response> answer) {
                    if (Coordinator* coordinator = machine->coordinator()) {
                      (coordinator->*method)(copy, std::move(answer));
                    }
                  });
}

}  // namespace

grpc::ServerUnaryReactor* ClusterService::JoinServer(grpc::CallbackServerContext* context,
                                                     const v1::JoinServerRequest* request,
                                                     v1::JoinServerResponse* response) {
  return Forward(machine_, context, request, response, &Coordinator::JoinServer);
}

grpc::ServerUnaryReactor* ClusterService::JoinWorker(grpc::CallbackServerContext* context,
                                                     const v1::JoinWorkerRequest* request,
                                                     v1::JoinWorkerResponse* response) {
  return Forward(machine_, context, request, response, &Coordinator::JoinWorker);
}

grpc::ServerUnaryReactor* ClusterService::Heartbeat(grpc::CallbackServerContext* context,
                                                    const v1::HeartbeatRequest* request,
                                                    v1::HeartbeatResponse* response) {
  return Forward(machine_, context, request, response, &Coordinator::Heartbeat);
}

grpc::ServerUnaryReactor* ClusterService::Leave(grpc::CallbackServerContext* context,
                                                const v1::LeaveRequest* request,
                                                v1::LeaveResponse* response) {
  return Forward(machine_, context, request, response, &Coordinator::Leave);
}

grpc::ServerUnaryReactor* ClusterService::CreateTable(grpc::CallbackServerContext* context,
                                                      const v1::CreateTableRequest* request,
                                                      v1::CreateTableResponse* response) {
  return Forward(machine_, context, request, response, &Coordinator::CreateTable);
}

grpc::ServerUnaryReactor* ClusterService::DropTable(grpc::CallbackServerContext* context,
                                                    const v1::DropTableRequest* request,
                                                    v1::DropTableResponse* response) {
  return Forward(machine_, context, request, response, &Coordinator::DropTable);
}

grpc::ServerUnaryReactor* ClusterService::GetView(grpc::CallbackServerContext* context,
                                                  const v1::GetViewRequest* request,
                                                  v1::GetViewResponse* response) {
  return Forward(machine_, context, request, response, &Coordinator::GetView,
                 // Held until something changes: that long, and the usual on top.
                 kTimeout + absl::Milliseconds(request->wait_ms()));
}

grpc::ServerUnaryReactor* ClusterService::SetJobLimits(grpc::CallbackServerContext* context,
                                                       const v1::SetJobLimitsRequest* request,
                                                       v1::SetJobLimitsResponse* response) {
  return Forward(machine_, context, request, response, &Coordinator::SetJobLimits);
}

}  // namespace verbena::server
