// Data-plane records: the contents of a lane's slots (requests) and of its mailbox (replies).
//
// Records have a fixed layout, are little-endian and have no undefined padding. A request is
//     RecordHeader | Group x group_count | zeros to a multiple of 64 | payload
// The payload of a record about rows of an embedding table is
//     key (uint64) x rows of group 0, of group 1, ... | zeros to a multiple of 64 | the rows
// The keys of a group ascend without duplicates. A lookup has keys only. A reply is a Reply, of
// which ReplyBytes(group_count) bytes are written. Data from a peer is copied out and then
// validated (proto/wire/record_check.h) before use.
//
// **Thread safety**: plain data and pure functions.
#ifndef VERBENA_PROTO_WIRE_RECORD_H_
#define VERBENA_PROTO_WIRE_RECORD_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace verbena {

static_assert(std::endian::native == std::endian::little,
              "records are little-endian and are used in place");

inline constexpr uint32_t kRecordMagic = 0x31524256;  // "VBR1"
inline constexpr uint32_t kReplyMagic = 0x31505256;   // "VRP1"

// A small slot is 4 KiB: header, kMaxGroups groups, and spare space.
inline constexpr uint32_t kMaxGroups = 120;
inline constexpr uint32_t kRecordAlignment = 64;

enum class RecordType : uint8_t {
  kPush = 1,     // one dense chunk: one group, payload = its gradient. Without a payload and with
                 // count 0 it settles a push whose buffer was released; it contributes zero
  kPull = 2,     // one dense chunk: one group; the server writes the chunk to `destination`
  kEndStep = 3,  // a worker's step is complete on the listed partitions
  kAwait = 4,    // a pull without data: answered when every listed partition is at min_version
  // For embedding tables. A group has `count` keys of one partition.
  kPushRows = 5,  // payload = keys and gradients; a group with count 0 settles and contributes zero
  kLookup = 6,    // payload = keys; the server writes their rows, in order, to `destination`
  kScan = 7,      // one group: the server writes at most `count` rows of the partition, starting at
                  // cursor `sequence`, as keys and rows (in the layout of a payload) to
                  // `destination`
  // For a sync table whose step needs a norm over several chunks. The commit has two phases: kNorms
  // requests partial norms, and kTotals sends the total norms. All groups have the same step
  // (`sequence`) and the same NormKind (`index`).
  kNorms = 8,   // answered when every chunk of the listed partitions has its partial norm. For each
                // group, and for each of the partition's chunks in order, NormNumbers() f64 are
                // written to `destination`. kDuplicate: the step is already committed, and nothing
                // is written
  kTotals = 9,  // payload = TotalsPayload: the sums of all chunks' partial norms. The first one
                // received counts
  // Between servers: the sender is the partition's primary, the receiver is a replica.
  kReplicate = 10,  // one group, whose `sequence` numbers the partition's records from 1; payload =
                    // ReplicaHeader, then data by its kind. kOk: the record is applied;
                    // kSequenceGap: an earlier record is missing; kNotReady: the receiver's view is
                    // older
  kBeacon = 11,     // answered for each group. kOk: the receiver is a follower in this epoch and
                    // promises not to request promotion before a lease has passed. Each group has
                    // SettledOf() its partition's log
  kLookupBags = 12,  // like kLookup, but `bags` sums of rows are written. The keys of a group may
                     // repeat and must not descend. payload = keys, zeros to KeyBytes(), one BagUse
                     // per key
  kPrefetch = 13,    // prefetch; payload = keys, as in kLookup. Rows that are not in memory are
                     // loaded as far as memory allows. Answered at once
  kAssign = 14,      // like kPush, with the same identity, but the payload is parameters, which
                     // replace those of the chunk
  kAssignRows = 15,  // like kPushRows, but the rows are parameters, which replace those of the keys
  kSetOptimizer = 16,  // payload = NamedValues, zeros to kRecordAlignment: new values of the
                       // table's optimizer for the listed partitions; without a payload it only
                       // settles its sequences. version: the least step from which they are in
                       // force (sync; 0: at once), detail: the greatest such step less that
  // The state of the optimizer of a dense table, in f32, by the index of its array.
  kPullState = 17,    // like kPull, but the server writes an array of the chunk's state
  kAssignState = 18,  // like kAssign, but the payload replaces an array of the chunk's state, and
                      // the parameters stay
};

