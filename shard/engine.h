// The shard engine: tables, consistency and optimizers of the partitions one shard owns.
//
// Pure: no threads, sockets, clock, gRPC, Prometheus or database. The caller passes it views of the
// cluster (tables, partitions, members) and records. It answers at once, or keeps the caller's
// token and reports an Event later.
//
// **Thread safety**: one owner thread (the shard's).
//
// Invariants:
//  1. sync: a chunk at version t holds t committed steps; step t commits when every rank of the job
//     has contributed, ended the step on the partition or departed; contributions are summed in
//     rank order, each longest contiguous run in one pass, whatever the order of arrival. Where its
//     norm spans several chunks, it then waits for totals (partition/norms.h). Where all workers of
//     the run have departed, an incomplete step is dropped: nobody's departure completes it.
//  2. Nothing uncommitted is ever returned by Pull().
//  3. A chunk that is pinned (being written out) is never changed: an apply goes to a spare buffer
//     and swaps.
//  4. async and ssp: a (worker, table, partition) sequence is applied exactly once, only as
//     last + 1; a worker's first is 1. A refused push (sync, too) leaves its place to an empty one.
//  5. ssp: a pull by a worker that has ended c steps is answered once every worker that counts has
//     ended c - staleness on the partition; a joiner starts at the least.
//  6. An embedding table has a version for each partition. sync: step t commits when every rank has
//     ended it on the partition or departed; pushes are copied when they arrive, and summed by key
//     in the order of (rank, index). Otherwise 2, 4 and 5 hold as for chunks; 3 has no need to,
//     because rows are gathered into memory of their own.
//  7. A job takes at most its share of JobLimits::memory_bytes on this server, by the partitions
//     that the server has, as shard/job_memory.h counts it. Growth beyond it is refused.
//  8. A held contribution's payload is read at most until its kPushDone event or ForgetLane().
//  9. If a partition has a follower, an apply waits until the follower has its record, and an
//     acknowledged push has been applied. A sync push is answered when it is read, because only its
//     step's commit counts (replica/log.h). After the same record, primary and replica are equal,
//     byte for byte. A new generation of the job applies at once the previous generation's entries
//     in the log. Until the follower has these, reads and checkpoints of the table are refused, so
//     that no read shows data that a failover takes back.
// 10. The lane of a record decides nothing but where its answer goes. A worker with several lanes
//     resends requests that a dead lane left unanswered, while the originals may still arrive, or
//     be held or queued, because the shard has not noticed the lane's end yet. Either copy may be
//     first. The second is a duplicate by its sequence, its (step, chunk) or its (step, index),
//     even if it was cut anew or if one of them was emptied. A held or queued request is not
//     settled, because it ends with its lane: the other one is refused (kWrongStep, kSequenceGap),
//     is sent again, and meets the commit, or the place that ForgetLane() has freed. Meanwhile no
//     commit and no place in a queue waits for it.
// 11. A checkpoint has each partition at one moment, whatever is applied meanwhile. For a sync
//     table it is the moment after exactly `step` steps. For other tables it contains all pushes
//     that were acknowledged before Checkpoints::Begin(), and of each worker all pushes up to one
//     sequence and none behind it. An apply waits for a checkpoint only while that has no memory
//     left, and pieces are in flight or can be taken.
// 12. In a table with a cold tier no number and no order of applies depends on which rows are in
//     memory. The time of an answer does (table/hot_rows.h), and so does the set of pushes that an
//     async table has applied when it decides which rows to drop.
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
#include "proto/wire/bags.h"
#include "proto/wire/record.h"
#include "proto/wire/record_check.h"
#include "shard/allocator.h"
#include "shard/checkpoint/types.h"
#include "shard/cold_store.h"
#include "shard/job_memory.h"
#include "shard/replica/log_limits.h"
#include "shard/table/cold_io.h"
#include "shard/table/hot_keys.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

// The caller's context, returned with a later answer; the engine does not look inside.
struct Token {
  uint32_t lane = 0;
  uint32_t operation = 0;
  uint32_t slot = 0;
};

