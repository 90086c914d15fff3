#include "server/control/cluster_service.h"

#include <string>
#include <type_traits>
#include <utility>

#include "server/access/scope.h"
#include "server/control/unary_call.h"
#include "server/coordinator/placement.h"
#include "server/coordinator/view_editor.h"

namespace verbena::server {
namespace {

// Longer than a healthy coordinator takes, also with a slow disk.
constexpr absl::Duration kTimeout = absl::Seconds(10);

template <typename Request, typename Response>
using Method = void (Coordinator::*)(const Request&, Coordinator::Reply<Response>);

// Every call looks something up, so none passes over the view.
class IndexLookup final : public ViewLookup {
 public:
  explicit IndexLookup(const Coordinator& coordinator) : index_(coordinator.index()) {}
  const v1::Server* FindServer(uint64_t incarnation) const override {
    return server::FindServer(incarnation, index_.view());
  }
  const v1::Job* JobOf(uint64_t member) const override { return index_.JobOf(member); }
  bool HasJob(const std::string& name) const override {
    return index_.FindJob(name) != nullptr || !index_.TablesOf(name).empty();
  }
  const v1::Table* FindTable(uint32_t id) const override { return index_.FindTable(id); }
  const v1::Table* FindTable(const std::string& name) const override {
    const v1::Table* served = index_.FindTable(name, /*restoring=*/false);
    return served != nullptr ? served : index_.FindTable(name, /*restoring=*/true);
  }

