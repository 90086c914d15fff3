// verbena.v1.Shard over gRPC: each call is posted to its shard's thread.
//
// **Thread safety**: thread-safe (gRPC calls it from its own threads).
#ifndef VERBENA_SERVER_CONTROL_SHARD_SERVICE_H_
#define VERBENA_SERVER_CONTROL_SHARD_SERVICE_H_

#include "proto/verbena/v1/shard.grpc.pb.h"
#include "server/control/shard_set.h"

namespace verbena::server {

class ShardService final : public v1::Shard::CallbackService {
 public:
  explicit ShardService(const ShardSet* set) : set_(set) {}

  grpc::ServerUnaryReactor* OpenLane(grpc::CallbackServerContext* context,
                                     const v1::OpenLaneRequest* request,
                                     v1::OpenLaneResponse* response) override;
  grpc::ServerUnaryReactor* CloseLane(grpc::CallbackServerContext* context,
                                      const v1::CloseLaneRequest* request,
                                      v1::CloseLaneResponse* response) override;
  grpc::ServerUnaryReactor* GetStatistics(grpc::CallbackServerContext* context,
                                          const v1::GetStatisticsRequest* request,
                                          v1::GetStatisticsResponse* response) override;

 private:
  // INVALID_ARGUMENT naming the shards there are.
  absl::Status CheckShard(uint32_t shard) const;

  const ShardSet* const set_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_SHARD_SERVICE_H_
