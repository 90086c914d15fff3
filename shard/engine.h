// The shard engine: tables, consistency and optimizers of the partitions one shard owns.
//
// Pure: no threads, sockets, clock, gRPC, Prometheus or database. It is told what the cluster looks
// like (tables, partitions, rosters) and given records; it answers at once or remembers the
// caller's token and reports an Event later.
//
// **Thread safety**: one owner thread (the shard's).
//
// Invariants:
//  1. sync: a chunk at version t holds t committed steps; step t commits when every rank of the
//     roster has contributed, ended the step on the partition or departed; contributions are
//     summed in rank order, each longest contiguous run in one pass, whatever the order of arrival.
//     Where its norm spans several chunks, it then waits for totals (partition/norms.h).
//  2. Nothing uncommitted is ever returned by Pull().
//  3. A chunk that is pinned (being written out) is never changed: an apply goes to a spare buffer
//     and swaps.
//  4. async and ssp: a (worker, table, partition) sequence is applied exactly once, only as
//     last + 1; a worker's first is 1. A refused push leaves its sequence to an empty one.
//  5. ssp: a pull by a worker that has ended c steps is answered once every worker that counts has
//     ended c - staleness on the partition; a joiner starts at the least.
//  6. An embedding table has a version for each partition. sync: step t commits when every rank has
//     ended it on the partition or departed; pushes are copied when they arrive, and summed by key
//     in the order of (rank, index). Otherwise 2, 4 and 5 hold as for chunks; 3 has no need to,
//     because rows are gathered into memory of their own.
//  7. What a job has of this server is at most its share of JobLimits::memory_bytes, by the
//     partitions that the server has, as shard/job_memory.h counts it. Growth beyond it is refused.
//  8. A held contribution's payload is read at most until its kSlotReleased event or ForgetLane().
//  9. With a follower of its partition, nothing is applied before the follower has its record, and
//     nothing acknowledged that is not applied; a sync push is answered when it is read, because
//     only its step's commit counts (replica/log.h). Primary and copy are equal, byte for byte,
//     after the same record. A new generation of the job applies at once what the last one has in
//     the log: until the follower has that, too, reads and saves of it are refused, so that no read
//     shows what a failover takes back.
// 10. Which lane a record comes on says nothing of it but where the answer goes. A worker that has
//     several sends what a dead one left unanswered on another, while what the dead one carried may
//     still come, or be held or queued, because we have not noticed yet. Either may be first: the
//     second is a duplicate by its sequence, its (step, chunk) or its (step, index), however often
//     it was cut anew, and also where one of them has been emptied. Only what is held or queued is
//     not settled, because it goes if its lane does: the other is refused (kWrongStep,
//     kSequenceGap), is sent again, and meets the commit, or the place that ForgetLane() has
//     freed. No commit and no place in a queue waits for it meanwhile.
// 11. What a save has of a partition is one moment of it, whatever is applied meanwhile: of a sync
//     table the one after exactly `step` steps, of others one at which all that was acknowledged
//     before BeginSave() is in, and of each worker all up to a sequence and nothing behind. An
//     apply waits for a save only while that has no memory left, and pieces are out or to be taken.
// 12. Of a table with a cold tier no number and no order of applies depends on which rows are in
//     memory; when something is answered does (table/hot_rows.h), and with that what an async table
//     has applied when it decides which rows to drop.
#ifndef VERBENA_SHARD_ENGINE_H_
#define VERBENA_SHARD_ENGINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/bags.h"
#include "proto/record.h"
#include "proto/record_check.h"
#include "proto/verbena/v1/cluster.pb.h"
#include "shard/allocator.h"
#include "shard/cold_store.h"
#include "shard/job_memory.h"
#include "shard/replica/log_limits.h"
#include "shard/save/types.h"
#include "shard/table/cold_io.h"
#include "shard/table/hot_keys.h"

