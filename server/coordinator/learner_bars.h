// Servers that get no learner for a while, so that a learner that its primary could not reach, or
// for which the server had no memory, is not retried in a loop.
//
// A server that had no memory for a learner gets none for a pause. Then it gets one at a time,
// until one becomes a follower. The pause doubles each time that it ends without success for some
// partition, so that revisions of the view and copied bytes are bounded, however often it happens.
// A dropped table ends the pauses: its memory is free.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_COORDINATOR_LEARNER_BARS_H_
#define VERBENA_SERVER_COORDINATOR_LEARNER_BARS_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

class LearnerBars {
 public:
  // Pauses of a server without memory: one lease, and twice as long each time, up to this many.
  static constexpr int64_t kLongestPauseLeases = 64;

  // A server that had no memory for learners.
  struct Full {
    int64_t until_ns = 0;                 // it gets no learner before
    int64_t forget_ns = 0;                // it counts as one with memory from then on
    int64_t pause_ns = 0;                 // the last one
    bool has_room = false;                // a learner has become a follower since
    std::map<uint32_t, int64_t> refused;  // partitions, and when
  };

  void Add(uint32_t partition, uint64_t server, int64_t until_ns);
  void AddFull(uint32_t partition, uint64_t server, int64_t now_ns, int64_t lease_ns);
  // Servers whose pause has begun since the last call.
  std::vector<uint64_t> TakeBegun() { return std::exchange(begun_, {}); }
  // A learner there has become a follower.
  void Admitted(uint32_t partition, uint64_t server);
  // Something was dropped on all servers, so they may have memory.
  void Freed(int64_t now_ns);
  bool Has(uint32_t partition, uint64_t server, int64_t now_ns) const;
  // Whether the server gets one learner at a time.
  bool OneAtATime(uint64_t server) const;
  // When a server last had no memory for the partition; 0: never.
  int64_t RefusedAt(uint32_t partition) const;
  const std::map<uint64_t, Full>& full() const { return full_; }
  void EndDue(int64_t now_ns);
  int64_t NextDueNanos() const { return next_; }  // INT64_MAX: there is none

 private:
  void FindNext(int64_t now_ns);

  std::map<std::pair<uint32_t, uint64_t>, int64_t> until_;
  std::map<uint64_t, Full> full_;  // by server
  std::vector<uint64_t> begun_;    // TakeBegun()
  int64_t next_ = INT64_MAX;
};

// Whether the partition has too few replicas, or a planned move or the drain of a server waits for
// one.
bool WantsReplica(const v1::Partition& partition, const v1::ClusterView& view);
// Partitions that want a replica for which a server had no memory.
std::set<uint32_t> PartitionsRefused(const LearnerBars& bars, const v1::ClusterView& view);

// The servers of the view that had no memory for replicas of partitions that want one.
void AddFullServers(const LearnerBars& bars, int64_t now_ns, const v1::ClusterView& view,
                    v1::GetViewResponse* response);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_LEARNER_BARS_H_
