// Data-plane records: what travels in a lane's slots (requests) and mailbox (replies).
//
// Fixed layout, little-endian, no padding left undefined. A request is
//     RecordHeader | Group x group_count | zeros to a multiple of 64 | payload
// The payload of a record about rows of an embedding table is
//     key (uint64) x rows of group 0, of group 1, ... | zeros to a multiple of 64 | the rows
// with the keys of a group in ascending order, no two alike; a lookup has the keys alone.
// A reply is a Reply, of which ReplyBytes(group_count) bytes are written.
// What comes from a peer is copied out and then validated (proto/record_check.h) before use.
#ifndef VERBENA_PROTO_RECORD_H_
#define VERBENA_PROTO_RECORD_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace verbena {

static_assert(std::endian::native == std::endian::little,
              "records are little-endian and are used in place");

inline constexpr uint32_t kRecordMagic = 0x31524256;  // "VBR1"
inline constexpr uint32_t kReplyMagic = 0x31505256;   // "VRP1"
inline constexpr uint16_t kWireVersion = 5;

// A small slot is 4 KiB: header, kMaxGroups groups, and room to spare.
inline constexpr uint32_t kMaxGroups = 120;
inline constexpr uint32_t kRecordAlignment = 64;

enum class RecordType : uint8_t {
  kPush = 1,     // one dense chunk: one group, payload = its gradient, or none and count 0: settles
                 // a push whose buffer was given back, contributing zero
  kPull = 2,     // one dense chunk: one group; the server writes it to `destination`
  kEndStep = 3,  // a worker's step is complete on the listed partitions
  kAwait = 4,    // a zero-length pull: answered once every listed partition is at min_version
  // Of embedding tables. A group has `count` keys of one partition.
  kPushRows = 5,  // payload = keys and gradients; a group with count 0 settles, contributing zero
  kLookup = 6,    // payload = keys; the server writes their rows, in order, to `destination`
  kScan = 7,      // one group: the server writes at most `count` rows of the partition, from cursor
                  // `sequence` on, as keys and rows (laid out as a payload) to `destination`
  // Of a sync table whose step needs a norm over several chunks: the first phase of its commit asks
  // for parts of sums, the second tells the sums. All groups are of one step (`sequence`) and one
  // NormKind (`index`).
  kNorms = 8,   // answered once every chunk of the listed partitions has its part: for each group,
                // for each of the partition's chunks in order, NormNumbers() f64 are written to
                // `destination`. kDuplicate, and nothing written: that step is over
  kTotals = 9,  // what all chunks' parts add up to. The first that comes counts
  // Between servers: the sender has the partitions, the receiver copies of them.
  kReplicate = 10,  // one group, whose `sequence` counts the partition's records, 1, 2, ...;
                    // payload = ReplicaHeader, then what its kind says. kOk: it is applied;
                    // kSequenceGap: one before it is missing; kNotReady: the view here is older
  kBeacon = 11,  // answered for each group: kOk, the receiver is a follower in this epoch and asks
                 // for no other before a lease has passed
  kLookupBags = 12,  // as a lookup, but what is written are `bags` sums of rows. A group's keys do
                     // not descend, and may repeat. payload = keys, zeros to KeyBytes(), a BagUse a
                     // key
  kIntent = 13,  // payload = keys, as of a lookup, whose rows will be asked for soon: those that
                 // are not in memory are brought there, as far as there is room. Answered at once
};

// Which norm. The numbers are squares of L2 norms.
enum class NormKind : uint8_t {
  kGradient = 0,  // of the gradient, for clip_global_norm
  kTrust = 1,     // of the weights and of the update, for a trust ratio
};
inline constexpr uint32_t kNormKinds = 2;
constexpr uint32_t NormNumbers(NormKind kind) { return kind == NormKind::kGradient ? 1 : 2; }

// The numbers are those of verbena.v1.DType and, from kInt8 on, of verbena.v1.Codec: in blocks
// (below). Those after kE5m2 are of pushes to dense tables.
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
// Of those that are not in blocks.
constexpr uint32_t ElementBytes(ElementType type) {
  if (type == ElementType::kNone) return 0;
  return type == ElementType::kF32 ? 4 : 2;
}

