// The inside of an Engine, for the files that make it up: engine.cc (life, events, counters),
// engine_cold.cc (rows that are not in memory), engine_view.cc (changes of the view),
// engine_requests.cc (dense tables, steps), engine_rows.cc (embedding tables), engine_norms.cc
// (steps in two phases), engine_replicas.cc (replicas of this shard's partitions), engine_copies.cc
// (replicas that this shard has), engine_checkpoint.cc (checkpoints), engine_restore.cc (restores).
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_ENGINE_IMPL_H_
#define VERBENA_SHARD_ENGINE_IMPL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "proto/control/view_difference.h"
#include "shard/checkpoint/partition_checkpoint.h"
#include "shard/checkpoint/restore.h"
#include "shard/engine.h"
#include "shard/partition/deferred_lookups.h"
#include "shard/partition/deferred_pulls.h"
#include "shard/partition/dense_consistency.h"
#include "shard/partition/members.h"
#include "shard/partition/row_consistency.h"
#include "shard/partition/sink.h"
#include "shard/replica/log.h"
#include "shard/table/buffer_pool.h"
#include "shard/table/dense_table.h"
#include "shard/table/embedding_table.h"
#include "shard/table/row_lookahead.h"

namespace verbena::shard {

// A partition in the last view.
struct PartitionInfo {
  uint64_t epoch = 0;
  bool ours = false;   // this shard is the primary
  bool copy = false;   // it is a follower or a learner
  uint64_t since = 0;  // which it is since that configuration
  CopyId primary;
  bool enough = true;  // there are as many replicas as a push has to have
  // By the view being applied:
  bool epoch_changed = false;
  bool promoted = false;  // from a copy to the primary
  // It is the primary without having been promoted: its content was lost, and reset since, in views
  // that this shard has not seen.
  bool renewed = false;
  bool stale = false;  // the content here is outdated: from a time as primary or learner
};

// A replica of a partition that this shard has.
struct CopyState {
  // Tables whose slice the primary began here (kFresh, kBeginPartition), and which was not dropped
  // since: only those take other records. A slice that is here by the view alone may be another
  // life of the table's partition than the primary's.
  absl::flat_hash_set<uint32_t> announced;
  bool begun = false;     // by a kBegin in this epoch
  bool learning = false;  // and not complete
  uint64_t expected = 0;  // of a learner: bytes that rows to come will take
  uint64_t sequence = 0;  // of the last record
  // The parts of the next one, as far as they have come.
  Buffer parts;
  uint32_t parts_bytes = 0;
};

// Facts about a slice of a replica that its table does not hold.
struct CopyMarks {
  uint32_t generation = 0;  // of the job, as of the last record
  std::map<uint64_t, WorkerMark> workers;
};

struct JobState {
  std::string name;
  std::set<uint32_t> tables;
  Members members;
  JobAccount* account = nullptr;
  Members::Change change = Members::Change::kNone;  // by the view being applied
};

struct DenseState {
  std::unique_ptr<DenseTable> table;
  std::unique_ptr<DeferredPulls> parking;
  std::unique_ptr<DenseConsistency> consistency;
};
struct RowState {
  std::unique_ptr<EmbeddingTable> table;
  std::unique_ptr<DeferredLookups> parking;
  std::unique_ptr<RowConsistency> consistency;
};

struct TableState {
  // One of the two, or none: the specification cannot be served here; the table answers
  // kUnavailable.
  DenseState dense;
  RowState rows;
  // The parts of that one.
  PartitionedTable* table = nullptr;
  DeferredRequests* parking = nullptr;
  Consistency* consistency = nullptr;
  JobState* job = nullptr;
  std::map<uint32_t, CopyMarks> marks;  // by partition: those that are replicas
  std::vector<Placement> placement;     // by partition
  std::vector<uint32_t> lost;           // partitions, as the last view has them
  bool starved = false;                 // slices that are not ready lack memory
  absl::Status unserved;                // not OK: why the last view could not be followed
  bool lacks_cold_store = false;        // it cannot be served here, but elsewhere
  std::unique_ptr<Restore> restore;     // null: it is not being restored
};

struct Engine::Impl {
  struct Copied;
  explicit Impl(EngineOptions o);
  ~Impl();