struct Answer {
  ReplyStatus status = ReplyStatus::kOk;
  uint32_t detail = 0;  // kTooEarly: contributions missing. ssp pull: its staleness. scan: rows
                        // in the view. kMemoryLimit, kJobMemoryLimit, kCopyMemoryLimit: the limit
                        // in MiB, or kPartitionIsFull (proto/wire/record.h); 0: a
                        // group names more rows than may be in memory together (cold tier)
  uint64_t version = 0;
  uint64_t applies = 0;  // pull: of the chunk
};

// A chunk's parameters or an array of its state, or rows gathered for a lookup or a scan; pinned
// until Unpin(pin).
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
  ElementType dtype = ElementType::kF32;  // the table's of gradients, or of parameters
  // Aligned for its numbers. Empty, with group.count 0: a record that only settles; it contributes
  // zero.
  absl::Span<const std::byte> payload;
  bool assigns = false;  // the payload is new parameters, which replace the old ones
  // An assignment of state: 1 + the index of the array that the payload replaces, in f32, and the
  // chunk's count of applies after it. 0: parameters.
  uint8_t array = 0;
  uint64_t applies = 0;
};
struct PushOutcome {
  bool held = false;         // true: payload stays in use; a kPushDone event follows
  bool replicating = false;  // true: payload was copied; a kReplicated event follows
  Answer answer;             // neither
  // True: nothing was done, because the log for a replica is full; answer.status is
  // kResourceExhausted. The caller asks again after TakeRoom(), in the order of arrival, or answers
  // that.
  bool no_room = false;
};

struct PullRequest {
  Token token;
  uint64_t worker = 0;
  uint32_t table = 0;
  Group group = {};
  ElementType dtype = ElementType::kF32;  // the table's
  uint8_t array = 0;                      // 1 + the index of a state array; 0: parameters
  uint64_t min_version = 0;               // ssp: the worker's clock
  uint64_t destination = 0;               // carried for the caller
  uint64_t destination_key = 0;
  bool may_park = true;  // false: kResourceExhausted instead
};
struct PullOutcome {
  enum class Kind : uint8_t { kAnswer, kReady, kDeferred } kind = Kind::kAnswer;
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
  bool deferred = false;     // await only; kAwaitDone follows
  bool replicating = false;  // push of rows, end-step; kReplicated follows
  Answer answer;
  // One per group, when neither. Valid until the next call.
  absl::Span<const ReplyStatus> group_status;
  bool no_room = false;  // push of rows, end-step; as PushOutcome::no_room
};

// Records about rows of an embedding table. The keys of a group are distinct and ascend.
struct PushRowsRequest {
  Token token;
  uint64_t worker = 0;
  uint32_t table = 0;
  absl::Span<const Group> groups;
  absl::Span<const uint64_t> keys;   // of group 0, of group 1, ...
  absl::Span<const std::byte> rows;  // their gradients, float-aligned: RowBytes(dtype, dim) each
  ElementType dtype = ElementType::kF32;  // f32, or of gradients the table's push codec
  bool assigns = false;                   // the rows are new parameters, which replace the old ones
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
struct PrefetchRequest {
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
    kPullFailed,  // a waiting pull cannot be answered any more (other requests: for every group)
    kAwaitDone,   // answer with answer.status (for every group)
    kReplicated,  // a deferred request is replicated, or cannot be: answer with group_status
  };
  Kind kind;
  Token token;
  Answer answer;
  ChunkView view;
  uint64_t destination = 0;
  uint64_t destination_key = 0;
  std::shared_ptr<const std::vector<ReplyStatus>> group_status = nullptr;  // kReplicated
};

// The shard that has a replica of a partition.
struct CopyId {
  uint64_t server = 0;  // incarnation; 0: nobody
  uint32_t shard = 0;
  bool operator==(const CopyId&) const = default;
};

// Memory that a replica's server has reported.
struct CopyRoom {
  uint64_t bytes = UINT64_MAX;  // that new rows of one primary may take; UINT64_MAX: no limit
  uint64_t limit = 0;           // of the server; 0: none
};

// For a replica: a kReplicate. `data` (header.total_bytes of it, in as many parts as its sender
// likes) stays as it is until Replicas::Answered() or Replicas::Lost(), whatever becomes of the
// configuration.
struct ReplicaRecord {
  CopyId to;
  uint32_t table = 0;
  Group group = {};
  ReplicaHeader header = {};
  Buffer data;
};