namespace verbena::shard {

// What the caller wants back with a later answer; the engine does not look inside.
struct Token {
  uint32_t lane = 0;
  uint32_t operation = 0;
  uint32_t slot = 0;
};

struct Answer {
  ReplyStatus status = ReplyStatus::kOk;
  uint32_t detail = 0;  // kTooEarly: contributions missing. ssp pull: its staleness. scan: rows
                        // in the view. kMemoryLimit, kJobMemoryLimit, kCopyMemoryLimit: the limit
                        // in MiB, or kPartitionIsFull (proto/record.h); 0: a
                        // group names more rows than may be in memory together (cold tier)
  uint64_t version = 0;
};

// A chunk's parameters, or rows gathered for a lookup or a scan; pinned until Unpin(pin).
struct ChunkView {
  Buffer buffer;
  uint32_t bytes = 0;
  uint64_t version = 0;
  uint64_t pin = 0;
};

struct PushRequest {
  Token token;
  uint64_t worker = 0;  // incarnation
  uint32_t table = 0;
  Group group = {};
  ElementType dtype = ElementType::kF32;  // the table's of gradients
  // Aligned for its numbers. Empty, with group.count 0: a record that only settles; it contributes
  // zero.
  absl::Span<const std::byte> payload;
};
struct PushOutcome {
  bool held = false;      // true: payload stays in use; a kPushDone event follows
  bool deferred = false;  // true: payload was copied; a kReplicated event follows
  Answer answer;          // neither
  // True: nothing was done, because the log for a copy is full; answer.status is
  // kResourceExhausted. The caller asks again after TakeRoom(), in the order of arrival, or
  // answers that.
  bool no_room = false;
};

struct PullRequest {
  Token token;
  uint64_t worker = 0;
  uint32_t table = 0;
  Group group = {};
  ElementType dtype = ElementType::kF32;  // the table's
  uint64_t min_version = 0;               // ssp: the worker's clock
  uint64_t destination = 0;               // carried for the caller
  uint64_t destination_key = 0;
  bool may_park = true;  // false: kResourceExhausted instead
};
struct PullOutcome {
  enum class Kind : uint8_t { kAnswer, kReady, kParked } kind = Kind::kAnswer;
  Answer answer;   // kAnswer: a refusal. kReady: version (ssp: the least clock) and staleness
  ChunkView view;  // kReady
  // kAnswer to a lookup: one per group; kNotReady where nothing is wrong, because the rows of none
  // are written. Valid until the next call.
  absl::Span<const ReplyStatus> group_status;
};

struct GroupsRequest {  // end-step and await
  Token token;
  uint64_t worker = 0;
  uint32_t table = 0;
  absl::Span<const Group> groups;
  uint64_t min_version = 0;  // await. end-step of an ssp table: the worker's clock
  bool may_park = true;      // await. false: kResourceExhausted instead, for groups that wait
};
struct GroupsOutcome {
  bool parked = false;    // await only; kAwaitDone follows
  bool deferred = false;  // push of rows, end-step; kReplicated follows
  Answer answer;
  // One per group, when neither. Valid until the next call.
  absl::Span<const ReplyStatus> group_status;
  bool no_room = false;  // push of rows, end-step; as PushOutcome::no_room
};

// Records about rows of an embedding table. Of a group's keys no two are alike, and they ascend.
struct PushRowsRequest {
  Token token;
  uint64_t worker = 0;
  uint32_t table = 0;
  absl::Span<const Group> groups;
  absl::Span<const uint64_t> keys;   // of group 0, of group 1, ...
  absl::Span<const std::byte> rows;  // their gradients, float-aligned: RowBytes(dtype, dim) each
  ElementType dtype = ElementType::kF32;  // f32, or the table's push codec
};
// Sums of rows by bag instead of the rows: a group's keys may repeat then.
struct Bags {
  uint32_t count = 0;  // 0: the rows themselves
  absl::Span<const BagUse> uses;
};
struct LookupRequest {
  Token token;
  uint64_t worker = 0;
  uint32_t table = 0;
  absl::Span<const Group> groups;
  absl::Span<const uint64_t> keys;
  uint64_t min_version = 0;  // sync: of the partitions. ssp: the worker's clock
  uint64_t destination = 0;  // carried for the caller
  uint64_t destination_key = 0;
  bool may_park = true;                   // false: kResourceExhausted instead
  ElementType dtype = ElementType::kF32;  // of the answer: f32, or the table's pull codec
  // The answer is bags.count vectors of dim f32, summed in the order of keys; a bag that no key is
  // in is zero.
  Bags bags = {};
};
// Rows that will be asked for soon.
struct IntentRequest {
  uint64_t worker = 0;
  uint32_t table = 0;
  absl::Span<const Group> groups;
  absl::Span<const uint64_t> keys;
};
struct ScanRequest {
  uint64_t worker = 0;
  uint32_t table = 0;
  Group group = {};
};

// The first phase of a step whose norm spans several chunks. All groups are of one step and kind.
struct NormsRequest {
  Token token;
  uint64_t worker = 0;
  uint32_t table = 0;
  absl::Span<const Group> groups;
  uint64_t destination = 0;  // carried for the caller
  uint64_t destination_key = 0;
  bool may_park = true;  // false: kTooEarly instead
};
using NormTotals = std::array<double, 2>;  // as many as NormNumbers()

struct Event {
  enum class Kind : uint8_t {
    kPushDone,    // a held contribution was read (or refused): answer it and return its slot
    kPullReady,   // (lookups and norms, too) write `view` to destination, then answer; Unpin() when
                  // written
    kPullFailed,  // a parked pull cannot be answered any more (others: for every group)
    kAwaitDone,   // answer with answer.status (for every group)
    kReplicated,  // what was deferred is where it has to be, or cannot be: answer with
                  // group_status
  };
  Kind kind;
  Token token;
  Answer answer;
  ChunkView view;
  uint64_t destination = 0;
  uint64_t destination_key = 0;
  std::shared_ptr<const std::vector<ReplyStatus>> group_status = nullptr;  // kReplicated
};

// Who has a copy of a partition.
struct CopyId {
  uint64_t server = 0;  // incarnation; 0: nobody
  uint32_t shard = 0;
  bool operator==(const CopyId&) const = default;
};

// What a copy's server says of its memory.
struct CopyRoom {
  uint64_t bytes = UINT64_MAX;  // that new rows of one primary may take; UINT64_MAX: no limit
  uint64_t limit = 0;           // of the server; 0: none
};

// For a copy: a kReplicate. `data` (header.total_bytes of it, in as many parts as its sender likes)
// stays as it is until ReplicaAnswered() or ReplicasLost(), whatever becomes of the configuration.
struct ReplicaRecord {
  CopyId to;
  uint32_t table = 0;
  Group group = {};
  ReplicaHeader header = {};
  Buffer data;
};

// What becomes of a partition's configuration.
struct CopyStatus {
  uint32_t partition = 0;
  CopyId copy;  // of which this shard is the primary; server 0: it is the copy itself
  bool learner = false;
  uint64_t sequence = 0;                       // of the last record: made, or (a copy) applied
  uint64_t acknowledged = 0;                   // by the copy
  uint64_t copied_bytes = 0, total_bytes = 0;  // of a learner
};

// Told of every commit, with a copy as soon as it is certain what it will be; for tests that check
// invariants. May be empty.
struct Commit {
  uint32_t table;
  uint32_t chunk;
  uint64_t step;
  absl::Span<const uint64_t> contributors;  // incarnations, in rank order
  uint32_t divisor;                         // of a mean
  uint64_t server = 0;                      // who makes it
  uint64_t epoch = 0;                       // of the partition; 0: that one is not its primary
};
using CommitObserver = std::function<void(const Commit&)>;

struct EngineCounters {
  uint64_t pushes = 0, pulls = 0, duplicates = 0, refused = 0, non_finite = 0;
  uint64_t commits = 0, applies = 0;
  uint64_t push_bytes = 0, pull_bytes = 0;
  uint64_t resident_bytes = 0;  // parameters, optimizer state, accumulators
  uint32_t held = 0, parked = 0;
  // ssp: pulls answered, by how many steps the slowest worker was behind the puller.
  std::array<uint64_t, kStalenessBuckets> staleness = {};
  // Of the logs for copies (ReplicaLogLimits): bytes now, of all partitions and of the one that has
  // most; applies that found no room.
  uint64_t replica_log_bytes = 0, replica_log_partition_bytes = 0, replica_log_waits = 0;
  uint64_t replica_marks = 0;    // workers that copies here know of, in all tables and partitions
  uint64_t tables_placed = 0;    // by views: of how many tables all partitions were looked at
  uint64_t tables_followed = 0;  // by views: how many tables were looked at
  uint64_t memory_refusals = 0;  // of rows and copies, for the server's memory limit
  bool memory_refused = false;   // there was one a moment ago
  uint64_t spare_exhausted = 0;  // applies that had to wait for a pinned chunk, or a save's memory
};

// Of one table on this shard. What a push or pull is: a chunk; of rows, a push is a group, a pull a
// whole lookup or scan.
struct TableCounters {
  uint64_t pushes = 0, pulls = 0, push_bytes = 0, pull_bytes = 0;
  uint64_t non_finite = 0;    // pushes refused or skipped for a NaN or Inf
  uint64_t refused_keys = 0;  // pushed, not admitted to the table; sync: of steps that committed
  uint64_t evicted_rows = 0;
};
struct TableStatistics {
  uint32_t id = 0;
  std::string name;
  uint64_t parameter_bytes = 0;  // resident, without optimizer state
  uint64_t rows = 0;             // of an embedding table, those of open steps included
  TableCounters counters;
  uint64_t step = 0;  // sync: that everything of it that is this shard's has had
  // Of an embedding table: keys that are asked for and pushed most, of a sample; counts are of
  // sampled_keys.
  std::vector<HotKey> hot_keys = {};
  uint64_t sampled_keys = 0;
  bool restoring = false;     // another table may have its name
  std::string unserved = {};  // why slices of it are not here; empty: all are
};

// Of a job on this shard.
struct JobStatistics {
  std::string name;
  uint64_t memory_bytes = 0;
  uint64_t memory_limit = 0;  // of this server, for all its shards; JobMemory::kUnlimited: none
};

struct EngineOptions {
  Allocator* allocator = nullptr;
  // This server's incarnation and this shard's index: which partitions of a view are ours.
  uint64_t server = 0;
  uint32_t shard = 0;
  uint32_t spare_buffers = 16;
  ReplicaLogLimits replica_log;
  CommitObserver commit_observer;
  // What all shards of the server have in common of a job. Empty: this shard is the only one.
  std::function<std::shared_ptr<JobMemory>(const std::string& job)> job_memory;
  // Of rows that are not in memory; outlives the engine. Null: tables with a cold tier cannot be
  // served. Whoever has it calls TakeEvents() when something is done.
  ColdStore* cold_store = nullptr;
};

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();

