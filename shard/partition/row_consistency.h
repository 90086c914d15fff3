// How pushes of rows become applies: sync, ssp and async of an embedding table.
//
// The engine has checked the group: the worker is a member that may push, the slice is ready, the
// keys belong to its partition, and there is a row of the table's dim for each.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A push is read before the call returns: nothing is ever held. Data for the replica is copied,
//     and may be deferred (engine.h).
#ifndef VERBENA_SHARD_PARTITION_ROW_CONSISTENCY_H_
#define VERBENA_SHARD_PARTITION_ROW_CONSISTENCY_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "shard/partition/consistency.h"
#include "shard/partition/deferred_lookups.h"
#include "shard/table/embedding_table.h"

namespace verbena::shard {

// The parts that an embedding table's consistency works with; all outlive it.
struct RowParts {
  EmbeddingTable* table;
  DeferredLookups* parking;
  BufferPool* pool;
  const Members* members;
  EngineContext* sink;
};

// One group of a push.
struct RowPush {
  uint64_t worker;
  Group group;
  absl::Span<const uint64_t> keys;
  absl::Span<const float> rows;
  absl::Span<const uint32_t> guesses;  // EmbeddingTable::FindOrCreate()
  bool assigns = false;                // the rows are new parameters, which replace the old ones
};

class RowConsistency : public Consistency {
 public:
  virtual Answer Push(const RowPush& push, const Members::Member& member, uint32_t slice) = 0;
  // Whether a lookup of min_version by `worker`, a member, is answered now. sync, async: a version
  // of the partition. ssp: the worker's clock; answer->detail gets its distance to the least clock,
  // and answer->version that clock.
  virtual bool Readable(uint64_t worker, uint32_t slice, uint64_t min_version,
                        Answer* answer) const = 0;

  // By default nothing waits for a buffer, and nothing is held for a lane.
  void Retry() override {}
  void ForgetLane(uint32_t) override {}
};

std::unique_ptr<RowConsistency> MakeSyncRows(const RowParts& parts);
std::unique_ptr<RowConsistency> MakeAsyncRows(const RowParts& parts);  // ssp, too

// Call before a record of rows: a learner that is being sent the slice gets the keys of rows that
// were made since it began with it. It makes these rows itself, so that the cursor has an end
// however many there are. False: no memory.
bool ReplicateNewRows(const RowParts& parts, uint32_t slice);

// The rows of a push of such keys, made where there is none: the replica of the partition has to
// have room for them, too. False: there is no room, here or there.
bool MakeRows(const RowParts& parts, const RowPush& push, uint32_t slice, uint32_t* rows,
              RowGrowth* growth);
// The answer to a push for which there was no room: status, and detail with the limit that was
// reached, if any. kResourceExhausted: it may succeed when the replica has made others.
Answer NoRoom(const RowParts& parts, const RowPush& push, uint32_t slice, const RowGrowth& growth);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_ROW_CONSISTENCY_H_
