#include "server/control/shard_service.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/access/scope.h"
#include "server/control/unary_call.h"

namespace verbena::server {
namespace {

// A shard answers between two rounds of bounded work; only a stuck one takes so long.
constexpr absl::Duration kShardTimeout = absl::Seconds(5);
constexpr absl::Duration kStatisticsTimeout = absl::Seconds(1);
// The longest that a caller may ask to wait for a reply.
constexpr absl::Duration kLongestWait = absl::Seconds(60);

void Fill(const ShardSnapshot& snapshot, v1::ShardStatistics* out) {
  const shard::EngineCounters& engine = snapshot.counters.engine;
  out->set_push_bytes(engine.push_bytes);
  out->set_pull_bytes(engine.pull_bytes);
  out->set_pushes(engine.pushes);
  out->set_pulls(engine.pulls);
  out->set_deferred(engine.deferred);
  out->set_held(engine.held);
  out->set_resident_bytes(engine.resident_bytes);
  for (const v1::LaneStatistics& lane : snapshot.lanes) *out->add_lanes() = lane;
  out->set_lanes_refused(snapshot.lanes_refused);
  out->set_cold_unwritten(snapshot.cold_unwritten);
  for (const v1::ReplicaStatistics& copy : snapshot.replicas) *out->add_replicas() = copy;
  for (const v1::PartitionStatistics& part : snapshot.partitions) *out->add_partitions() = part;
  out->set_memory_limit_bytes(snapshot.memory_limit);
  out->set_memory_reserved_bytes(snapshot.memory_reserved);
  out->set_memory_full(snapshot.memory_full);
  for (const rdma::MissingTransport& missing : snapshot.missing) {
    v1::MissingTransport* reported = out->add_missing_transports();
    reported->set_transport(missing.transport);
    reported->set_reason(missing.reason);
  }
  for (const shard::TableStatistics& table : snapshot.tables) {
    v1::TableStatistics* reported = out->add_tables();
    reported->set_table(table.id);
    reported->set_parameter_bytes(table.parameter_bytes);
    reported->set_rows(table.rows);
    reported->set_step(table.step);
    reported->set_sampled_keys(table.sampled_keys);
    reported->set_unserved(table.unserved);
    if (table.optimizer_changes > 0) *reported->mutable_optimizer() = table.optimizer;
    reported->set_optimizer_changes(table.optimizer_changes);
    reported->set_optimizer_from(table.optimizer_from);
    for (const shard::HotKey& key : table.hot_keys) {
      v1::HotKey* hot = reported->add_hot_keys();
      hot->set_key(key.key);
      hot->set_count(key.count);
      hot->set_error(key.error);
    }
  }
  for (const JobSnapshot& job : snapshot.jobs) {
    v1::JobStatistics* reported = out->add_jobs();
    reported->set_job(job.engine.name);
    reported->set_memory_bytes(job.engine.memory_bytes);
    reported->set_lanes(job.lanes);
  }
}

// The revision of the caller's view; 0: not given.
uint64_t RevisionOf(const v1::OpenLaneRequest& request) { return request.revision(); }
template <typename Request>
uint64_t RevisionOf(const Request&) {
  return 0;
}

// Whether the call is a worker's or a server's, about its own lanes.
bool OfPeer(const v1::GetStatisticsRequest&) { return false; }
bool OfPeer(const v1::BeginCheckpointRequest&) { return false; }
bool OfPeer(const v1::WaitCheckpointRequest&) { return false; }
bool OfPeer(const v1::EndCheckpointRequest&) { return false; }
bool OfPeer(const v1::BeginRestoreRequest&) { return false; }
bool OfPeer(const v1::WaitRestoreRequest&) { return false; }
template <typename Request>
bool OfPeer(const Request&) {
  return true;
}

// A token or a peer that is newer than our view: both come with the next one.
absl::Status IsNewer(const v1::ClusterView& view, uint64_t revision) {
  return absl::UnavailableError(absl::StrCat("this server's view is at revision ", view.revision(),
                                             ", the caller's at ", revision));
}

// For people.
std::string OpenerOf(const v1::OpenLaneRequest& request, bool of_server) {
  if (!of_server) return absl::StrCat("worker incarnation ", request.incarnation());
  return absl::StrCat("shard ", request.source_shard(), " of server incarnation ",
                      request.incarnation());
}

// Takes a call to the shard's thread, in turn with those of other callers.
auto InTurn(ShardExecutor* executor, const ControlCall& call) {
  return [executor, queue = QueueOf(call.caller())](Inbox::Closure& closure,
                                                    FairQueue::Refuse refuse) {
    absl::Status posted = executor->Post(queue, closure, std::move(refuse));
    if (!posted.ok()) CountExceeded(Budget::kShardQueue);
    return posted;
  };
}

}  // namespace

ShardService::ShardService(const ShardSet* set, const AccessState* access, AuditLog* audit)
    : set_(set),
      access_(access),
      gate_(audit),
      lane_log_([](const std::string& line) { spdlog::info("{}", line); }),
      refusal_log_([](const std::string& line) { spdlog::info("{}", line); }) {
  using Self = ShardService;
  Add(&Self::OpenLane);
  Add(&Self::CloseLane);
  Add(&Self::BeginCheckpoint);
  Add(&Self::WaitCheckpoint);
  Add(&Self::EndCheckpoint);
  Add(&Self::BeginRestore);
  Add(&Self::WaitRestore);
  Add(&Self::GetStatistics);
}

absl::Status ShardService::Admit(Caller* caller, const std::string& method) const {
  const AccessState::Known known = access_->Get();
  if (known.view == nullptr) {
    return absl::UnavailableError("this server has not joined the cluster yet");
  }
  // A token that is newer than our view comes with the next one. Audited, because any caller can
  // state a revision.
  if (caller->revision > known.view->revision() &&
      !Authenticate(known.rules.get(), caller->token).ok()) {
    return gate_.Refuse(*caller, method, "", IsNewer(*known.view, caller->revision));
  }
  return gate_.Admit(known.rules.get(), caller, method);
}

template <typename Request>
absl::StatusOr<Principal> ShardService::Judge(const Caller& caller, const Request& request) const {
  const AccessState::Known known = access_->Get();
  if (known.view == nullptr) {
    return absl::UnavailableError("this server has not joined the cluster yet");
  }
  const bool may_be_newer = RevisionOf(request) > known.view->revision();
  const Scope scope = ScopeOf(request, ViewScan(*known.view));
  if (known.rules == nullptr) return gate_.Judge(nullptr, caller, MethodOf<Request>(), scope);
  if (may_be_newer && !Authenticate(known.rules.get(), caller.token).ok()) {
    return gate_.Refuse(caller, MethodOf<Request>(), scope.about,
                        IsNewer(*known.view, RevisionOf(request)));
  }
  absl::StatusOr<Principal> who =
      gate_.Judge(known.rules.get(), caller, MethodOf<Request>(), scope);
  if (!who.ok() || !OfPeer(request) || scope.job.has_value() || scope.of_server) return who;
  // Not left to the shard, whose view may be newer: whose worker this is must be known here.
  if (may_be_newer) return IsNewer(*known.view, RevisionOf(request));
  return absl::NotFoundError(
      absl::StrCat(scope.about, " is not a member of any job: its lease has ended or it has left"));
}

absl::Status ShardService::CheckShard(uint32_t shard) const {
  if (shard < set_->shards.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("shard ", shard,
                                                 " does not exist: this server has ",
                                                 set_->shards.size(), ", numbered from 0"));
}

void ShardService::OpenLane(ControlCall* call, const v1::OpenLaneRequest* request,
                            v1::OpenLaneResponse* response) {
  Caller caller = call->caller();
  absl::StatusOr<Principal> who = Judge(caller, *request);
  if (!who.ok()) return FinishNow(call, who.status());
  // A caller that means another server may well name a shard that we do not have.
  const uint64_t incarnation = set_->incarnation.load(std::memory_order_acquire);
  if (incarnation != 0 && request->server_incarnation() != incarnation) {
    return FinishNow(call, absl::FailedPreconditionError(absl::StrCat(
                               "this is server incarnation ", incarnation, ", not ",
                               request->server_incarnation(), "; fetch the cluster view again")));
  }
  if (absl::Status status = CheckShard(request->shard()); !status.ok()) {
    return FinishNow(call, status);
  }
  ShardExecutor* executor = &set_->shards[request->shard()].machine->executor();
  const bool of_server = ScopeOf(*request, ViewScan(*access_->Get().view)).of_server;
  return HandleBy(
      InTurn(executor, *call), call, *request, response, kShardTimeout,
      absl::StrCat("shard ", request->shard()),
      [this, executor, of_server, caller = std::move(caller), who = *std::move(who)](
          const v1::OpenLaneRequest& copy, Answerer<v1::OpenLaneResponse> answer) {
        absl::StatusOr<v1::OpenLaneResponse> granted = executor->OpenLane(copy);
        const std::string opener = OpenerOf(copy, of_server);
        gate_.Ended(caller, who, MethodOf<v1::OpenLaneRequest>(),
                    absl::StrCat(opener, ", shard ", copy.shard()), granted.status());
        if (granted.ok()) {
          lane_log_.Write(absl::StrCat("shard ", copy.shard(), ": lane ", granted->lane(),
                                       " granted to ", opener, " over ", granted->transport(),
                                       granted->device().empty() ? "" : " on ", granted->device(),
                                       " (", granted->transport_reason(), ")"));
        } else {
          refusal_log_.Write(absl::StrCat("shard ", copy.shard(), ": no lane for ", opener, ": ",
                                          granted.status().message()));
        }
        answer(std::move(granted));
      });
}

void ShardService::CloseLane(ControlCall* call, const v1::CloseLaneRequest* request,
                             v1::CloseLaneResponse* response) {
  absl::StatusOr<Principal> who = Judge(call->caller(), *request);
  if (!who.ok()) return FinishNow(call, who.status());
  if (absl::Status status = CheckShard(request->shard()); !status.ok()) {
    return FinishNow(call, status);
  }
  ShardExecutor* executor = &set_->shards[request->shard()].machine->executor();
  return HandleBy(
      InTurn(executor, *call), call, *request, response, kShardTimeout,
      absl::StrCat("shard ", request->shard()),
      [executor](const v1::CloseLaneRequest& copy, Answerer<v1::CloseLaneResponse> answer) {
        const absl::Status status = executor->CloseLane(copy);
        if (!status.ok()) return answer(status);
        answer(v1::CloseLaneResponse());
      });
}

void ShardService::GetStatistics(ControlCall* call, const v1::GetStatisticsRequest* request,
                                 v1::GetStatisticsResponse* response) {
  absl::StatusOr<Principal> who = Judge(call->caller(), *request);
  if (!who.ok()) return FinishNow(call, who.status());
  using Call = UnaryCall<v1::GetStatisticsResponse>;
  auto unary = std::make_shared<Call>(call, response);
  unary->SetDeadline(kStatisticsTimeout, absl::StrCat("not every shard answered within ",
                                                      absl::FormatDuration(kStatisticsTimeout)));
  auto answer = std::make_shared<Answerer<v1::GetStatisticsResponse>>(unary);
  Inbox::Closure closure = [this, partitions = request->partitions(), answer] {
    Gather(partitions, answer);
  };
  const auto refuse = [unary](const absl::Status& status) { unary->Finish(status); };
  if (const absl::Status posted = statistics_.Post(QueueOf(call->caller()), closure, refuse);
      !posted.ok()) {
    CountExceeded(Budget::kStatisticsQueue);
    return unary->Finish(posted);
  }
  GatherNext();
}

void ShardService::GatherNext() {
  // Posted by another thread between the two looks: that thread saw `gathering_` set.
  while (!statistics_.empty() && !gathering_.exchange(true)) {
    if (statistics_.RunOne()) return;
    gathering_ = false;
  }
}

void ShardService::Gather(bool partitions,
                          const std::shared_ptr<Answerer<v1::GetStatisticsResponse>>& answer) {
  RequestSnapshots(*set_, partitions, [this, set = set_, answer](const Snapshots& snapshots) {
    v1::GetStatisticsResponse result;
    result.set_incarnation(set->incarnation.load(std::memory_order_acquire));
    for (size_t i = 0; i < snapshots.size(); ++i) {
      v1::ShardStatistics* out = result.add_shards();
      out->set_shard(static_cast<uint32_t>(i));
      out->set_cpu_seconds(set->shards[i].driver->cpu_seconds());
      if (snapshots[i].has_value()) Fill(*snapshots[i], out);
    }
    (*answer)(std::move(result));
    gathering_ = false;
    GatherNext();
  });
}

// ---- saves and restores -------------------------------------------------------------------------

template <typename Request>
absl::StatusOr<ShardExecutor*> ShardService::ExecutorOf(const Request& request) const {
  const uint64_t incarnation = set_->incarnation.load(std::memory_order_acquire);
  if (request.server_incarnation() != incarnation) {
    return absl::AbortedError(absl::StrCat("this is server incarnation ", incarnation, ", not ",
                                           request.server_incarnation()));
  }
  if (absl::Status status = CheckShard(request.shard()); !status.ok()) return status;
  return &set_->shards[request.shard()].machine->executor();
}

template <typename Request, typename Response, typename F>
void ShardService::OnShard(ControlCall* call, const Request* request, Response* response,
                           absl::Duration timeout, F handle) {
  Caller caller = call->caller();
  absl::StatusOr<Principal> who = Judge(caller, *request);
  if (!who.ok()) return FinishNow(call, who.status());
  const absl::StatusOr<ShardExecutor*> executor = ExecutorOf(*request);
  if (!executor.ok()) return FinishNow(call, executor.status());
  const Asked asked{*executor, std::move(caller), *std::move(who)};
  return HandleBy(InTurn(*executor, *call), call, *request, response, timeout,
                  absl::StrCat("shard ", request->shard()),
                  [asked, handle](const Request& copy, Answerer<Response> answer) {
                    handle(asked, copy, std::move(answer));
                  });
}

// The reply of a handler that reports only success or an error.
template <typename Response>
void AnswerWith(const absl::Status& status, Answerer<Response> answer) {
  if (!status.ok()) return answer(status);
  answer(Response());
}

template <typename Request, typename Response, typename Reply>
void ShardService::Wait(ControlCall* call, const Request* request, Response* response,
                        void (ShardExecutor::*wait_for)(const Request&, Reply)) {
  const absl::Duration wait = std::min(absl::Milliseconds(request->wait_ms()), kLongestWait);
  return OnShard(call, request, response, wait + kShardTimeout,
                 [wait, wait_for](const Asked& asked, Request copy, Answerer<Response> answer) {
                   copy.set_wait_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(wait)));
                   (asked.executor->*wait_for)(copy, std::move(answer));
                 });
}