  // Takes over what `view` says: tables created and dropped, partitions owned, epochs, lost
  // partitions, rosters. A view older than the last one is ignored. Answers that change because of
  // it (departed ranks, dropped tables, partitions gone: kWrongEpoch) become events.
  // A table's chunks are initialised when first seen as owned and not lost.
  // RESOURCE_EXHAUSTED: out of memory for a table; that table answers kResourceExhausted, the rest
  // of the view holds.
  // `changes`: those that made `view` of an earlier one. Where they begin with the last view that
  // was applied, only what they name is looked at.
  absl::Status ApplyView(const v1::ClusterView& view,
                         absl::Span<const v1::ViewChange> changes = {});
  // Serves what `view`, the last one, has and no memory was left for, if there may be enough now:
  // memory is also freed by what no view shows. Whether anything was tried; *applied as
  // ApplyView().
  bool RetryStarved(const v1::ClusterView& view, absl::Status* applied);
  bool HasStarved() const;  // a table for which there was no memory

  PushOutcome Push(const PushRequest& request);
  PullOutcome Pull(const PullRequest& request);
  GroupsOutcome EndStep(const GroupsRequest& request);
  GroupsOutcome Await(const GroupsRequest& request);

  // Of embedding tables. A push is never held: what it carries is read before the call returns.
  // Memory that rows are gathered in comes from AllocateScratch(); without any a lookup is answered
  // kResourceExhausted.
  GroupsOutcome PushRows(const PushRowsRequest& request);
  PullOutcome Lookup(const LookupRequest& request);
  // Brings rows that are not in memory there, as far as there is room, and does not wait for them.
  // Never parked.
  GroupsOutcome Intend(const IntentRequest& request);
  // Rows in the order they were made, those only that a push has changed, as keys, zeros to
  // KeyBytes() of them, rows. answer.detail of them; answer.version is the next cursor. No rows:
  // the end. What is pushed meanwhile is seen or not.
  PullOutcome Scan(const ScanRequest& request);