 private:
  const ViewEditor& index_;
};

// Only servers may see the rules by which servers authorize calls.
bool ChecksTokens(const Principal& who) {
  return who.role == v1::ROLE_SERVER || who.role == v1::ROLE_OPERATOR;
}
void AddRules(const v1::AccessRules& rules, const Principal& who, v1::JoinServerResponse* r) {
  if (ChecksTokens(who)) *r->mutable_access() = rules;
}
void AddRules(const v1::AccessRules& rules, const Principal& who, v1::GetViewResponse* r) {
  if (ChecksTokens(who) && r->changed()) *r->mutable_access() = rules;
}
template <typename Response>
void AddRules(const v1::AccessRules&, const Principal&, Response*) {}

// Calls `run(coordinator, request, who, reply)` on the coordinator's thread, if the caller is
// authorized.
template <typename Request, typename Response, typename Run>
void Guarded(CoordinatorTask* machine, const Gate* gate, ControlCall* call, const Request* request,
             Response* response, Run run, absl::Duration timeout = kTimeout) {
  const auto post = [machine, call](Inbox::Closure& closure,
                                    FairQueue::Refuse refuse) -> absl::Status {
    // A lease must not end because of others' calls.
    if constexpr (!std::is_same_v<Request, v1::HeartbeatRequest>) {
      absl::Status posted = machine->Post(QueueOf(call->caller()), closure, std::move(refuse));
      if (!posted.ok()) CountExceeded(Budget::kCoordinatorQueue);
      return posted;
    }
    machine->inbox().Post(std::move(closure));
    return absl::OkStatus();
  };
  HandleBy(
      post, call, *request, response, timeout, "the coordinator",
      [machine, gate, caller = call->caller(), run](const Request& copy,
                                                    Answerer<Response> answer) {
        Coordinator* coordinator = machine->coordinator();
        if (coordinator == nullptr || !machine->leads()) return answer(machine->Absence());
        const std::string method = MethodOf<Request>();
        Scope scope = ScopeOf(copy, IndexLookup(*coordinator));
        absl::StatusOr<Principal> who = gate->Judge(coordinator->access(), caller, method, scope);
        if (!who.ok()) return answer(who.status());
        run(coordinator, copy, *who,
            [machine, gate, caller, who = *who, method, about = std::move(scope.about), coordinator,
             answer = std::move(answer)](absl::StatusOr<Response> result) mutable {
              // Opening a table that exists changes nothing, for example.
              const bool changed =
                  std::is_same_v<Request, v1::MoveLeaderRequest> || coordinator->answers_change();
              gate->Ended(caller, who, method, about, result.status(), changed);
              // Before the answer: a new token may be used at once.
              machine->PublishAccess();
              // Another coordinator may lead since; the caller repeats the call there.
              if (!machine->leads()) return answer(machine->Absence());
              const v1::AccessRules* rules = coordinator->access();
              if (result.ok() && rules != nullptr) AddRules(*rules, who, &*result);
              answer(std::move(result));
            });
      });
}

// A job's token must not be enough to stop the coordinator.
template <typename Request>
Request WithProof(const Request& request, const Principal& who) {
  Request judged = request;
  if (!ChecksTokens(who)) judged.clear_seen();
  return judged;
}

template <typename Request, typename Response>
void Forward(CoordinatorTask* machine, const Gate* gate, ControlCall* call, const Request* request,
             Response* response, Method<Request, Response> method) {
  return Guarded(machine, gate, call, request, response,
                 [method](Coordinator* coordinator, const Request& copy, const Principal&,
                          Coordinator::Reply<Response> reply) {
                   (coordinator->*method)(copy, std::move(reply));
                 });
}

}  // namespace

ClusterService::ClusterService(CoordinatorTask* machine, AuditLog* audit,
                               const FailingCheckpoints* failing)
    : machine_(machine), failing_(failing), gate_(audit) {
  using Self = ClusterService;
  Add(&Self::JoinServer);
  Add(&Self::JoinWorker);
  Add(&Self::Heartbeat);
  Add(&Self::Leave);
  Add(&Self::CreateTable);
  Add(&Self::FinishRestore);
  Add(&Self::RenewRestore);
  Add(&Self::DropTable);
  Add(&Self::AdmitMembers);
  Add(&Self::ForgetJob);
  Add(&Self::RemoveServer);
  Add(&Self::MovePartitions);
  Add(&Self::DrainServer);
  Add(&Self::ResetTable);
  Add(&Self::Reconfigure);
  Add(&Self::GetView);
  Add(&Self::CreateToken);
  Add(&Self::ListTokens);
  Add(&Self::RevokeToken);
  Add(&Self::SetJobLimits);
  Add(&Self::MoveLeader);
}

absl::Status ClusterService::Admit(Caller* caller, const std::string& method) const {
  // A standby reads no request, and knows no tokens.
  if (!machine_->leads()) return machine_->Absence();
  return gate_.Admit(machine_->access().get(), caller, method);
}

void ClusterService::JoinServer(ControlCall* call, const v1::JoinServerRequest* request,
                                v1::JoinServerResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::JoinServer);
}

void ClusterService::JoinWorker(ControlCall* call, const v1::JoinWorkerRequest* request,
                                v1::JoinWorkerResponse* response) {
  return Guarded(machine_, &gate_, call, request, response,
                 [](Coordinator* coordinator, const v1::JoinWorkerRequest& copy,
                    const Principal& who, Coordinator::Reply<v1::JoinWorkerResponse> reply) {
                   coordinator->JoinWorker(copy, who.token, std::move(reply));
                 });
}

void ClusterService::Heartbeat(ControlCall* call, const v1::HeartbeatRequest* request,
                               v1::HeartbeatResponse* response) {
  return Guarded(machine_, &gate_, call, request, response,
                 [](Coordinator* coordinator, const v1::HeartbeatRequest& copy,
                    const Principal& who, Coordinator::Reply<v1::HeartbeatResponse> reply) {
                   coordinator->Heartbeat(WithProof(copy, who), std::move(reply));
                 });
}

void ClusterService::Leave(ControlCall* call, const v1::LeaveRequest* request,
                           v1::LeaveResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::Leave);
}

void ClusterService::CreateTable(ControlCall* call, const v1::CreateTableRequest* request,
                                 v1::CreateTableResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::CreateTable);
}

