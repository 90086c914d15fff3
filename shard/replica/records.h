// Records for replicas that have content: of chunks, of rows, of the marks of workers.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_REPLICA_RECORDS_H_
#define VERBENA_SHARD_REPLICA_RECORDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "shard/replica/log.h"

namespace verbena::shard {

class EmbeddingTable;
struct EngineCore;
struct TableState;

// Rows that one turn looks at in search of rows to send or compare, which takes about as long as
// sending.
struct RowTurn {
  static constexpr uint32_t kMost = 1 << 16;
  uint32_t looked_at = 0;
  // Something would have been sent to a learner if no apply had been in flight to followers.
  bool in_flight = false;

  bool full() const { return looked_at >= kMost; }
  // The end of the `rows`, from `from` on, that this turn may look at.
  uint32_t EndOfLook(uint32_t from, uint32_t rows) const {
    const uint32_t left = kMost - std::min(looked_at, kMost);
    return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{from} + left, rows));
  }
};

class ReplicaRecords {
 public:
  explicit ReplicaRecords(EngineCore* core) : core_(*core) {}

  ReplicaLog::Append HeaderFor(ReplicaKind kind, uint32_t partition, const TableState& state) const;
  // Adds the known state of workers to the record, as its payload. False: no memory.
  bool AddMarks(const TableState& state, uint32_t slice, ReplicaLog::Append* appended);
  // Adds a record of the current content. Returns its sequence. 0: no memory, or a row that cannot
  // be read.
  uint64_t AddChunk(uint32_t partition, const TableState& state, uint32_t index, uint64_t version,
                    bool for_learner);
  uint64_t AddRows(uint32_t partition, const TableState& state, uint32_t slice,
                   absl::Span<const uint32_t> rows, bool for_learner);
  // Fills a record with all changes of the slice's optimizer; header.count 0: there are none.
  // False: no memory.
  bool AddChanges(const TableState& state, uint32_t slice, ReplicaLog::Append* appended);
  size_t RowsOfRecord(const EmbeddingTable& table) const;
  // Whether unanswered records that are not of workers have reached their limit.
  bool BehindOnCopies(uint32_t partition) const;
  // Whether the table in this partition is as the last record made it. False: not yet.
  bool AtLastRecord(uint32_t partition, const TableState& state, uint32_t slice);

 private:
  EngineCore& core_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_RECORDS_H_