  // ---- the view ----
  absl::Status CheckPartitions(const v1::ClusterView& view) const;
  void UpdatePartitions(const v1::ClusterView& view);
  const v1::Replica* FindReplica(const v1::Partition& partition) const;
  // `what` is different from the view before: nothing else is looked at.
  void DropTables(const v1::ClusterView& view, const ViewDifference& what);
  void DropTable(uint32_t id);
  absl::Status UpdateJobs(const v1::ClusterView& view, const ViewDifference& what);
  // Null: the view has no such job (any more).
  void UpdateJob(const std::string& name, const v1::Job* job);
  // Ids of the tables that have to follow the view.
  std::vector<uint32_t> ToFollow(const v1::ClusterView& view, const ViewDifference& what) const;
  absl::Status UpdateTables(const v1::ClusterView& view, const std::vector<uint32_t>& ids);
  absl::Status UpdateTable(const v1::Table& table);
  absl::Status CreateTable(const v1::Table& table, TableState* state);
  absl::Status CreateDense(const v1::Table& table, TableState* state);
  absl::Status CreateRows(const v1::Table& table, TableState* state);
  absl::Status Place(const v1::Table& table, TableState* state);
  // Whether Place() has something to do.
  bool HasToPlace(const v1::Table& table, const TableState& state) const;
  // The slice is not served here any more: answers its waiting requests with `why`.
  void LeaveLocalPartition(TableState* state, uint32_t slice, ReplyStatus why);
  void ResetTable(TableState* state);
  void FollowRestore(const v1::Table& table, TableState* state);
  JobState* JobOf(const std::string& name);
  void LimitJobs(const v1::ClusterView& view, const ViewDifference& what);
  void ForgetJobs(const ViewDifference& what);

  // ---- requests ----
  // Table and member of a request; kOk or why not.
  ReplyStatus Find(uint64_t worker, uint32_t table, TableState** state,
                   const Members::Member** member);
  bool IsMember(uint64_t incarnation) const;  // of any job
  // kOk: *slice is ready, or kNone when the table has no chunk in the partition.
  ReplyStatus FindLocalPartition(const TableState& state, const Group& group,
                                 uint32_t* slice) const;
  ReplyStatus FindChunk(const TableState& state, const Group& group, uint32_t* chunk) const;
  ReplyStatus CheckPayload(const PushRequest& request, const DenseTable& table,
                           const DenseTable::Chunk& chunk) const;
  PushOutcome Push(const PushRequest& request);
  // Find() for requests about rows: the table is an embedding table.
  ReplyStatus FindRows(uint64_t worker, uint32_t table, TableState** state,
                       const Members::Member** member);
  // kOk: *slice is ready and has all the group's keys.
  ReplyStatus FindKeys(const TableState& state, const Group& group, absl::Span<const uint64_t> keys,
                       uint32_t* slice) const;
  // Adds the keys of those groups that are served here, which will be looked for in turn.
  void LookAhead(const TableState& state, absl::Span<const Group> groups,
                 absl::Span<const uint64_t> keys, RowLookahead* ahead) const;
  // FindRows() for a table whose steps need norms over several chunks.
  ReplyStatus FindNorms(uint64_t worker, uint32_t table, TableState** state, shard::Norms** norms);
  GroupsOutcome RefuseGroups(size_t groups, ReplyStatus status);
  GroupsOutcome NoRoom(size_t groups);
  PullOutcome RefuseLookup(size_t groups, ReplyStatus status);
  void CountAnswer(ReplyStatus status);
  // Adds the shard that makes the commit, and calls the observer.
  void Observe(Commit commit) const;
  void RetryBlocked();
  // Continues steps that wait for room in the log, and sets TakeRoom().
  void FollowRoom();
  // Whether a request that pushes to these groups of an async or ssp table has to wait for room.
  bool LacksRoom(const TableState& state, absl::Span<const Group> groups);
  bool LacksLogRoom(const TableState& state, absl::Span<const Group> groups);

