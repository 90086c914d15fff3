// The lanes of a shard: connecting and closing.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_SHARD_LANES_H_
#define VERBENA_SERVER_EXECUTOR_SHARD_LANES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/executor/lane_state.h"
#include "server/executor/shard_executor.h"
#include "server/nanoseconds.h"

namespace verbena::server {

struct ShardCore;

class ShardLanes {
 public:
  explicit ShardLanes(ShardCore* core) : core_(*core) { events_.resize(16); }
  // Gives pins back to the engine of each lane.
  ~ShardLanes();

  bool PollEvents(size_t transport);
  // Null: none of this shard's.
  Lane* Find(TransportLink* link, rdma::ConnectionId connection) {
    if (connection == link->last_connection) return link->last_lane;
    const auto it = link->by_connection.find(static_cast<uint32_t>(connection));
    if (it == link->by_connection.end()) return nullptr;
    link->last_connection = connection;
    link->last_lane = it->second;
    return it->second;
  }
  // By id; null: none connected.
  const std::vector<std::unique_ptr<Lane>>& all() const { return lanes_; }
  // Notices that a lane has left kOpen by itself. Returns whether it may still be used.
  bool Usable(Lane* lane);
  // Closes a lane; the engine forgets it at once.
  void Close(Lane* lane, absl::Status reason);
  void CloseAll(const absl::Status& reason);
  // Closes the lanes of peers that the view does not allow any more.
  void Retire();
  absl::Status CloseLane(const v1::CloseLaneRequest& request);
  // Whether a new lane of `peer` over that link ends `lane`.
  bool TakesPlace(const LanePeer& peer, size_t link, const Lane& lane) const;

  // Lanes that are closed, as far as their transports are done.
  bool Reap();
  bool closing() const { return !closing_.empty(); }
  // Connections that were not established in time.
  void CheckAccepting(int64_t now);
  // Lanes whose writes hang.
  void CheckWrites(int64_t now);
  int64_t next_write_check_ns() const { return next_write_check_ns_; }
  uint64_t retired_credits() const { return retired_credits_; }  // messages, of lanes that are gone

 private:
  void OnRequest(size_t transport, const rdma::ConnectionEvent& event);
  void CloseOlder(const LaneGrant& grant);
  void StartClosing(Lane* lane);

  ShardCore& core_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> closing_;
  int64_t next_write_check_ns_ = kNever;
  uint64_t retired_credits_ = 0;
  // Reused.
  std::vector<rdma::ConnectionEvent> events_;
  std::vector<uint64_t> written_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_SHARD_LANES_H_
