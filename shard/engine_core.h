// The inside of an Engine: owns its tables, partitions, jobs, memory and log. The rest is done by
// parts, each with one job, which reach each other through it:
//
//     part          job                                                   file
//     jobs          members, readers and memory of jobs                   view/jobs.h
//     view          views of the cluster: partitions, order of the parts  view/view_follower.h
//     placement     tables that the view creates, places, resets, drops   view/table_placement.h
//     replicas      replicas elsewhere: records for them, their answers   replica/replicas.h
//     records       records that have content                             replica/records.h
//     catch_up      content from before a learner's first record          replica/catch_up.h
//     proofs        comparisons of replicas with their primary            replica/proofs.h
//     copies        replicas here: the records of their primaries         replica/copies.h
//     copy_reads    pulls that these answer                               replica/copy_reads.h
//     checkpoints   checkpoints in progress                               checkpoint/checkpoints.h
//     restores      restores in progress                                  checkpoint/restores.h
//     cold_events   rows that are not in memory                           cold_events.h
//
// Requests of workers are in engine_requests.cc (dense tables, steps), engine_rows.cc (embedding
// tables), engine_norms.cc (steps in two phases) and engine_optimizer.cc (changes of optimizers).
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_ENGINE_CORE_H_
#define VERBENA_SHARD_ENGINE_CORE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "shard/checkpoint/checkpoints.h"
#include "shard/checkpoint/restores.h"
#include "shard/cold_events.h"
#include "shard/engine.h"
#include "shard/partition/sink.h"
#include "shard/replica/catch_up.h"
#include "shard/replica/copies.h"
#include "shard/replica/copy_reads.h"
#include "shard/replica/log.h"
#include "shard/replica/proofs.h"
#include "shard/replica/records.h"
#include "shard/replica/replicas.h"
#include "shard/table/buffer_pool.h"
#include "shard/table/cold_io.h"
#include "shard/table_state.h"
#include "shard/view/jobs.h"
#include "shard/view/table_placement.h"
#include "shard/view/view_follower.h"

namespace verbena::shard {

struct EngineCore {
  explicit EngineCore(EngineOptions o);

  // ---- objects of requests ----
  // Table and member of a request; kOk or why not.
  ReplyStatus Find(uint64_t worker, uint32_t table, TableState** state,
                   const Members::Member** member);
  // kOk: *slice is ready, or kNone when the table has no chunk in the partition.
  ReplyStatus FindLocalPartition(const TableState& state, const Group& group,
                                 uint32_t* slice) const;
  ReplyStatus FindChunk(const TableState& state, const Group& group, uint32_t* chunk) const;
  // Find() for requests about rows: the table is an embedding table.
  ReplyStatus FindRows(uint64_t worker, uint32_t table, TableState** state,
                       const Members::Member** member);
  // kOk: *slice is ready and has all the group's keys.
  ReplyStatus FindKeys(const TableState& state, const Group& group, absl::Span<const uint64_t> keys,
                       uint32_t* slice) const;
  // kOk, or a read has to wait because a failover might take this data back.
  ReplyStatus CheckRead(uint32_t partition, uint32_t table) const {
    return log.MayRead(partition, table) ? ReplyStatus::kOk : ReplyStatus::kNotReady;
  }
  // kOk, or the sender's view has workers that joined and this one lacks. A step that waits for
  // them must not commit without them.
  static ReplyStatus CheckAdmission(const TableState& state, absl::Span<const Group> groups);
  // kOk, or a push has to wait for replicas.
  ReplyStatus CheckCopies(uint32_t partition) const {
    return partitions[partition].enough ? ReplyStatus::kOk : ReplyStatus::kNotReady;
  }
  // Whether a request that pushes to these groups of an async or ssp table has to wait for room.
  bool LacksRoom(const TableState& state, absl::Span<const Group> groups);
  // Whether such a request goes on without this one of its groups, which is refused: its partition
  // is being handed over. With all of its groups it would wait for one partition after another.
  bool LeavesOut(const TableState& state, absl::Span<const Group> groups, uint32_t partition) const;
  // The same for a request that makes a record in a table of any consistency.
  bool LacksLogRoom(const TableState& state, absl::Span<const Group> groups);

  // ---- answers ----
  GroupsOutcome RefuseGroups(size_t groups, ReplyStatus status);
  GroupsOutcome NoRoom(size_t groups);
  void CountAnswer(ReplyStatus status);

  // ---- shared by the parts ----
  void RetryBlocked();
  // Continues steps that wait for room in the log, and sets `room`.
  void FollowRoom();
  // The slice is not served here any more: answers its waiting requests with `why`.
  void LeaveLocalPartition(TableState* state, uint32_t slice, ReplyStatus why);
  // Adds the shard that makes the commit, and calls the observer.
  void Observe(Commit commit) const;

  const EngineOptions options;
  HeapAllocator heap;
  EngineContext sink;
  Jobs jobs;  // before the pool: buffers count for a job's account
  BufferPool pool;
  ColdIo cold;
  ReplicaLog log;
  uint64_t revision = 0;
  uint32_t highest_table = 0;
  uint32_t seconds = 0;  // SetSeconds()
  bool room = false;     // TakeRoom()
  std::vector<PartitionInfo> partitions;
  bool partitions_moved = false;          // by the view being applied: some have changed their role
  std::map<uint32_t, TableState> tables;  // ordered: a replayed run makes the same events
  RowTurn turn;
  std::vector<ReplyStatus> group_status;
  std::vector<uint32_t> await_slices;
  // counters.memory_refusals at the last look, and the second of the last look that found it
  // changed.
  uint64_t refusals_seen = 0;
  uint32_t refused_seconds = 0;

  // ---- the parts; gone before tables and pool are ----
  ViewFollower view;
  TablePlacement placement;
  Replicas replicas;
  ReplicaRecords records;
  CatchUp catch_up;
  Proofs proofs;
  CopyReads copy_reads;
  Copies copies;
  Checkpoints checkpoints;
  Restores restores;
  ColdEvents cold_events;
};

// The more informative status of two groups.
ReplyStatus Worse(ReplyStatus a, ReplyStatus b);

// For each group of the request whose partition has a part of the table: `change(group, slice,
// &answer)`, which returns the group's status. The request's answer waits for the replicas of
// the entries that this adds to the log.
template <typename Change>
GroupsOutcome ChangeGroups(EngineCore* core, const TableState& state, const GroupsRequest& request,
                           Change change) {
  GroupsOutcome outcome;
  core->group_status.clear();
  core->log.Ask(&request.token);
  for (const Group& g : request.groups) {
    core->log.AskGroup(static_cast<uint32_t>(core->group_status.size()));
    uint32_t slice = 0;
    ReplyStatus status = core->FindLocalPartition(state, g, &slice);
    if (status == ReplyStatus::kOk) status = core->CheckCopies(g.partition);
    if (status == ReplyStatus::kOk && core->LeavesOut(state, request.groups, g.partition)) {
      status = ReplyStatus::kNotReady;
    }
    if (status == ReplyStatus::kOk && slice != PartitionedTable::kNone) {
      status = change(g, slice, &outcome.answer);
    }
    core->group_status.push_back(status);
    outcome.answer.status = Worse(outcome.answer.status, status);
  }
  core->CountAnswer(outcome.answer.status);
  outcome.replicating = core->log.EndRequest(outcome.answer, core->group_status);
  outcome.group_status = core->group_status;
  return outcome;
}

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_ENGINE_CORE_H_
