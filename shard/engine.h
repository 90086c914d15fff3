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
//     last + 1; a worker's first is 1.
//  5. ssp: a pull by a worker that has ended c steps is answered once every worker that counts has
//     ended c - staleness on the partition; a joiner starts at the least.
//  6. An embedding table has a version for each partition. sync: step t commits when every rank has
//     ended it on the partition or departed; pushes are copied when they arrive, and summed by key
//     in the order of (rank, index). Otherwise 2, 4 and 5 hold as for chunks; 3 has no need to,
//     because rows are gathered into memory of their own.
//  7. What a job has of this server is at most its share of JobLimits::memory_bytes, by the
//     partitions that the server has, as shard/job_memory.h counts it. Growth beyond it is refused.
//  8. A held contribution's payload is read at most until its kSlotReleased event or ForgetLane().
//  9. Which lane a record comes on says nothing of it but where the answer goes. A worker that has
//     several sends what a dead one left unanswered on another, while what the dead one carried may
//     still come, or be held or queued, because we have not noticed yet. Either may be first: the
//     second is a duplicate by its sequence, its (step, chunk) or its (step, index), however often
//     it was cut anew, and also where one of them has been emptied. Only what is held or queued is
//     not settled, because it goes if its lane does: the other is refused (kWrongStep,
//     kSequenceGap), is sent again, and meets the commit, or the place that ForgetLane() has
//     freed. No commit and no place in a queue waits for it meanwhile.
#ifndef VERBENA_SHARD_ENGINE_H_
#define VERBENA_SHARD_ENGINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/record.h"
#include "proto/verbena/v1/cluster.pb.h"
#include "shard/allocator.h"
#include "shard/job_memory.h"

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
                        // in the view. kMemoryLimit, kJobMemoryLimit: the limit in MiB
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
  bool held = false;  // true: payload stays in use; a kPushDone event follows
  Answer answer;      // !held
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
  bool parked = false;  // await only; kAwaitDone follows
  Answer answer;
  // One per group, when !parked. Valid until the next call.
  absl::Span<const ReplyStatus> group_status;
};

// Records about rows of an embedding table. Of a group's keys no two are alike, and they ascend.
struct PushRowsRequest {
  Token token;
  uint64_t worker = 0;
  uint32_t table = 0;
  absl::Span<const Group> groups;
  absl::Span<const uint64_t> keys;   // of group 0, of group 1, ...
  absl::Span<const std::byte> rows;  // their gradients, float-aligned: dim f32 each
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
  bool may_park = true;  // false: kResourceExhausted instead
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
  };
  Kind kind;
  Token token;
  Answer answer;
  ChunkView view;
  uint64_t destination = 0;
  uint64_t destination_key = 0;
};

// Told of every commit; for tests that check invariants. May be empty.
struct Commit {
  uint32_t table;
  uint32_t chunk;
  uint64_t step;
  absl::Span<const uint64_t> contributors;  // incarnations, in rank order
  uint32_t divisor;                         // of a mean
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
  uint64_t spare_exhausted = 0;  // applies that had to wait for a pinned chunk
};

// Of one table on this shard. What a push or pull is: a chunk; of rows, a push is a group, a pull a
// whole lookup or scan.
struct TableCounters {
  uint64_t pushes = 0, pulls = 0, push_bytes = 0, pull_bytes = 0;
  uint64_t non_finite = 0;  // pushes refused or skipped for a NaN or Inf
};
struct TableStatistics {
  uint32_t id = 0;
  std::string name;
  uint64_t parameter_bytes = 0;  // resident, without optimizer state
  uint64_t rows = 0;             // of an embedding table, those of open steps included
  TableCounters counters;
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
  CommitObserver commit_observer;
  // What all shards of the server have in common of a job. Empty: this shard is the only one.
  std::function<std::shared_ptr<JobMemory>(const std::string& job)> job_memory;
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
  absl::Status ApplyView(const v1::ClusterView& view);

  PushOutcome Push(const PushRequest& request);
  PullOutcome Pull(const PullRequest& request);
  GroupsOutcome EndStep(const GroupsRequest& request);
  GroupsOutcome Await(const GroupsRequest& request);

  // Of embedding tables. A push is never held: what it carries is read before the call returns.
  // Memory that rows are gathered in comes from AllocateScratch(); without any a lookup is answered
  // kResourceExhausted.
  GroupsOutcome PushRows(const PushRowsRequest& request);
  PullOutcome Lookup(const LookupRequest& request);
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

  void Unpin(uint64_t pin);
  // Drops everything held or parked for a lane that is dead; no event follows for it.
  void ForgetLane(uint32_t lane);

  // Moves pending events to the end of *events. Returns whether there were any.
  bool TakeEvents(std::vector<Event>* events);

  const EngineCounters& counters() const;
  // By id; without tables that cannot be served here. Takes memory: not for the hot path.
  std::vector<TableStatistics> tables() const;
  // By name; those that have tables or limits, or still have memory. Not for the hot path either.
  std::vector<JobStatistics> jobs() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_ENGINE_H_