  // Parts of norms, as record.h has them; parked until they are there. kDuplicate: the step is
  // over.
  PullOutcome Norms(const NormsRequest& request);
  // What the parts of all chunks add up to: chunks that wait for it commit, or go on to the next
  // kind. A partition that has taken totals of that kind answers kDuplicate; kWrongStep: not all of
  // its parts can be in these totals.
  GroupsOutcome Totals(const GroupsRequest& request, const NormTotals& totals);

  // ---- copies (engine_replicas.cc) ----
  // Moves records for copies to the end of *records, at most about `most`. Returns whether there
  // were any, or there is more to do at once. May make more: what a learner has not been told yet.
  bool TakeReplicas(std::vector<ReplicaRecord>* records, size_t most);
  // A copy has answered the record, of which nothing is read any more, nor of those before it. kOk,
  // kDuplicate: it has it, and all before it. Events may follow.
  void ReplicaAnswered(const CopyId& from, uint32_t partition, uint64_t sequence,
                       ReplyStatus status);
  // Nothing that was to go there is read any more; what is still wanted is to be sent again.
  void ReplicasLost(const CopyId& copy);
  // What the copy's server has room for now: with each of its answers, before ReplicaAnswered().
  void SetCopyRoom(const CopyId& copy, const CopyRoom& room);
  // As a copy: what to report.
  CopyRoom RoomForCopies() const;
  // What the partition's copy has not answered is to be sent again.
  void ResendReplicas(uint32_t partition);
  // Whether requests that were answered no_room may be asked again: there is room, or a view has
  // changed what they find. Call it after everything else that may make room, TakeEvents() last.
  bool TakeRoom();
  // Compares followers with what is here: adds records for the next about `bytes` of contents, of
  // one partition at most, in turn. A partition whose applies wait for its follower is tried again,
  // and passed after some times. False: no partition has a follower now.
  bool AuditFollowers(uint64_t bytes);
  // Partitions of which the copy, as far as it was a learner, has everything that it has to have to
  // be a follower.
  bool CaughtUp(uint32_t partition) const;
  // Its copy is a learner that has not everything yet.
  bool Learns(uint32_t partition) const;
  // The copy was told of an apply that could not be made here: it is to be copied again.
  bool ReplicaDiffers(uint32_t partition) const;
  // As a copy: a record by the shard that is the partition's primary. kOk, kDuplicate: it is
  // applied (or, a part of one, kept). kNotReady: what the view here says is older than the record,
  // or its table is not there. kWrongEpoch: it is newer. kSequenceGap: a record or part before it
  // is missing. kResourceExhausted: no memory for now. kMemoryLimit: no memory for its rows or
  // chunks. kDataLoss: the copy is not equal to its primary.
  // Others: it cannot be applied, ever.
  Answer Replicate(const CopyId& from, const Record& record, absl::Span<const std::byte> payload);
  // Of the partitions that have a copy, or are one.
  std::vector<CopyStatus> copies() const;

