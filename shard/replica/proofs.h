// Comparisons of a replica with its primary: the primary adds hashes to its records, the replica
// checks them (CopyRecords).
//
// The primary goes through a partition, some contents with each record, and adds a digest of each
// as of that record. The replica compares when it applies the record, so both sides compare the
// same state, and pushes continue meanwhile. Digests of rows are sums over rows and include their
// keys, because rows may be in another order. The number of changed rows reveals rows that only the
// replica has; a table counts them.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_REPLICA_PROOFS_H_
#define VERBENA_SHARD_REPLICA_PROOFS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "shard/replica/log.h"

namespace verbena::shard {

struct EngineCore;
struct TableState;

class Proofs {
 public:
  explicit Proofs(EngineCore* core) : core_(*core) {}

  // Compares followers with this primary: adds records for the next about `bytes` of contents, of
  // one partition at most, in turn. A partition whose applies wait for its follower is tried again,
  // and skipped after some attempts. False: no partition has a follower now.
  bool AuditFollowers(uint64_t bytes);

  // ---- for the engine's parts ----
  void Resize(size_t partitions) { audited_.resize(partitions); }
  // A turn of the shard's thread that sends to learners begins.
  void BeginTurn() { bytes_ = again_bytes_ = kBytesOfTurn; }
  enum class Proved : uint8_t { kSome, kWait, kAll };
  // Adds the next record of a comparison. kWait: nothing more for now.
  Proved Prove(uint32_t partition, CopySet::Proof* at, uint64_t* record);
  // Compares the learner's content once more, in one turn, before it becomes a follower: of every
  // table the versions, rows and marks, and contents as far as a turn allows. False: not now.
  bool ProveAgain(uint32_t partition);

 private:
  // Bytes of contents that are compared in one turn of the shard's thread: a few hundred
  // microseconds.
  static constexpr uint64_t kBytesOfTurn = 1 << 20;

  // The part of a turn that is of the audit's partition, which has a follower.
  void AuditPartition();
  uint64_t ProveChunk(uint32_t partition, const TableState& state, uint32_t index);
  uint64_t ProveRows(uint32_t partition, const TableState& state, uint32_t slice,
                     absl::Span<const uint32_t> rows);
  uint64_t ProveLocalPartition(uint32_t partition, const TableState& state, uint32_t slice);

  EngineCore& core_;
  uint64_t bytes_ = 0;        // that may still be compared in this turn
  uint64_t again_bytes_ = 0;  // the same of ProveAgain(), which does not wait for others
  struct {
    uint32_t partition = 0;
    uint32_t waits = 0;  // turns that found applies in flight
    CopySet::Proof at;
  } audit_;
  std::vector<uint64_t> audited_;  // by partition: the last record of the audit
  std::vector<uint32_t> rows_;     // scratch
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_PROOFS_H_