void ShardService::BeginCheckpoint(ControlCall* call, const v1::BeginCheckpointRequest* request,
                                   v1::BeginCheckpointResponse* response) {
  return OnShard(
      call, request, response, kShardTimeout,
      [this](const Asked& asked, const v1::BeginCheckpointRequest& copy,
             Answerer<v1::BeginCheckpointResponse> answer) {
        absl::StatusOr<v1::BeginCheckpointResponse> begun = asked.executor->BeginCheckpoint(copy);
        gate_.Ended(asked.caller, asked.who, MethodOf<v1::BeginCheckpointRequest>(),
                    absl::StrCat("save ", copy.checkpoint(), " to ", copy.directory(), ", shard ",
                                 copy.shard()),
                    begun.status(),
                    /*changed=*/!copy.only_look() && !(begun.ok() && begun->too_late()));
        if (!begun.ok()) {
          refusal_log_.Write(absl::StrCat("shard ", copy.shard(), ": save ", copy.checkpoint(),
                                          " refused: ", begun.status().message()));
        }
        answer(std::move(begun));
      });
}

void ShardService::WaitCheckpoint(ControlCall* call, const v1::WaitCheckpointRequest* request,
                                  v1::WaitCheckpointResponse* response) {
  return Wait(call, request, response, &ShardExecutor::WaitCheckpoint);
}