// State of a partition's replica.
// Contents of a partition, as a learner is sent.
struct PartitionContents {
  uint64_t bytes = 0;
  uint64_t rows = 0;  // of embedding tables
};

struct CopyStatus {
  uint32_t partition = 0;
  CopyId copy;  // of which this shard is the primary; server 0: it is the replica itself
  bool learner = false;
  uint64_t sequence = 0;                       // of the last record: made, or (a replica) applied
  uint64_t acknowledged = 0;                   // by the replica
  uint64_t copied_bytes = 0, total_bytes = 0;  // of a learner
};

// Called at every commit; with a replica, as soon as the commit is certain. For tests that check
// invariants. May be empty.
struct Commit {
  uint32_t table;
  uint32_t chunk;
  uint64_t step;
  absl::Span<const uint64_t> contributors;  // incarnations, in rank order
  uint32_t divisor;                         // of a mean
  uint64_t server = 0;                      // that makes it
  uint64_t epoch = 0;                       // of the partition; 0: that one is not its primary
  bool abandoned = false;                   // no worker of the run lived when it was complete
};
using CommitObserver = std::function<void(const Commit&)>;

struct EngineCounters {
  uint64_t pushes = 0, pulls = 0, duplicates = 0, refused = 0, non_finite = 0;
  uint64_t commits = 0, applies = 0;
  uint64_t push_bytes = 0, pull_bytes = 0;
  uint64_t resident_bytes = 0;  // parameters, optimizer state, accumulators
  uint32_t held = 0, deferred = 0;
  // ssp: pulls answered, by how many steps the slowest worker was behind the puller.
  std::array<uint64_t, kStalenessBuckets> staleness = {};
  // The replication logs (ReplicaLogLimits): bytes now, of all partitions and of the partition with
  // most; applies that found no room.
  uint64_t replica_log_bytes = 0, replica_log_partition_bytes = 0, replica_log_waits = 0;
  uint64_t replica_marks = 0;    // workers that replicas here know of, in all tables and partitions
  uint64_t tables_placed = 0;    // by views: of how many tables all partitions were looked at
  uint64_t tables_followed = 0;  // by views: how many tables were looked at
  uint64_t memory_refusals = 0;  // of rows and replicas, for the server's memory limit
  bool memory_refused = false;   // there was one a moment ago
  uint64_t spare_exhausted = 0;  // applies that had to wait for a pinned chunk, or a save's memory
};

// Counters of one table on this shard. A push or pull counts one chunk of a dense table. In an
// embedding table a push counts one group, and a pull one whole lookup or scan.
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
  // For an embedding table: the keys that are looked up and pushed most, in a sample; counts are
  // out of sampled_keys.
  std::vector<HotKey> hot_keys = {};
  uint64_t sampled_keys = 0;
  bool restoring = false;     // another table may have its name
  std::string unserved = {};  // why slices of it are not here; empty: all are
  // Changes of the optimizer's values: that slice's with most, and the specification as of them.
  uint64_t optimizer_changes = 0;
  uint64_t optimizer_from = 0;  // step from which the last one is in force
  v1::Optimizer optimizer = {};
};

// A job on this shard.
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
  // The memory of a job on all shards of the server. Empty: this shard is the only one.
  std::function<std::shared_ptr<JobMemory>(const std::string& job)> job_memory;
  // For rows that are not in memory; outlives the engine. Null: tables with a cold tier cannot be
  // served. Its owner calls TakeEvents() when an operation of it is done.
  ColdStore* cold_store = nullptr;
};

