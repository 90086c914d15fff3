// The last records of replicas on this shard, of partitions with more than one follower.
//
// A follower that becomes the primary sends them with its kBegin to the others, which may lack
// some: those continue with the contents that they have, in place of being copied anew.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A tail is a base, the sequence and epoch of a record that was applied here, and all records
//     from there to the last one. Sequence and epoch identify a record: an epoch has one primary.
//  2. Data of tails takes at most a quarter of the limits of the log. Without memory a tail begins
//     anew, so it never costs a record.
#ifndef VERBENA_SHARD_REPLICA_COPY_TAILS_H_
#define VERBENA_SHARD_REPLICA_COPY_TAILS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "shard/replica/log_limits.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

// A record of a tail, in the payload of a kBegin: header.total_bytes of data follow, with zeros to
// kTailAlignment.
struct TailRecord {
  uint32_t table;
  uint8_t reserved0[28];  // 0
  Group group;
  ReplicaHeader header;
};
inline constexpr size_t kTailAlignment = 64;
static_assert(sizeof(TailRecord) == 3 * kTailAlignment && std::is_trivially_copyable_v<TailRecord>);

// The start of the payload.
struct TailBase {
  uint64_t sequence;
  uint64_t epoch;
  uint8_t reserved0[48];  // 0
};
static_assert(sizeof(TailBase) == kTailAlignment && std::is_trivially_copyable_v<TailBase>);

class CopyTails {
 public:
  CopyTails(BufferPool* pool, const ReplicaLogLimits& limits) : pool_(*pool), limits_(limits) {}

  void Resize(size_t partitions) { tails_.resize(partitions); }
  // The record is the partition's last one, and the tail's base.
  void Begin(uint32_t partition, const Group& last);
  // The next record was applied.
  void Add(uint32_t partition, uint32_t table, const Group& group, const ReplicaHeader& header,
           absl::Span<const std::byte> data);
  void Forget(uint32_t partition);
  // Frees the memory of all tails; each begins anew.
  void Trim();
  // The payload of a kBegin, which the caller returns to the pool as scratch. Empty: there are no
  // records, or no memory.
  Buffer Encode(uint32_t partition, uint32_t* bytes) const;
  // Calls `visit` for each record of such a payload, until it returns another status. kMalformed:
  // it is none, has a record of another partition, or an unused byte is not 0. The sequences are
  // not checked.
  using Visit =
      absl::FunctionRef<ReplyStatus(const TailRecord& record, absl::Span<const std::byte> data)>;
  static ReplyStatus Decode(absl::Span<const std::byte> payload, uint32_t partition, TailBase* base,
                            Visit visit);

 private:
  struct Item {
    TailRecord record;
    Buffer data;
  };
  struct Tail {
    TailBase base = {};
    std::deque<Item> items;
    uint64_t bytes = 0;  // as encoded
  };

  static uint64_t Encoded(const TailRecord& record);
  void DropFirst(Tail* tail);

  BufferPool& pool_;
  ReplicaLogLimits limits_;
  std::vector<Tail> tails_;
  uint64_t bytes_ = 0;  // of all
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_COPY_TAILS_H_
