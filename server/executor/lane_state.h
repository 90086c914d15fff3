// A lane of a shard, from its grant to its end, and the transport that it is over.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_LANE_STATE_H_
#define VERBENA_SERVER_EXECUTOR_LANE_STATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/wire/operations.h"
#include "rdma/lane/shard_lane.h"
#include "shard/engine.h"

namespace verbena::server {

// ConnectionLimits::domain of lanes between servers. No job has it. It is also the default of a
// transport's own connections.
inline constexpr uint64_t kServersDomain = 0;

// A record that arrived and is not answered yet; by operation.
struct LaneOperation {
  int64_t arrived_ns = 0;
  bool in_use = false;
  wire::Latency latency = wire::Latency::kOther;
  bool deferred = false;
  uint16_t group_count = 1;
};

// The peer that opens a lane.
struct LanePeer {
  uint64_t incarnation = 0;
  bool server = false;
  uint32_t shard = 0;  // of that server
  bool operator==(const LanePeer&) const = default;
};

struct Lane {
  uint32_t id = 0;
  uint32_t generation = 0;
  LanePeer peer;
  uint32_t protocol = 0;
  uint64_t domain = 0;  // its worker's job, or kServersDomain
  size_t transport = 0;
  std::string reason;
  size_t ring_bytes = 0;
  int64_t accept_deadline_ns = 0;
  bool closing = false;           // forgotten by the engine; waits for the transport
  uint64_t registered_block = 0;  // the last one that was registered to write a pull of this lane
  uint32_t deferred = 0;
  std::array<uint32_t, 2> slots_held = {0, 0};  // small, large
  std::vector<LaneOperation> operations;
  // Pins are given back to the engine they were taken from, also after this server has joined
  // again under another incarnation and has a new one.
  std::shared_ptr<shard::Engine> engine;
  std::unique_ptr<rdma::ShardLane> lane;
};

// A lane granted and not connected yet.
struct LaneGrant {
  uint32_t id = 0;
  uint32_t generation = 0;
  LanePeer peer;
  uint32_t protocol = 0;  // version of its records
  uint64_t domain = 0;
  size_t transport = 0;
  std::string reason;
  rdma::LaneConfig config;
  int64_t expires_ns = 0;
};

struct TransportLink {
  std::unique_ptr<rdma::Endpoint> endpoint;
  std::string host;
  std::string address;
  uint32_t rail = 0;
  absl::flat_hash_map<uint32_t, Lane*> by_connection;
  // Completions come in runs of one connection.
  rdma::ConnectionId last_connection = rdma::ConnectionId::kNone;
  Lane* last_lane = nullptr;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_LANE_STATE_H_
