// Lanes that were granted and are not connected yet: permission, size, and the
// token that connects it.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_LANE_GRANTS_H_
#define VERBENA_SERVER_EXECUTOR_LANE_GRANTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/executor/lane_state.h"
#include "server/executor/shard_executor.h"
#include "server/nanoseconds.h"

namespace verbena::server {

struct ShardCore;

class LaneGrants {
 public:
  // `seed`: of tokens; 0: they come from the system's random source.
  LaneGrants(ShardCore* core, uint64_t seed) : core_(*core), token_state_(seed) {}

  absl::StatusOr<v1::OpenLaneResponse> Open(const v1::OpenLaneRequest& request);
  // The grant of the token that the connection brings; it is none any more.
  absl::StatusOr<LaneGrant> Take(size_t transport, const std::string& private_data,
                                 LaneHello* hello);
  // False: the request is not about a grant.
  bool Close(const v1::CloseLaneRequest& request);
  void DropAll();
  // Grants of peers that the view does not allow lanes any more.
  void DropRetired();
  // Grants that nobody took up.
  void DropLate(int64_t now);
  // A lane of that number, whose rings have these bytes, is gone.
  void Release(uint32_t id, size_t ring_bytes) {
    memory_ -= ring_bytes;
    free_ids_.push_back(id);
  }

  // Whether there is room for a lane on rail 0, after one was refused.
  absl::Status Shortage() const;
  void CountByDomain(absl::flat_hash_map<uint64_t, uint32_t>* counts) const {
    for (const auto& [token, grant] : grants_) ++(*counts)[grant.domain];
  }
  // When a grant, or a lane that is being accepted, is to be looked at.
  int64_t next_check_ns() const { return next_check_ns_; }
  void CheckBy(int64_t ns) { next_check_ns_ = std::min(next_check_ns_, ns); }

 private:
  // The peer that asks; an error if it may not open a lane.
  absl::StatusOr<LanePeer> CheckOpen(const v1::OpenLaneRequest& request) const;
  // Whether a lane on this rail can be granted: rails beyond 0 leave one for rail 0 of each member.
  absl::Status CheckFreeLanes(uint32_t rail) const;
  absl::Status CheckLaneLimit(const LanePeer& peer, size_t link) const;
  // A job's lanes: granted, accepting, open and closing, without those in use that a new lane of
  // `peer` over `link` takes the place of.
  uint32_t LanesOf(uint64_t domain, const LanePeer& peer, size_t link) const;
  // With large slots for a record of `record_bytes`, too.
  absl::StatusOr<rdma::LaneConfig> FitLane(uint32_t record_bytes) const;
  // False: the system has no random numbers yet.
  bool NewToken(std::string* token);
  void Drop(const std::string& token);

  ShardCore& core_;
  absl::flat_hash_map<std::string, LaneGrant> grants_;  // by token
  uint32_t ids_ = 0;                                    // given so far; RequestImm has twelve bits
  std::vector<uint32_t> free_ids_;
  uint32_t next_generation_ = 1;
  uint64_t memory_ = 0;   // rings of lanes connected and granted
  bool refused_ = false;  // the last request for a lane found no room
  uint64_t token_state_;
  int64_t next_check_ns_ = kNever;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_LANE_GRANTS_H_