  // ---- engine_optimizer.cc ----
  // One group of a SetOptimizer().
  struct SliceChange {
    uint64_t worker;
    const Members::Member& member;
    const Group& group;
    absl::Span<const NamedValue> values;
    TableState* state;
    uint32_t slice;
  };
  bool BeginOptimizerRecord(const SliceChange& change, uint64_t sequence, uint64_t least,
                            ReplicaLog::Append* told);
  ReplyStatus ChangeSlice(const SliceChange& change, uint64_t* from);
  void FillOptimizer(const TableState& state, TableStatistics* statistics) const;
  // Handles results of the cold store, and requests that waited for them.
  void RunCold();
  void LoseRow(const ColdIo::Failure& failure);
  // kOk, or a read has to wait because a failover might take this data back.
  ReplyStatus CheckRead(uint32_t partition, uint32_t table) const {
    return log.MayRead(partition, table) ? ReplyStatus::kOk : ReplyStatus::kNotReady;
  }
  // kOk, or a push has to wait for replicas.
  ReplyStatus CheckCopies(uint32_t partition) const {
    return partitions[partition].enough ? ReplyStatus::kOk : ReplyStatus::kNotReady;
  }

  // ---- engine_replicas.cc: as the primary ----
  // `followed`: the tables that followed the view.
  void FollowCopies(const v1::ClusterView& view, const ViewDifference& what,
                    const std::vector<uint32_t>& followed);
  void ReplicateClocks(uint32_t partition);
  // A learner gets rows by number: rows that were sent keep their numbers.
  void KeepNumbers(uint32_t partition);
  void KeepNumbersOf(const TableState& state);
  // Slices that were replicas until this view.
  void Adopt(TableState* state);
  // Sends learners more of the data from before their time. Returns whether rows are left that this
  // turn did not look at.
  bool ReplicateLearners();
  // The end of the `rows`, from `from` on, that this turn may look at.
  uint32_t EndOfLook(uint32_t from, uint32_t rows) const;
  // False: nothing more for now.
  bool ReplicateLearner(uint32_t partition);
  bool ReplicateLocalPartition(uint32_t partition, const TableState& state, uint32_t slice);
  // Before a push: a slice that it makes rows of is sent to a learner now, rather than in its turn.
  // The push is then a record, and waits for room. Without it, rows would be made faster than the
  // cursor sends them. False: there is no room for the slice.
  bool ReplicateGrowing(const TableState& state, absl::Span<const Group> groups,
                        absl::Span<const uint64_t> keys);
  // Adds the known state of workers to the record, as its payload. False: no memory.
  bool AddMarks(const TableState& state, uint32_t slice, ReplicaLog::Append* told);
  bool ReplicateChunk(uint32_t partition, const TableState& state, uint32_t slice);
  bool ReplicateRows(uint32_t partition, const TableState& state, uint32_t slice);
  // The slice has become ready: a replica that has received it starts with the same content.
  void Announce(const TableState& state, uint32_t slice);
  void AnnounceAll(uint32_t partition);
  // Whether the table in this partition is as the last record made it. False: not yet.
  bool AtLastRecord(uint32_t partition, const TableState& state, uint32_t slice);

  // ---- engine_proof.cc: comparisons of a replica with its primary ----
  enum class Proved : uint8_t { kSome, kWait, kAll };
  // Adds the next record of a comparison. kWait: nothing more for now.
  Proved Prove(uint32_t partition, ReplicaLog::Proof* at, uint64_t* record);
  // Compares the learner's content once more, in one turn, before it becomes a follower: of every
  // table the versions, rows and marks, and contents as far as a turn allows. False: not now.
  bool ProveAgain(uint32_t partition);
  // The part of a turn that is of the audit's partition, which has a follower.
  void AuditPartition();
  uint64_t ProveChunk(uint32_t partition, const TableState& state, uint32_t index);
  uint64_t ProveRows(uint32_t partition, const TableState& state, uint32_t slice,
                     absl::Span<const uint32_t> rows);
  uint64_t ProveLocalPartition(uint32_t partition, const TableState& state, uint32_t slice);
  // As a replica: kDataLoss: it is not equal.
  ReplyStatus CheckRows(const Copied& c);
  ReplyStatus CheckChunk(const Copied& c);
  ReplyStatus CheckLocalPartition(const Copied& c);
  // Adds a record of the current content.
  uint64_t AddChunk(uint32_t partition, const TableState& state, uint32_t index, uint64_t version);
  uint64_t AddRows(uint32_t partition, const TableState& state, uint32_t slice,
                   absl::Span<const uint32_t> rows);
  size_t RowsOfRecord(const EmbeddingTable& table) const;
  // Whether unanswered records that are not of workers have reached their limit.
  bool BehindOnCopies(uint32_t partition) const;
  ReplicaLog::Append HeaderFor(ReplicaKind kind, uint32_t partition, const TableState& state) const;
  uint64_t BytesOf(uint32_t partition) const;
  // An estimate of the memory that its rows take.
  uint64_t RowMemoryOf(uint32_t partition) const;