// A value of an optimizer: "rate", or a parameter.
struct NamedValue {
  char name[24];  // zeros after the name
  double value;
};
static_assert(sizeof(NamedValue) == 32 && std::is_trivially_copyable_v<NamedValue>);
inline constexpr uint32_t kMaxNamedValues = 16;
// Groups of a kSetOptimizer: with kMaxNamedValues they fit the smallest slot.
inline constexpr uint32_t kMaxSetOptimizerGroups = 96;

// Kind of a norm. The numbers are squares of L2 norms.
enum class NormKind : uint8_t {
  kGradient = 0,  // norm of the gradient, for clip_global_norm
  kTrust = 1,     // norms of the weights and of the update, for a trust ratio
};
inline constexpr uint32_t kNormKinds = 2;
constexpr uint32_t NormNumbers(NormKind kind) { return kind == NormKind::kGradient ? 1 : 2; }

// The payload of a kTotals.
struct TotalsPayload {
  double totals[2];  // the first NormNumbers() count
  uint8_t reserved[48];
};
static_assert(sizeof(TotalsPayload) == kRecordAlignment &&
              std::is_trivially_copyable_v<TotalsPayload>);

// The values equal those of verbena.v1.DType and, from kInt8 on, those of verbena.v1.Codec. Types
// from kInt8 on are encoded in blocks (below). Types after kE5m2 occur only in pushes to dense
// tables.
enum class ElementType : uint8_t {
  kNone = 0,
  kF32 = 1,
  kBf16 = 2,
  kF16 = 3,
  kInt8 = 4,
  kE4m3 = 5,
  kE5m2 = 6,
  kSign = 7,
  kTopK = 8
};
constexpr bool InBlocks(ElementType type) { return type >= ElementType::kInt8; }
// For types without blocks.
constexpr uint32_t ElementBytes(ElementType type) {
  if (type == ElementType::kNone) return 0;
  return type == ElementType::kF32 ? 4 : 2;
}

// A block is the scale (f32), then one byte per number; kSign has one bit per number, the first in
// the lowest bit. The last block has the full size; data beyond the count is ignored. A kTopK block
// covers more numbers: it has the values of the kept numbers (f32), then the index of each
// (uint16). See docs/codecs.md.
inline constexpr uint32_t kCodecBlock = 128;
inline constexpr uint32_t kTopKBlock = 2048;
inline constexpr uint32_t kTopKKept = 20;
// Numbers per block.
constexpr uint32_t CodecBlock(ElementType type) {
  return type == ElementType::kTopK ? kTopKBlock : kCodecBlock;
}
constexpr uint32_t CodecBlockBytes(ElementType type) {
  if (type == ElementType::kTopK) return kTopKKept * (sizeof(float) + sizeof(uint16_t));
  return sizeof(float) + (type == ElementType::kSign ? kCodecBlock / 8 : kCodecBlock);
}
// Bytes of `count` numbers in a payload.
constexpr uint64_t PayloadBytes(ElementType type, uint64_t count) {
  if (!InBlocks(type)) return count * ElementBytes(type);
  return (count + CodecBlock(type) - 1) / CodecBlock(type) * CodecBlockBytes(type);
}

