// Applies the records of a primary to a replica on this shard. A record is applied whole or not at
// all, and is checked before.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_REPLICA_COPY_RECORDS_H_
#define VERBENA_SHARD_REPLICA_COPY_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/record_check.h"

namespace verbena::shard {

struct CopyMarks;
struct EngineCore;
struct TableState;

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

class CopyRecords {
 public:
  explicit CopyRecords(EngineCore* core) : core_(*core) {}

  ReplyStatus Apply(const Copied& c);

 private:
  ReplyStatus CopyDense(const Copied& c);
  ReplyStatus CopyRows(const Copied& c);
  ReplyStatus CopyLocalPartition(const Copied& c);
  ReplyStatus CopyChunk(const Copied& c);
  ReplyStatus CopyRowStates(const Copied& c);
  ReplyStatus MakeRows(const Copied& c);
  // kDataLoss: the replica is not equal to its primary.
  ReplyStatus CheckRows(const Copied& c);
  ReplyStatus CheckChunk(const Copied& c);
  ReplyStatus CheckLocalPartition(const Copied& c);
  // Copies the keys in front of a group's data to keys_; *rest gets the data behind them, with
  // `each` bytes for every key. False: it does not have that shape, or keys of other partitions.
  bool TakeKeys(const Copied& c, size_t each, const std::byte** rest);

  EngineCore& core_;
  std::vector<uint64_t> keys_;  // scratch
  std::vector<uint32_t> rows_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_COPY_RECORDS_H_