  // ---- engine_checkpoint.cc ----
  // By the view being applied, before tables follow it.
  void FollowCheckpoints(const v1::ClusterView& view, const ViewDifference& what);
  void FollowCheckpoints(uint32_t table, const v1::Table* now);
  void AbortCheckpoints(uint32_t table, const absl::Status& why);
  uint64_t StepOf(const PartitionedTable& table) const;
  absl::Status CheckCheckpoint(const PartitionCheckpointRequest& request) const;
  absl::Status CheckSaved(const TableToCheckpoint& what, uint64_t* newest) const;
  // Memory for a checkpoint whose request does not set it.
  uint64_t CheckpointMemory(const PartitionCheckpointRequest& request) const;
  void AddToCheckpoint(const TableToCheckpoint& what, PartitionCheckpoint* save);
  void EndCheckpoint(uint64_t save, bool committed);

  // ---- engine_restore.cc ----
  absl::Status FindRestoring(uint32_t table, TableState** state);
  // By the view being applied, in which the restore is complete.
  void EndRestoring(TableState* state);
  bool LoadElements(const ElementsToRestore& elements, TableState* state, uint32_t index,
                    uint32_t first, uint32_t count, uint64_t from);
  // A batch of rows, partition by partition.
  absl::Status LoadBatch(const RowsToRestore& rows, TableState* state, RowsLoaded* at);
  absl::Status LoadRows(const RowsToRestore& rows, TableState* state, uint32_t partition,
                        absl::Span<const uint32_t> which);
  bool ReplicateLoaded(uint32_t partition, const TableState& state, uint32_t index);
  bool ReplicateLoadedRows(uint32_t partition, const TableState& state, uint32_t slice,
                           absl::Span<const uint32_t> rows);
  // False: no memory for the replicas' records.
  bool FinishLocalPartition(TableState* state, uint32_t slice);

  // ---- engine_copies.cc: as a replica ----
  // A record as far as it was checked; `data` is all of its payload.
  struct Copied {
    uint32_t partition = 0;
    Group group = {};
    ReplicaHeader header = {};
    absl::Span<const std::byte> data;
    TableState* state = nullptr;
    uint32_t slice = 0;
    CopyMarks* marks = nullptr;
  };
  ReplyStatus CheckSender(const CopyId& from, const Copied& c) const;
  // kOk, with *data: it is whole. kOk without: a part of it was kept.
  ReplyStatus Assemble(CopyState* copy, const ReplicaHeader& header,
                       absl::Span<const std::byte>* data, bool* whole);
  ReplyStatus Begin(uint32_t partition);
  // The table's slice becomes a new one, whatever was here of it.
  ReplyStatus MakeFresh(uint32_t partition, TableState* state);
  ReplyStatus FindCopied(uint32_t table, Copied* copied);
  ReplyStatus Copy(const Copied& c);
  ReplyStatus CopyDense(const Copied& c);
  ReplyStatus CopyRows(const Copied& c);
  ReplyStatus CopyLocalPartition(const Copied& c);
  ReplyStatus CopyChunk(const Copied& c);
  ReplyStatus CopyRowStates(const Copied& c);
  ReplyStatus MakeRows(const Copied& c);
  // Copies the keys in front of a group's data to `keys`; *rest gets the data behind them, with
  // `each` bytes for every key. False: it does not have that shape, or keys of other partitions.
  bool TakeKeys(const Copied& c, size_t each, const std::byte** rest);
  void ForgetCopy(uint32_t partition);
  // The use of memory that is taken anywhere but in Replicate().
  MemoryFor OwnMemory() const {
    return senders > 0 ? MemoryFor::kPrimaryBesideCopies : MemoryFor::kPrimary;
  }
  // How many shards of other servers have replicas on this server.
  void CountSenders(const v1::ClusterView& view);
  // Whether a learner that will have such rows may begin here, beside those that have begun.
  bool MayLearn(const ReplicaHeader& begin) const;
  // Has no place in the job any more. One that is newer than the view may get one.
  bool Retired(const TableState& state, uint64_t worker) const {
    return worker < newest_member && state.job->members.Find(worker) == nullptr;
  }
  // Makes replicas forget retired workers, or they would keep those of all runs.
  void ForgetRetired(TableState* state);