  // ---- saves (engine_save.cc) ----
  // Begins to save what this shard is the primary of, of these tables. OUT_OF_RANGE: a sync table
  // is past its step; *newest is, also when it is OK, the step of each table's farthest slice, 0 of
  // one that is not sync. What is not at its step yet is saved when it is, before it changes again.
  // FAILED_PRECONDITION: a table has lost partitions, or no memory for some, or another save has
  // it. NOT_FOUND: it is not known here. INVALID_ARGUMENT: id or tables. After an error nothing has
  // begun.
  absl::Status BeginSave(const SaveRequest& request, std::vector<uint64_t>* newest);
  // The next piece. False: none now; there may be later unless progress says complete or aborted.
  // Takes and releases of all pieces must go on, whatever else is waited for: applies may wait for
  // them.
  bool TakePiece(uint64_t save, SavePiece* piece);
  // Nobody reads the piece any more. Events may follow. Of a save that has ended, too.
  void ReleasePiece(uint64_t save, uint64_t piece);
  // NOT_FOUND: no such save, or it has ended. A new epoch, another primary, the end of a table or
  // of its job's generation give up the partitions that have not been taken whole.
  absl::StatusOr<SaveProgress> save_progress(uint64_t save) const;
  // What was taken is durable: it may be the base of others.
  void CommitSave(uint64_t save);
  // Drops what was not taken. Pieces that are out are still to be released.
  void AbortSave(uint64_t save);
  const SaveCounters& save_counters() const;