void ShardService::EndCheckpoint(ControlCall* call, const v1::EndCheckpointRequest* request,
                                 v1::EndCheckpointResponse* response) {
  return OnShard(call, request, response, kShardTimeout,
                 [](const Asked& asked, const v1::EndCheckpointRequest& copy,
                    Answerer<v1::EndCheckpointResponse> answer) {
                   AnswerWith(asked.executor->EndCheckpoint(copy), std::move(answer));
                 });
}

void ShardService::BeginRestore(ControlCall* call, const v1::BeginRestoreRequest* request,
                                v1::BeginRestoreResponse* response) {
  return OnShard(call, request, response, kShardTimeout,
                 [this](const Asked& asked, const v1::BeginRestoreRequest& copy,
                        Answerer<v1::BeginRestoreResponse> answer) {
                   const absl::Status begun = asked.executor->BeginRestore(copy);
                   gate_.Ended(asked.caller, asked.who, MethodOf<v1::BeginRestoreRequest>(),
                               absl::StrCat("restore ", copy.restore(), " from ", copy.path(),
                                            ", shard ", copy.shard()),
                               begun);
                   AnswerWith(begun, std::move(answer));
                 });
}

void ShardService::WaitRestore(ControlCall* call, const v1::WaitRestoreRequest* request,
                               v1::WaitRestoreResponse* response) {
  return Wait(call, request, response, &ShardExecutor::WaitRestore);
}

}  // namespace verbena::server