  // Pushed rows as f32: in place, or decoded to scratch that the caller returns. False: no memory
  // for that.
  bool TakeRows(const PushRowsRequest& request, EmbeddingTable* table, Buffer* decoded,
                absl::Span<const float>* rows);

  const EngineOptions options;
  HeapAllocator heap;
  EngineContext sink;
  // By job, also of those that are forgotten while they have memory that is being written out.
  std::map<std::string, JobAccount> accounts;
  BufferPool pool;
  ColdIo cold;
  std::vector<std::string> cold_errors;
  ReplicaLog log;
  std::vector<uint32_t> learners;  // partitions whose replica was a learner when the view came
  uint64_t revision = 0;
  uint64_t newest_member = 0;  // the greatest incarnation in the view
  uint32_t highest_table = 0;
  uint32_t seconds = 0;  // SetSeconds()
  // counters.memory_refusals at the last look, and the second of the last look that found it
  // changed.
  uint64_t refusals_seen = 0;
  uint32_t refused_seconds = 0;
  bool room = false;  // TakeRoom()
  std::vector<PartitionInfo> partitions;
  uint64_t senders = 0;           // CountSenders()
  uint32_t server_shards = 1;     // of this server
  bool partitions_moved = false;  // by the view being applied: some have changed their role
  uint64_t tables_placed = 0;     // calls of Place()
  uint64_t tables_followed = 0;   // calls of UpdateTable()
  uint64_t owned_here = 0;        // replicas of partitions on this server, by the last view
  std::set<uint32_t> unserved;    // tables that could not follow the last view
  std::set<uint32_t> evicting;    // tables that evict rows
  std::vector<CopyState> copies;  // by partition
  // Observers that may read the tables of all jobs.
  absl::flat_hash_set<uint64_t> readers;
  absl::flat_hash_map<std::string, std::vector<uint64_t>> readers_of;  // by job
  std::map<std::string, JobState> jobs;              // nodes do not move: tables point at them
  std::vector<JobState*> changed_jobs;               // by the view being applied
  std::map<std::string, absl::Status> refused_jobs;  // of the view, and why
  std::set<std::string> leaving;                     // jobs of which nothing may be left
  std::map<uint32_t, TableState> tables;  // ordered: a replayed run makes the same events
  CheckpointCounters checkpoint_counters;
  std::map<uint64_t, std::unique_ptr<PartitionCheckpoint>>
      saves;  // gone before tables and pool are
  std::vector<ReplyStatus> group_status;
  std::vector<uint32_t> await_slices;
  // Scratch of RestoreRows().
  struct {
    std::vector<std::vector<uint32_t>> which;  // by partition: places of its rows
    std::vector<uint32_t> partitions;          // those that have some
    std::vector<uint64_t> keys;
    std::vector<uint32_t> numbers;
  } restored;
  // Bytes of contents that are compared in one turn of the shard's thread: a few hundred
  // microseconds.
  static constexpr uint64_t kProofBytesOfTurn = 1 << 20;
  uint64_t proof_bytes = 0;        // that may still be compared in this turn
  uint64_t proof_again_bytes = 0;  // the same of ProveAgain(), which does not wait for others
  uint32_t rows_looked_at = 0;     // in this turn
  struct {
    uint32_t partition = 0;
    uint32_t waits = 0;  // turns that found applies in flight
    ReplicaLog::Proof at;
  } audit;
  std::vector<uint64_t> audited;      // by partition: the last record of the audit
  std::vector<uint64_t> copied_keys;  // scratch for records to replicas
  std::vector<uint32_t> copied_rows;
};

// Fills a record with all changes of a slice's optimizer, for a learner. False: no memory.
bool FillChanges(const TableOptimizer& optimizer, uint32_t slice, BufferPool* pool,
                 ReplicaLog::Append* told);

// The more informative status of two groups.
ReplyStatus Worse(ReplyStatus a, ReplyStatus b);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_ENGINE_IMPL_H_