// Bytes of a row of `dim` numbers, a multiple of kRowMultiple. Each row has its own blocks, and its
// last block has one byte for each remaining number only. For types up to kE5m2.
inline constexpr uint64_t kRowMultiple = 4;
constexpr uint64_t RowBytes(ElementType type, uint64_t dim) {
  const uint64_t rest = InBlocks(type) ? dim % kCodecBlock : dim;
  const uint64_t bytes =
      InBlocks(type) ? (rest == 0 ? 0 : sizeof(float) + rest) : rest * ElementBytes(type);
  return PayloadBytes(type, dim - rest) + (bytes + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

// Kinds of records that a primary sends to its replicas, in the order of its changes. All values
// are those after the change, so a record describes its change completely.
enum class ReplicaKind : uint8_t {
  kBegin = 1,   // the first record: the replica has the sender's state of the empty partition, or
                // (kReplicaLearner) is empty and receives the contents in the records that follow
  kDense = 2,   // an apply to a chunk: `count` f32, the sum of the gradients; count 0: the sum is
                // zero
  kRows = 3,    // an apply to rows: `count` keys, zeros to KeyBytes(), the sums of their gradients
  kSettle = 4,  // no numbers: a worker's sequence and clock
  kReset = 5,   // a table: versions restart with `generation` of its job
  // Sent to a learner only, or to all replicas of a table that is restored.
  kBeginPartition =
      6,           // a table's slice: its versions; payload: the state of each worker
                   // (kReplicaToCome: the replica makes the slice anew, and its contents follow)
  kChunk = 7,      // a chunk: its versions; payload: parameters, then state
  kRowStates = 8,  // `count` rows: payload: keys, zeros, then rows with their state
  kComplete = 9,   // the whole partition has been sent
  // Sent to every replica. A slice accepts other records only after kFresh or kBeginPartition.
  kFresh = 10,  // a table's slice starts new: no rows, initial values
  // The replica compares `digest` with its own state at this record and changes nothing.
  kProveRows = 11,       // `count` keys, zeros: rows with optimizer state
  kProveChunk = 12,      // a chunk with optimizer state, and its versions
  kProvePartition = 13,  // a slice: its versions and `rows`; payload: progress of `count` workers,
                         // as in kBeginPartition
  kMakeRows = 14,        // `count` keys, zeros: from this record on the keys have rows with initial
                         // values, which are no longer "to come"
  kOptimizer = 15,  // `count` changes of the slice's optimizer, each an OptimizerChangeHeader and
                    // its values; those of steps before `version` are merged
  kNothing = 16,    // no change: the record with this sequence is for other replicas
};
inline constexpr uint8_t kMaxReplicaKind = 16;
// A change of a slice's optimizer, in a kOptimizer. Without values: the last change of a client,
// whose values are in others.
struct OptimizerChangeHeader {
  uint64_t from;      // step from which it is in force; 0: at once
  uint64_t worker;    // incarnation of the client that made it; 0: several, or it has a sequence
                      // among the worker's pushes
  uint64_t sequence;  // of the client's changes
  uint64_t changes;   // that are merged in it
  int32_t rank;       // of the worker; less than 0: not a worker's
  uint32_t count;     // NamedValues that follow
};
static_assert(sizeof(OptimizerChangeHeader) == 40);
// ReplicaHeader::flags.
inline constexpr uint8_t kReplicaLearner = 1;  // kBegin
// kBegin: the sender has become the primary. The replica goes on if its last record is the
// sender's: that with sequence `version`, which came in epoch `applies`.
inline constexpr uint8_t kReplicaResume = 4;
// kBeginPartition, kRows: rows of the slice that the replica lacks will be sent later, in their
// state after this record.
inline constexpr uint8_t kReplicaToCome = 2;

// The start of a kReplicate's payload. Data that does not fit one record is split into parts with
// the same `sequence`, in order, each with this header. The last part completes it.
struct ReplicaHeader {
  ReplicaKind kind;
  uint8_t flags;
  uint16_t reserved0;    // 0
  uint32_t generation;   // of the table's job
  uint32_t count;        // depends on the kind
  uint32_t total_bytes;  // of the payload of all parts, without headers
  uint32_t part_offset;  // offset of this record's data in total_bytes
  float divisor;         // divides the sum of the gradients
  float gradient_scale;  // factor from the norms over several chunks: StepScale
  float trust;
  uint64_t version;          // of the chunk or slice, after the change
  uint64_t applies;          // of the chunk or slice, after the change
  uint64_t worker;           // the worker that sent the push or end-step; 0: a commit of several
                             // workers
  uint64_t worker_sequence;  // its last sequence on the table and partition, after the change
  uint64_t worker_clock;     // ssp: number of steps it has ended; 0: unchanged
  uint64_t since;            // Replica.since of the replica
  uint32_t stamp;            // kRows of a table with eviction: stamp of the rows, after the change
  uint32_t keep_from;        // kRows of a table with eviction: rows with lower stamps are dropped
  uint64_t digest;           // kProveRows, kProveChunk; kProvePartition: of the optimizer's changes
  uint64_t rows;             // kProvePartition: rows that a push has changed; dense: chunks
  uint32_t keep_hash;        // kRows of a table with eviction: rows with stamp keep_from and a
                             // lower hash are dropped too
  uint32_t learner_kib;      // kBegin of a learner: estimated KiB of its rows
  uint32_t assigned;         // kDense, kRows: the last so many of `count` are new parameters, which
                             // replace the old ones; kDense: all or none
  uint32_t array;            // kDense with `assigned`: 0: parameters, else 1 + the index of the
                             // state array that is replaced. Others: 0
  uint64_t committed;        // records up to it are on all followers and applied at the sender; 0:
                             // not told
};
static_assert(sizeof(ReplicaHeader) == 128 && std::is_trivially_copyable_v<ReplicaHeader>);

// The part of a request that concerns one partition. Groups are accepted, deduplicated and resent
// one by one.
struct Group {
  uint32_t partition;
  uint32_t index;     // push, pull: chunk of the table. sync push of rows: number of this record
                      // among the worker's records of the step on this partition, from 0. norms and
                      // totals: NormKind. set-optimizer: number of the client's change of the
                      // table, from 1. Others: 0
  uint64_t epoch;     // the partition's epoch in the sender's view
  uint64_t sequence;  // sync push and end-step, norms, totals: step. async push and end-step:
                      // sequence. async and ssp pull: sequence of a push of this worker that must
                      // be applied first, or 0. scan: cursor. set-optimizer by a worker: as a push.
                      // Others: 0
  uint32_t count;     // push: elements. rows: keys. end-step: chunks (embedding table: groups of
                      // rows) pushed to this partition in this step
  uint32_t admission;  // push, end-step, await: Job.admission in the sender's view; a server with
                       // an older view answers kNotReady. Others: 0
};
static_assert(sizeof(Group) == 32 && std::is_trivially_copyable_v<Group>);
// beacon: records up to it are on all followers and applied at the sender, which may read for
// workers now; 0: it may not, or does not tell. It takes the place of `index` and `count`.
constexpr uint64_t SettledOf(const Group& group) {
  return uint64_t{group.index} << 32 | group.count;
}
constexpr void SetSettled(uint64_t sequence, Group* group) {
  group->index = static_cast<uint32_t>(sequence >> 32);
  group->count = static_cast<uint32_t>(sequence);
}

// RecordHeader::flags: this push's payload is not in the slot but in the worker's memory at
// `destination`, which the worker has exposed (Endpoint::CanBorrow()).
inline constexpr uint8_t kRecordReference = 1;

struct RecordHeader {
  uint32_t magic;
  uint16_t version;  // of the lane: the protocol version that its two sides have negotiated
  RecordType type;
  uint8_t flags;         // push: 0 or kRecordReference. Others: 0
  uint32_t generation;   // of the lane
  uint32_t operation;    // index in the mailbox; < the lane's granted operations
  uint64_t incarnation;  // of the worker, or of the server
  uint32_t table;
  uint16_t group_count;  // 1..kMaxGroups
  ElementType dtype;     // of the payload (push) or of the requested data (pull); must match the
                         // table
  uint8_t array;         // pull and assignment of state: 1 + the index of the state array.
                         // Others: 0
  uint32_t payload_bytes;
  uint32_t bags;             // kLookupBags: number of requested vectors. pull: 0: the primary
                             // answers; else a follower does, with data of at most so many
                             // milliseconds ago. Others: 0
  uint64_t destination;      // pull: remote address to write to. push by reference: remote address
                             // to read from
  uint64_t destination_key;  // remote key of that memory
  uint64_t min_version;      // pull, await: lowest version that may be answered. ssp pull and
                             // end-step: the worker's clock, the number of steps it has ended.
                             // assignment of state: the chunk's count of applies after it. beacon:
                             // Reply::applies of the last one that the receiver answered, or 0
};
static_assert(sizeof(RecordHeader) == 64 && std::is_trivially_copyable_v<RecordHeader>);

enum class ReplyStatus : uint8_t {
  kOk = 0,
  kDuplicate = 1,     // already applied: equivalent to kOk
  kWrongEpoch = 2,    // fetch the view again, then resend to the primary in it
  kNotReady = 3,      // the server does not know the table, job or member yet: resend later
  kExpired = 4,       // the incarnation is a member of no job that the server knows
  kUnknownTable = 5,  // the table was dropped
  kOutOfRange = 6,    // chunk, count or destination outside the table
  kNonFinite = 7,     // NaN or Inf under `reject`. The push contributes zero, and its place (sync:
                      // in the step; async, ssp: its sequence) is left to an empty push
  kSequenceGap = 8,   // async: sequence is greater than last + 1; pull: the push that it must
                      // follow has not been applied
  kWrongStep = 9,     // sync: the step is not the open one
  kTooEarly = 10,     // end-step: listed contributions have not arrived. pull or lookup: it waited
                      // too long while other requests of its lane could not be deferred. Resend
  kDataLoss = 11,     // the server has lost its data of the partition, and the view does not show
                      // it yet
  kMalformed = 12,
  kResourceExhausted = 13,
  kPermissionDenied = 14,  // an observer pushed
  kUnavailable = 15,
  kMemoryLimit = 16,     // push of rows: new rows do not fit the server's memory limit, or the rows
                         // do not fit in memory together (cold tier). No row of the group changed.
                         // The place of its push is left to an empty one, as with kNonFinite
  kJobMemoryLimit = 17,  // as kMemoryLimit, for the job's share of the server
  kOtherJob = 18,        // the worker is not a member of the table's job
  kCopyMemoryLimit = 19,  // as kMemoryLimit, for the server of the partition's follower
};
inline constexpr uint8_t kMaxReplyStatus = 19;

// Maximum number of rows of a table in one partition; Reply::detail of a push that exceeds it.
inline constexpr uint64_t kMaxRowsOfPartition = uint64_t{1} << 26;
inline constexpr uint32_t kPartitionIsFull = UINT32_MAX;

inline constexpr uint8_t kReplyReturnsSlot = 1;  // Reply::flags: `slot` is free again

// The greatest staleness bound of an ssp table. A table with a bound that is never reached is
// async.
inline constexpr uint32_t kMaxStaleness = 1'000'000;
// Histogram of the staleness of pulls: bucket i counts staleness i; the last bucket counts 32 and
// more.
inline constexpr uint32_t kStalenessBuckets = 33;

struct Reply {
  uint32_t magic;
  uint32_t generation;
  uint32_t operation;
  ReplyStatus status;  // kOk when every group's status is kOk or kDuplicate, otherwise the worst
                       // status of the groups
  uint8_t flags;
  uint16_t group_count;
  uint16_t slot;
  uint16_t reserved0;
  uint32_t detail;   // kTooEarly: chunks missing. ssp pull: number of steps that the slowest worker
                     // is behind. scan: rows written. kMemoryLimit, kJobMemoryLimit,
                     // kCopyMemoryLimit: the limit in MiB, or kPartitionIsFull. replicate, beacon:
                     // 1 + KiB for new rows of the sender on this server; 0: no limit
  uint64_t version;  // pull: version of the written chunk; ssp: the lowest clock of all workers.
                     // push: the chunk's version afterwards. rows: the lowest version of the
                     // groups. scan: the cursor after the written rows. replicate, beacon: this
                     // server's memory limit in bytes
  uint64_t applies;  // pull: the chunk's count of applies. beacon: the time of this server's clock.
                     // Others: 0
  ReplyStatus group_status[kMaxGroups];
  uint8_t reserved1[32];
};
static_assert(offsetof(Reply, group_status) == 40 && sizeof(Reply) == 192 &&
              std::is_trivially_copyable_v<Reply>);
inline constexpr size_t kMailboxEntryBytes = sizeof(Reply);

// Bytes of a reply that carry information.
constexpr size_t ReplyBytes(uint32_t group_count) {
  return offsetof(Reply, group_status) + group_count;
}

// Offset of the payload in a request with `group_count` groups.
constexpr uint32_t PayloadOffset(uint32_t group_count) {
  const uint32_t end = sizeof(RecordHeader) + group_count * sizeof(Group);
  return (end + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}
static_assert(PayloadOffset(kMaxGroups) <= 4096);

// The maximum `dim` of an embedding table.
inline constexpr uint32_t kMaxRowElements = 1024;
// The maximum number of bytes of the rows of one lookup or scan.
inline constexpr uint64_t kMaxRowsBytes = 8 << 20;
// Bytes of `count` keys and the zeros after them: offset of the rows in a payload of rows.
constexpr uint64_t KeyBytes(uint64_t count) {
  return (count * sizeof(uint64_t) + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

// The first entry that a server writes into a new lane's mailbox (at index `operations`): the
// location of the slot ring. It is sent on the lane because its key exists only after the lane is
// connected.
inline constexpr uint32_t kGrantMagic = 0x31475256;  // "VRG1"
struct LaneGrant {
  uint32_t magic;
  uint32_t generation;
  uint64_t ring_address;
  uint64_t ring_key;
  uint8_t reserved[40];
};
static_assert(sizeof(LaneGrant) == 64 && std::is_trivially_copyable_v<LaneGrant>);

// Private data of a worker's connection request. It fits librdmacm's 56 bytes of private data
// (rdma_connect(3): RDMA_PS_TCP), which arrives padded.
struct LaneHello {
  uint8_t token[16];
  uint64_t mailbox_address;
  uint64_t mailbox_key;
};
static_assert(sizeof(LaneHello) == 32 && std::is_trivially_copyable_v<LaneHello>);

// Immediate data. Worker to shard: lane (low 12 bits) | slot 8 | generation 12.
// Shard to worker: kind 2 | index 18 | generation 12.
enum class ImmKind : uint8_t { kReply = 0, kCredit = 1, kGrant = 2 };
inline constexpr uint32_t kGenerationMask = 0xfff;

struct RequestImm {
  uint32_t lane;
  uint32_t slot;
  uint32_t generation;  // low bits
  static constexpr RequestImm Decode(uint32_t imm) {
    return {imm >> 20, (imm >> 12) & 0xff, imm & kGenerationMask};
  }
  constexpr uint32_t Encode() const {
    return (lane & 0xfff) << 20 | (slot & 0xff) << 12 | (generation & kGenerationMask);
  }
};

struct ReplyImm {
  ImmKind kind;
  uint32_t index;  // kReply: operation. kCredit: slot
  uint32_t generation;
  static constexpr ReplyImm Decode(uint32_t imm) {
    return {static_cast<ImmKind>(imm >> 30), (imm >> 12) & 0x3ffff, imm & kGenerationMask};
  }
  constexpr uint32_t Encode() const {
    return static_cast<uint32_t>(kind) << 30 | (index & 0x3ffff) << 12 |
           (generation & kGenerationMask);
  }
};

}  // namespace verbena

#endif  // VERBENA_PROTO_WIRE_RECORD_H_