// A block is the scale (f32), then a byte for each number, or of kSign a bit, the first one lowest.
// The last block has as many; what is beyond the count is not looked at. A block of kTopK is
// larger: the numbers that travel of it (f32), then the place of each (uint16). docs/codecs.md.
inline constexpr uint32_t kCodecBlock = 128;
inline constexpr uint32_t kTopKBlock = 2048;
inline constexpr uint32_t kTopKKept = 20;
// Numbers of a block.
constexpr uint32_t CodecBlock(ElementType type) {
  return type == ElementType::kTopK ? kTopKBlock : kCodecBlock;
}
constexpr uint32_t CodecBlockBytes(ElementType type) {
  if (type == ElementType::kTopK) return kTopKKept * (sizeof(float) + sizeof(uint16_t));
  return sizeof(float) + (type == ElementType::kSign ? kCodecBlock / 8 : kCodecBlock);
}
// What `count` numbers take in a payload.
constexpr uint64_t PayloadBytes(ElementType type, uint64_t count) {
  if (!InBlocks(type)) return count * ElementBytes(type);
  return (count + CodecBlock(type) - 1) / CodecBlock(type) * CodecBlockBytes(type);
}

// What a row of `dim` numbers takes, a multiple of kRowMultiple: its blocks are its own, and the
// last one has a byte for each of the row's numbers and no more. Up to kE5m2.
inline constexpr uint64_t kRowMultiple = 4;
constexpr uint64_t RowBytes(ElementType type, uint64_t dim) {
  const uint64_t rest = InBlocks(type) ? dim % kCodecBlock : dim;
  const uint64_t bytes =
      InBlocks(type) ? (rest == 0 ? 0 : sizeof(float) + rest) : rest * ElementBytes(type);
  return PayloadBytes(type, dim - rest) + (bytes + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

// What a primary tells its copies, in the order in which it did it. All values are those
// afterwards, so that a record says everything of what it changes.
enum class ReplicaKind : uint8_t {
  kBegin = 1,   // the first record: the copy has what the sender had when the partition was empty,
                // or (kReplicaLearner) is empty and is brought up by what follows
  kDense = 2,   // an apply to a chunk: `count` f32, the sum of the gradients, or none for zero
  kRows = 3,    // an apply to rows: `count` keys, zeros to KeyBytes(), the sums of their gradients
  kSettle = 4,  // no numbers: a worker's sequence and clock
  kReset = 5,   // a table: versions restart with `generation` of its job
  // To learners alone.
  kSlice = 6,      // a table's slice: its versions; payload: what is known of each worker
                   // (kReplicaToCome: the replica's slice is made new, and its contents follow)
  kChunk = 7,      // a chunk: its versions; payload: parameters, then state
  kRowStates = 8,  // `count` rows: payload: keys, zeros, then rows with their state
  kComplete = 9,   // all of it was sent
  // To every replica. A slice takes other records only after kFresh or kSlice.
  kFresh = 10,  // a table's slice: begins as a new one, with no rows and initial values
  // The replica compares `digest` with its own state at this record, and changes nothing.
  kProveRows = 11,   // `count` keys, zeros: rows with optimizer state
  kProveChunk = 12,  // a chunk with optimizer state, and its versions
  kProveSlice = 13,  // a slice: its versions and `rows`; payload: `count` worker marks, as kSlice
  kMakeRows = 14,    // `count` keys, zeros: they have rows with initial values from here on, which
                     // are not "to come"
};
inline constexpr uint8_t kMaxReplicaKind = 14;
// ReplicaHeader::flags.
inline constexpr uint8_t kReplicaLearner = 1;  // kBegin
// kSlice, kRows: rows of the slice that the replica does not have are still to be sent to it, as
// they are after this record.
inline constexpr uint8_t kReplicaToCome = 2;

// The beginning of a kReplicate's payload. What does not fit one record is cut: parts of one
// `sequence`, in order, each with this header; the last one makes it complete.
struct ReplicaHeader {
  ReplicaKind kind;
  uint8_t flags;
  uint16_t reserved0;    // 0
  uint32_t generation;   // of the table's job
  uint32_t count;        // as the kind says
  uint32_t total_bytes;  // of the payload of all parts, without headers
  uint32_t part_offset;  // in that, of what this record has
  float divisor;         // of the sum
  float gradient_scale;  // what the norms over several chunks made of it: StepScale
  float trust;
  uint64_t version;          // of the chunk or slice, afterwards
  uint64_t applies;          // likewise
  uint64_t worker;           // whose push or end-step this was; 0: a commit of several
  uint64_t worker_sequence;  // its last one on the table and partition, afterwards
  uint64_t worker_clock;     // ssp: the steps it has ended; 0: as before
  uint64_t since;            // Replica.since of the copy
  uint32_t stamp;            // kRows of a table with eviction: of the rows, afterwards
  uint32_t keep_from;        // likewise: rows with lesser stamps are dropped then
  uint64_t digest;           // kProveRows, kProveChunk
  uint64_t rows;             // kProveSlice: rows that a push has changed; dense: chunks
  uint32_t keep_hash;        // as stamp: and of those with that stamp the ones with lesser hashes
  uint32_t learner_kib;      // kBegin of a learner: KiB that rows will take, about
  uint8_t reserved1[16];     // 0
};
static_assert(sizeof(ReplicaHeader) == 128 && std::is_trivially_copyable_v<ReplicaHeader>);

// The part of a request that says what it is about, partition by partition: a group is what is
// accepted, deduplicated and resent.
struct Group {
  uint32_t partition;
  uint32_t index;     // push, pull: chunk of the table. sync push of rows: which of this worker's
                      // records of the step on this partition it is: 0, 1, ... norms and
                      // totals: NormKind. Others: 0
  uint64_t epoch;     // the sender's idea of the partition's epoch
  uint64_t sequence;  // sync push and end-step, norms, totals: step. async push and end-step:
                      // sequence. async and ssp pull: that of a push of this worker's which is to
                      // be applied before it, or 0. scan: cursor. Others: 0
  uint32_t count;     // push: elements. rows: keys. end-step: chunks (of an embedding table:
                      // groups of rows) pushed to this partition in this step
  uint32_t reserved;  // 0
};
static_assert(sizeof(Group) == 32 && std::is_trivially_copyable_v<Group>);

// RecordHeader::flags: the payload of this push is not in the slot, but in memory of the worker's
// at `destination`, which it has exposed (Endpoint::CanBorrow()).
inline constexpr uint8_t kRecordReference = 1;

struct RecordHeader {
  uint32_t magic;
  uint16_t version;
  RecordType type;
  uint8_t flags;         // push: 0 or kRecordReference. Others: 0
  uint32_t generation;   // of the lane
  uint32_t operation;    // index in the mailbox; < the lane's granted operations
  uint64_t incarnation;  // of the worker, or of the server
  uint32_t table;
  uint16_t group_count;  // 1..kMaxGroups
  ElementType dtype;     // of the payload (push) or of what is wanted (pull): as the table says
  uint8_t reserved0;     // 0
  uint32_t payload_bytes;
  uint32_t bags;             // kLookupBags: vectors that are wanted. Others: 0
  uint64_t destination;      // pull: remote address to write to. push by reference: to read from.
                             // totals: the bits of the first f64
  uint64_t destination_key;  // pull, push by reference: remote key of that memory. totals: of the
                             // second f64, or 0
  uint64_t min_version;      // pull, await: least version that may be answered. ssp, pull and
                             // end-step: the worker's clock, the steps it has ended
};
static_assert(sizeof(RecordHeader) == 64 && std::is_trivially_copyable_v<RecordHeader>);

enum class ReplyStatus : uint8_t {
  kOk = 0,
  kDuplicate = 1,     // already applied: as good as kOk
  kWrongEpoch = 2,    // refetch the map, resend there
  kNotReady = 3,      // the server does not know the table, job or roster yet: resend later
  kExpired = 4,       // the incarnation is a member of no job that the server knows of
  kUnknownTable = 5,  // dropped
  kOutOfRange = 6,    // chunk, count or destination outside the table
  kNonFinite = 7,     // NaN or Inf under `reject`: settled, contributed zero
  kSequenceGap = 8,   // async: sequence is beyond last + 1; a pull's has not been applied
  kWrongStep = 9,     // sync: the step is not the open one
  kTooEarly = 10,     // end-step listed contributions that have not arrived; a pull or lookup that
                      // waited for long, where others of its lane could not be parked: ask again
  kDataLoss = 11,     // this server has lost its data of the partition, which the view does not say
  kMalformed = 12,
  kResourceExhausted = 13,
  kPermissionDenied = 14,  // an observer pushed
  kUnavailable = 15,
  kMemoryLimit = 16,      // push of rows: some do not exist and the server's memory limit leaves no
                          // room for them, or there are more than may be in memory together
                          // (cold tier): settled, none of the group's rows changed
  kJobMemoryLimit = 17,   // the same, of the job's share of the server
  kOtherJob = 18,         // the table is of a job that the worker is not a member of
  kCopyMemoryLimit = 19,  // as kMemoryLimit, of the server that has the partition's follower
};
inline constexpr uint8_t kMaxReplyStatus = 19;

// The most rows that a table has in one partition; and Reply::detail of a push of more.
inline constexpr uint64_t kMaxRowsOfPartition = uint64_t{1} << 26;
inline constexpr uint32_t kPartitionIsFull = UINT32_MAX;

inline constexpr uint8_t kReplyReturnsSlot = 1;  // Reply::flags: `slot` is free again

// The greatest bound of an ssp table: one nobody reaches is async.
inline constexpr uint32_t kMaxStaleness = 1'000'000;
// Histograms of the staleness of pulls: 0, 1, ...; the last bucket counts that much and more.
inline constexpr uint32_t kStalenessBuckets = 33;

struct Reply {
  uint32_t magic;
  uint32_t generation;
  uint32_t operation;
  ReplyStatus status;  // kOk when every group's is kOk or kDuplicate, else the worst group's
  uint8_t flags;
  uint16_t group_count;
  uint16_t slot;
  uint16_t reserved0;
  uint32_t detail;  // kTooEarly: chunks missing; ssp pull: steps the slowest worker is behind;
                    // scan: rows written; kMemoryLimit, kJobMemoryLimit, kCopyMemoryLimit: the
                    // limit in MiB, or kPartitionIsFull. replicate, beacon: 1 + KiB that new rows
                    // of the sender may take here; 0: no limit
  uint64_t
      version;  // replicate, beacon: the memory limit here in bytes. pull: of the chunk written;
                // ssp: the least clock of all workers. push: the chunk's version afterwards. Of
                // rows: the least of the groups'. scan: the cursor of the row after those written
  ReplyStatus group_status[kMaxGroups];
  uint8_t reserved1[40];
};
static_assert(offsetof(Reply, group_status) == 32 && sizeof(Reply) == 192 &&
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

// The greatest `dim` of an embedding table.
inline constexpr uint32_t kMaxRowElements = 1024;
// The most bytes that the rows of one lookup or scan may have.
inline constexpr uint64_t kMaxRowsBytes = 8 << 20;
// Bytes of `count` keys and the zeros behind them: where the rows begin in a payload of rows.
constexpr uint64_t KeyBytes(uint64_t count) {
  return (count * sizeof(uint64_t) + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

// The first entry a server writes into a new lane's mailbox (at index `operations`): where the
// slot ring is. It travels on the lane because its key exists only once the lane is connected.
inline constexpr uint32_t kGrantMagic = 0x31475256;  // "VRG1"
struct LaneGrant {
  uint32_t magic;
  uint32_t generation;
  uint64_t ring_address;
  uint64_t ring_key;
  uint8_t reserved[40];
};
static_assert(sizeof(LaneGrant) == 64 && std::is_trivially_copyable_v<LaneGrant>);

// What a worker hands over when it connects: fits librdmacm's 56 bytes of private data
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

#endif  // VERBENA_PROTO_RECORD_H_