  // ---- restores (engine_restore.cc) ----
  // Of a table that the view says is being restored: its workers are answered kNotReady until the
  // view says otherwise, which it does when every shard's progress is complete. What is not
  // finished here then is lost (kDataLoss). A partition that has changed hands is to be loaded
  // again, whole. Copies are told. Errors of all four: NOT_FOUND: it is not known here.
  // FAILED_PRECONDITION: it is not being restored, or has not begun, or has begun otherwise.
  // Loading: INVALID_ARGUMENT: not of the table's shape. RESOURCE_EXHAUSTED: no memory for rows.
  // UNAVAILABLE: copies, or writes of cold rows, are behind; later. Rows go on where `loaded` says,
  // which begins as RowsLoaded(); without it all of a call that failed is loaded again by the next.
  absl::Status BeginRestore(const RestoreRequest& request);
  absl::Status RestoreElements(const ElementsToRestore& elements);
  absl::Status RestoreRows(const RowsToRestore& rows, RowsLoaded* loaded = nullptr);
  // All that is this shard's was loaded. FAILED_PRECONDITION also: something is missing. May be
  // called again.
  absl::Status FinishRestore(uint32_t table);
  absl::StatusOr<RestoreProgress> restore_progress(uint32_t table) const;

  // What time it is, in seconds since any time that all servers have in common: for rows that are
  // dropped by their age.
  void SetSeconds(uint32_t seconds);

  void Unpin(uint64_t pin);
  // Parked pulls and lookups of these operations of a lane end with kTooEarly: their worker will
  // ask again.
  void ReturnReads(uint32_t lane, absl::FunctionRef<bool(uint32_t operation)> which);
  // Drops everything held or parked for a lane that is dead; no event follows for it.
  void ForgetLane(uint32_t lane);

  // Moves pending events to the end of *events. Returns whether there were any.
  bool TakeEvents(std::vector<Event>* events);

  EngineCounters counters() const;
  // Of tables with a cold tier.
  ColdCounters cold_counters() const;
  // Why rows could not be read, in words, since the last call: their partitions answer kDataLoss.
  std::vector<std::string> TakeColdErrors();
  // Why nothing can be written to the cold store now: what waits for rows may wait for long.
  absl::Status cold_health() const;
  // By id; without tables that cannot be served here. Takes memory: not for the hot path.
  std::vector<TableStatistics> tables() const;
  // By name; those that have tables or limits, or still have memory. Not for the hot path either.
  std::vector<JobStatistics> jobs() const;

 private:
  friend struct EngineInspector;  // tests
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_ENGINE_H_