void ClusterService::FinishRestore(ControlCall* call, const v1::FinishRestoreRequest* request,
                                   v1::FinishRestoreResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::FinishRestore);
}

void ClusterService::RenewRestore(ControlCall* call, const v1::RenewRestoreRequest* request,
                                  v1::RenewRestoreResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::RenewRestore);
}

void ClusterService::DropTable(ControlCall* call, const v1::DropTableRequest* request,
                               v1::DropTableResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::DropTable);
}

void ClusterService::AdmitMembers(ControlCall* call, const v1::AdmitMembersRequest* request,
                                  v1::AdmitMembersResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::AdmitMembers);
}

void ClusterService::ForgetJob(ControlCall* call, const v1::ForgetJobRequest* request,
                               v1::ForgetJobResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::ForgetJob);
}

void ClusterService::RemoveServer(ControlCall* call, const v1::RemoveServerRequest* request,
                                  v1::RemoveServerResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::RemoveServer);
}

void ClusterService::MovePartitions(ControlCall* call, const v1::MovePartitionsRequest* request,
                                    v1::MovePartitionsResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::MovePartitions);
}

void ClusterService::DrainServer(ControlCall* call, const v1::DrainServerRequest* request,
                                 v1::DrainServerResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::DrainServer);
}

void ClusterService::ResetTable(ControlCall* call, const v1::ResetTableRequest* request,
                                v1::ResetTableResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::ResetTable);
}

void ClusterService::Reconfigure(ControlCall* call, const v1::ReconfigureRequest* request,
                                 v1::ReconfigureResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::Reconfigure);
}

void ClusterService::GetView(ControlCall* call, const v1::GetViewRequest* request,
                             v1::GetViewResponse* response) {
  return Guarded(
      machine_, &gate_, call, request, response,
      [failing = failing_, queue = QueueOf(call->caller())](
          Coordinator* coordinator, const v1::GetViewRequest& copy, const Principal& who,
          Coordinator::Reply<v1::GetViewResponse> reply) {
        // Operators ask at once; the answers of members wait for a change of the view.
        if (failing == nullptr || !ChecksTokens(who) || copy.wait_ms() > 0 ||
            copy.incarnation() != 0) {
          return coordinator->GetView(WithProof(copy, who), queue, std::move(reply));
        }
        coordinator->GetView(
            WithProof(copy, who),
            [failing, reply = std::move(reply)](absl::StatusOr<v1::GetViewResponse> view) mutable {
              if (view.ok()) failing->AddTo(&*view);
              reply(std::move(view));
            });
      },
      // Held until something changes: that long, and the usual on top.
      kTimeout + absl::Milliseconds(request->wait_ms()));
}

void ClusterService::CreateToken(ControlCall* call, const v1::CreateTokenRequest* request,
                                 v1::CreateTokenResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::CreateToken);
}

void ClusterService::ListTokens(ControlCall* call, const v1::ListTokensRequest* request,
                                v1::ListTokensResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::ListTokens);
}

void ClusterService::RevokeToken(ControlCall* call, const v1::RevokeTokenRequest* request,
                                 v1::RevokeTokenResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::RevokeToken);
}

void ClusterService::SetJobLimits(ControlCall* call, const v1::SetJobLimitsRequest* request,
                                  v1::SetJobLimitsResponse* response) {
  return Forward(machine_, &gate_, call, request, response, &Coordinator::SetJobLimits);
}

void ClusterService::MoveLeader(ControlCall* call, const v1::MoveLeaderRequest* request,
                                v1::MoveLeaderResponse* response) {
  return Guarded(
      machine_, &gate_, call, request, response,
      [machine = machine_](Coordinator*, const v1::MoveLeaderRequest& copy, const Principal&,
                           Coordinator::Reply<v1::MoveLeaderResponse> reply) {
        if (absl::Status moves = machine->HandOver(copy); !moves.ok()) return reply(moves);
        reply(v1::MoveLeaderResponse());
      });
}

}  // namespace verbena::server
