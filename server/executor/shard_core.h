// The inside of a ShardExecutor: the state it owns. The rest is done by parts, each with one job,
// which reach each other through it:
//
//     part        job                                                     file
//     transports  endpoints, and which one a lane is over                 shard_transports.h
//     members     permission for lanes; jobs and their limits               shard_members.h
//     grants      lanes granted and not connected yet, their tokens       lane_grants.h
//     lanes       connecting and closing                                  shard_lanes.h
//     requests    records to the engine, its events to the lanes          request_dispatch.h
//     answers     replies, writes of pulls, slots                         lane_answers.h
//     waiting     requests that wait for room in the replication log      waiting_requests.h
//     starved     tables that wait for memory                             starved_tables.h
//     copies      records for replicas here, leases                       copy_requests.h
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_SHARD_CORE_H_
#define VERBENA_SERVER_EXECUTOR_SHARD_CORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "server/executor/copy_requests.h"
#include "server/executor/fair_queue.h"
#include "server/executor/lane_answers.h"
#include "server/executor/lane_grants.h"
#include "server/executor/largest_chunk.h"
#include "server/executor/request_dispatch.h"
#include "server/executor/shard_executor.h"
#include "server/executor/shard_lanes.h"
#include "server/executor/shard_members.h"
#include "server/executor/shard_transports.h"
#include "server/executor/slab_allocator.h"
#include "server/executor/starved_tables.h"
#include "server/executor/waiting_requests.h"
#include "server/nanoseconds.h"
#include "server/replication/replication.h"

namespace verbena::server {

struct ShardCore {
  ShardCore(const ShardExecutorOptions& o, const Clock* c);
  ~ShardCore();
  // Call when the transports listen.
  void MakePeerLinks(std::unique_ptr<ControlChannel> channel);

  void ReadClock() {
    now_ns = clock->NowNanos();
    if (now_ns >= next_seconds_ns && engine != nullptr) ReadSeconds();
  }
  void ReadSeconds();
  bool RunTimers(int64_t now);
  int64_t NextTimer() const;
  void Log(const std::string& text) const {
    if (options.log) options.log(text);
  }

  const ShardExecutorOptions options;
  const Clock* const clock;
  Inbox inbox;
  FairQueue calls{clock};
  SlabAllocator allocator;
  std::unique_ptr<ControlChannel> control;  // null: none
  ShardTransports transports;

  uint64_t incarnation = 0;
  std::shared_ptr<const v1::ClusterView> view;
  LargestChunk largest_chunk;  // of the view
  absl::Status view_status;
  std::shared_ptr<shard::Engine> engine;  // null before the incarnation is known
  int64_t now_ns = 0;                     // read once per batch
  int64_t next_seconds_ns = 0;
  ShardCounters counters;

  // ---- the parts ----
  ShardMembers members;
  LaneGrants grants;
  ShardLanes lanes;
  RequestDispatch requests;
  LaneAnswers answers;
  WaitingRequests waiting;
  StarvedTables starved;
  CopyRequests copies;

  ShardCheckpoints saves;
  ShardRestores restores;
  std::unique_ptr<Replication> replication;
  // Over the endpoints of `transports`: goes first.
  std::unique_ptr<PeerLinks> peer_links;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_SHARD_CORE_H_
