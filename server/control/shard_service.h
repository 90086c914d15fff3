// verbena.v1.Shard over gRPC: each call is authorized by the newest view, then posted to its
// shard's thread.
//
// **Thread safety**: thread-safe (gRPC calls it from its own threads).
#ifndef VERBENA_SERVER_CONTROL_SHARD_SERVICE_H_
#define VERBENA_SERVER_CONTROL_SHARD_SERVICE_H_

#include <atomic>
#include <memory>

#include "server/access/gate.h"
#include "server/access/peer_log.h"
#include "server/control/control_call.h"
#include "server/control/shard_set.h"
#include "server/control/unary_call.h"
#include "server/executor/fair_queue.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

class ShardService final : public ControlService {
 public:
  // All outlive it.
  ShardService(const ShardSet* set, const AccessState* access, AuditLog* audit);

  void OpenLane(ControlCall* call, const v1::OpenLaneRequest* request,
                v1::OpenLaneResponse* response);
  void CloseLane(ControlCall* call, const v1::CloseLaneRequest* request,
                 v1::CloseLaneResponse* response);
  void BeginCheckpoint(ControlCall* call, const v1::BeginCheckpointRequest* request,
                       v1::BeginCheckpointResponse* response);
  void WaitCheckpoint(ControlCall* call, const v1::WaitCheckpointRequest* request,
                      v1::WaitCheckpointResponse* response);
  void EndCheckpoint(ControlCall* call, const v1::EndCheckpointRequest* request,
                     v1::EndCheckpointResponse* response);
  void BeginRestore(ControlCall* call, const v1::BeginRestoreRequest* request,
                    v1::BeginRestoreResponse* response);
  void WaitRestore(ControlCall* call, const v1::WaitRestoreRequest* request,
                   v1::WaitRestoreResponse* response);
  void GetStatistics(ControlCall* call, const v1::GetStatisticsRequest* request,
                     v1::GetStatisticsResponse* response);

 private:
  absl::Status Admit(Caller* caller, const std::string& method) const override;
  // INVALID_ARGUMENT naming the shards there are.
  absl::Status CheckShard(uint32_t shard) const;
  // The caller of a call about a checkpoint.
  template <typename Request>
  absl::StatusOr<ShardExecutor*> ExecutorOf(const Request& request) const;

  // The caller, if it is authorized.
  template <typename Request>
  absl::StatusOr<Principal> Judge(const Caller& caller, const Request& request) const;

  // A call about a checkpoint or restore, in flight to the shard's thread.
  struct Asked {
    ShardExecutor* executor;
    Caller caller;
    Principal who;
  };
  // Runs handle(asked, request, answerer) on the thread of the shard that the request names.
  template <typename Request, typename Response, typename F>
  void OnShard(ControlCall* call, const Request* request, Response* response,
               absl::Duration timeout, F handle);
  // A call that the shard answers later, within the request's wait_ms.
  template <typename Request, typename Response, typename Reply>
  void Wait(ControlCall* call, const Request* request, Response* response,
            void (ShardExecutor::*wait_for)(const Request&, Reply));

  // Statistics of all shards: one at a time, the callers in turn, so that requests for them take a
  // bounded share of the shards' time.
  void GatherNext();
  void Gather(bool partitions, const std::shared_ptr<Answerer<v1::GetStatisticsResponse>>& answer);

  const ShardSet* const set_;
  const AccessState* const access_;
  const Gate gate_;
  PeerLog lane_log_, refusal_log_;
  const MonotonicClock clock_;
  FairQueue statistics_{&clock_};
  std::atomic<bool> gathering_{false};  // one of statistics_ is at the shards
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_SHARD_SERVICE_H_