class Checkpoints;
class ColdEvents;
class Copies;
class CopyReads;
class Proofs;
class Replicas;
class Restores;
struct EngineCore;

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();

  // Applies `view`: tables created and dropped, partitions owned, epochs, lost partitions, members
  // of jobs. A view older than the last one is ignored. Answers that change because of it (departed
  // ranks, dropped tables, partitions gone: kWrongEpoch) become events. A table has its chunks when
  // they are first seen as owned and not lost. RESOURCE_EXHAUSTED: out of memory for a table; that
  // table answers kResourceExhausted, the rest of the view holds. `changes`: those that turned an
  // earlier view into `view`. If they begin at the last view that was applied, only the entries
  // that they name are examined.
  absl::Status ApplyView(const v1::ClusterView& view,
                         absl::Span<const v1::ViewChange> changes = {});
  // Serves the parts of `view`, the last one, for which there was no memory, if there may be enough
  // now: memory is also freed without a view change. Returns whether anything was tried; *applied
  // as ApplyView().
  bool RetryStarved(const v1::ClusterView& view, absl::Status* applied);
  bool HasStarved() const;  // a table for which there was no memory

  PushOutcome Push(const PushRequest& request);
  PullOutcome Pull(const PullRequest& request);
  GroupsOutcome EndStep(const GroupsRequest& request);
  GroupsOutcome Await(const GroupsRequest& request);

  // For embedding tables. A push is never held: its content is read before the call returns. A
  // lookup gathers rows into memory from AllocateScratch(); without any it is answered
  // kResourceExhausted.
  GroupsOutcome PushRows(const PushRowsRequest& request);
  PullOutcome Lookup(const LookupRequest& request);
  // Starts to read rows that are not in memory, as far as there is room, and does not wait for
  // them. Always answered at once.
  GroupsOutcome Prefetch(const PrefetchRequest& request);
  // Rows that a push has changed, in the order in which they were made, as keys, zeros to
  // KeyBytes() of them, rows. answer.detail is their number, answer.version the next cursor. No
  // rows: the end. A push during the scan may or may not be visible.
  PullOutcome Scan(const ScanRequest& request);

  // Partial norms, in the format of record.h; deferred until they are complete. kDuplicate: the
  // step is over.
  PullOutcome Norms(const NormsRequest& request);
  // Total norms: the sum of the partial norms of all chunks. Chunks that wait for it commit, or go
  // on to the next kind. A partition that has received totals of that kind answers kDuplicate;
  // kWrongStep: these totals cannot contain all of its parts.
  GroupsOutcome Totals(const GroupsRequest& request, const NormTotals& totals);
  // Changes values of the optimizer of the groups' slices; none: the group only takes its sequence.
  // answer.version: the least step from which they are in force (sync; else 0); answer.detail: the
  // greatest such step less that. kOutOfRange: a value that the table does not have, or out of its
  // range.
  GroupsOutcome SetOptimizer(const GroupsRequest& request, absl::Span<const NamedValue> values);

  // Whether requests that were answered no_room may be tried again: there is room, or a view has
  // changed their result. Call it after everything else that may make room, TakeEvents() last.
  bool TakeRoom();

  // ---- parts, each with an interface of its own ----
  Replicas& replicas();  // elsewhere, of this shard's partitions (replica/replicas.h)
  const Replicas& replicas() const;
  Proofs& proofs();  // comparisons of these with their primary (replica/proofs.h)
  Copies& copies();  // replicas that this shard has (replica/copies.h)
  const Copies& copies() const;
  CopyReads& copy_reads();     // pulls that these answer (replica/copy_reads.h)
  Checkpoints& checkpoints();  // checkpoint/checkpoints.h
  const Checkpoints& checkpoints() const;
  Restores& restores();  // checkpoint/restores.h
  const Restores& restores() const;
  ColdEvents& cold();  // rows that are not in memory (cold_events.h)
  const ColdEvents& cold() const;

  // The time in seconds since an origin that all servers share: for rows that are dropped by age.
  void SetSeconds(uint32_t seconds);

  void Unpin(uint64_t pin);
  // Waiting pulls and lookups of these operations of a lane end with kTooEarly; the worker will ask
  // again.
  void ReturnReads(uint32_t lane, absl::FunctionRef<bool(uint32_t operation)> which);
  // Drops every held or waiting request of a lane that is dead; no event follows for it.
  void ForgetLane(uint32_t lane);

  // Moves pending events to the end of *events. Returns whether there were any.
  bool TakeEvents(std::vector<Event>* events);

  EngineCounters counters() const;
  // By id; without tables that cannot be served here. Takes memory: not for the hot path.
  std::vector<TableStatistics> tables() const;
  // By name; those that have tables or limits, or still have memory. Not for the hot path either.
  std::vector<JobStatistics> jobs() const;

 private:
  friend struct EngineInspector;  // tests
  std::unique_ptr<EngineCore> core_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_ENGINE_H_
