// Sends learners the data from before their time, table by table with a cursor
// (CopySet::Cursor), behind which they receive the records of applies.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_REPLICA_CATCH_UP_H_
#define VERBENA_SHARD_REPLICA_CATCH_UP_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/record.h"

namespace verbena::shard {

struct EngineCore;
struct TableState;

class CatchUp {
 public:
  explicit CatchUp(EngineCore* core) : core_(*core) {}

  // Sends learners more. Returns whether rows are left that this turn did not look at.
  bool ReplicateLearners();
  // See Replicas::AllowMoves().
  void Allow(int64_t bytes) { allowed_ = bytes; }
  int64_t allowed() const { return allowed_; }
  bool held_back() const { return held_back_; }
  // Before a push: a slice that it makes rows of is sent to a learner now, rather than in its turn.
  // The push is then a record, and waits for room. Without it, rows would be made faster than the
  // cursor sends them. False: there is no room for the slice.
  bool ReplicateGrowing(const TableState& state, absl::Span<const Group> groups,
                        absl::Span<const uint64_t> keys);

 private:
  // Whether new applies of the partition have to wait. `sent`: the learner was sent something in
  // this turn.
  bool WantsQuiet(uint32_t partition, bool sent);
  // False: it has to wait for the next allowance.
  bool MayMove(uint32_t partition) const;
  // False: nothing more for now.
  bool ReplicateLearner(uint32_t partition);
  bool ReplicateLocalPartition(uint32_t partition, const TableState& state, uint32_t slice);
  bool ReplicateChunk(uint32_t partition, const TableState& state, uint32_t slice);
  bool ReplicateRows(uint32_t partition, const TableState& state, uint32_t slice);

  EngineCore& core_;
  int64_t allowed_ = INT64_MAX;
  bool held_back_ = false;
  std::vector<uint32_t> rows_;  // scratch
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_CATCH_UP_H_
