// Pulls that a follower answers in place of its primary.
//
// A follower applies a record before its primary does. A failover could undo a record that another
// follower lacks. So a chunk is readable only when all records that have changed it are settled: on
// all followers, and applied at the primary. The primary's records and beacons carry the last
// settled sequence. server/replication/replica_leases.h decides how old the content may be.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. What a pull shows, every later primary of the partition has.
//  2. A pull shows the requested version or a later one; it never waits.
#ifndef VERBENA_SHARD_REPLICA_COPY_READS_H_
#define VERBENA_SHARD_REPLICA_COPY_READS_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "shard/engine.h"

namespace verbena::shard {

class DenseTable;
struct EngineCore;

// Whether a record of that kind changes chunks, or the meaning of their versions.
bool ChangesChunks(ReplicaKind kind);

class CopyReads {
 public:
  explicit CopyReads(EngineCore* core) : core_(*core) {}

  // Records of the primary `from` up to `sequence` are settled (Replicas::Settled()); 0: unknown.
  void Settle(const CopyId& from, const Group& group, uint64_t sequence);
  // A pull of parameters of a dense sync or async table. Any other outcome than kReady: the primary
  // must answer.
  PullOutcome Pull(const PullRequest& request);

  // ---- for Copies ----
  void Resize(size_t partitions) { parts_.resize(partitions); }
  // The replica begins anew, or ends: nothing is known to be settled.
  void Forget(uint32_t partition) { parts_[partition] = {}; }
  void ForgetTables(absl::FunctionRef<bool(uint32_t table)> which);
  // The record was applied.
  void Applied(const Group& group, uint32_t table, const ReplicaHeader& header);

 private:
  struct Part {
    uint64_t settled = 0;
    // The last record that changed anything but chunks: all chunks wait for it.
    uint64_t changed = 0;
    // By table and chunk: the last record that changed it, unless known to be settled.
    absl::flat_hash_map<uint64_t, uint64_t> chunks;
  };

  ReplyStatus Find(const PullRequest& request, DenseTable** table, uint32_t* chunk);
  bool Settled(const PullRequest& request);

  EngineCore& core_;
  std::vector<Part> parts_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_COPY_READS_H_
