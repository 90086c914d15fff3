// Replicas on this shard: takes the records of their primaries, in order.
//
// The sender of a record is not trusted: a wrong record costs the replicas of that sender, never
// this shard.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_REPLICA_COPIES_H_
#define VERBENA_SHARD_REPLICA_COPIES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "shard/engine.h"
#include "shard/replica/copy_records.h"
#include "shard/replica/copy_tails.h"
#include "shard/replica/log_limits.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

class Copies {
 public:
  Copies(EngineCore* core, BufferPool* pool, const ReplicaLogLimits& limits)
      : core_(*core), records_(core), tails_(pool, limits) {}
  ~Copies();

  // Takes a record of the partition's primary. kOk, kDuplicate: it is applied (or, if it is a part,
  // kept). kNotReady: the view here is older than the record, or has no such table. kWrongEpoch:
  // the view is newer. kSequenceGap: a record or part before it is missing. kResourceExhausted: no
  // memory for now. kMemoryLimit: no memory for its rows or chunks. kDataLoss: the replica differs
  // from its primary. Others: it can never be applied.
  Answer Replicate(const CopyId& from, const Record& record, absl::Span<const std::byte> payload);
  // The free memory that this server, with replicas, reports to primaries.
  CopyRoom Room() const;

  // ---- for the engine's parts ----
  void Resize(size_t partitions);
  // Whether the replica is a follower beside others: it keeps a tail for them.
  void SetBesideOthers(uint32_t partition, bool beside) {
    copies_[partition].beside_others = beside;
  }
  // See CopyTails::Encode().
  Buffer EncodeTail(uint32_t partition, uint32_t* bytes) const {
    *bytes = 0;
    return copies_[partition].learning ? Buffer() : tails_.Encode(partition, bytes);
  }
  // How many shards of other servers have replicas on this server.
  void CountSenders(const v1::ClusterView& view);
  // The partition has no replica here any more, or one that begins anew.
  void Forget(uint32_t partition);
  // The replica stays one under another primary, which has to begin it again.
  void Keep(uint32_t partition);
  // Whether the partition's primary began the table here.
  bool announced(uint32_t partition, uint32_t table) const {
    return copies_[partition].announced.contains(table);
  }
  // Nothing of the table is here any more: records wait until its primary has begun it.
  void ForgetTable(uint32_t partition, uint32_t table) {
    copies_[partition].announced.erase(table);
  }
  void ForgetTables(absl::FunctionRef<bool(uint32_t table)> which);
  // Makes replicas forget retired workers, or they would keep those of all runs.
  void ForgetRetired(TableState* state);
  // A learner's rows have taken memory that was reserved for them.
  void Came(uint32_t partition, uint64_t bytes) {
    copies_[partition].expected -= std::min(copies_[partition].expected, bytes);
  }
  uint64_t sequence(uint32_t partition) const { return copies_[partition].sequence; }
  // The epoch in which it came; 0: there was none.
  uint64_t record_epoch(uint32_t partition) const { return copies_[partition].record_epoch; }
  bool begun(uint32_t partition) const { return copies_[partition].begun; }
  bool learning(uint32_t partition) const { return copies_[partition].learning; }

 private:
  struct CopyState {
    // Tables whose slice the primary began here (kFresh, kBeginPartition), and which was not
    // dropped since: only those take other records. A slice that is here by the view alone may be
    // another life of the table's partition than the primary's.
    absl::flat_hash_set<uint32_t> announced;
    bool begun = false;     // by a kBegin in this epoch
    bool kept = false;      // begun in an earlier epoch only, with the contents up to `sequence`
    bool learning = false;  // and not complete
    bool beside_others = false;
    uint64_t expected = 0;      // of a learner: bytes that rows to come will take
    uint64_t sequence = 0;      // of the last record
    uint64_t record_epoch = 0;  // in which it came
    // The parts of the next one, as far as they have come.
    Buffer parts;
    uint32_t parts_bytes = 0;
  };

  ReplyStatus CheckSender(const CopyId& from, const Copied& c) const;
  // kOk, with *data: it is whole. kOk without: a part of it was kept.
  ReplyStatus Assemble(CopyState* copy, const ReplicaHeader& header,
                       absl::Span<const std::byte>* data, bool* whole);
  ReplyStatus Begin(uint32_t partition);
  // A new primary continues with the contents that are here.
  ReplyStatus Resume(const Copied& begin);
  // A record of the new primary's tail, which the replica lacks.
  ReplyStatus ApplyOfTail(const TailRecord& record, absl::Span<const std::byte> data);
  // A record that is not a kBegin.
  ReplyStatus Apply(uint32_t table, Copied* c);
  // The table's slice becomes a new one, whatever was here of it.
  ReplyStatus MakeFresh(uint32_t partition, TableState* state);
  ReplyStatus FindCopied(uint32_t table, Copied* copied);
  // The use of memory that is taken anywhere but in Replicate().
  MemoryFor OwnMemory() const {
    return senders_ > 0 ? MemoryFor::kPrimaryBesideCopies : MemoryFor::kPrimary;
  }
  // Whether a learner that will have such rows may begin here, beside those that have begun.
  bool MayLearn(const ReplicaHeader& begin) const;

  EngineCore& core_;
  CopyRecords records_;
  CopyTails tails_;
  std::vector<CopyState> copies_;  // by partition
  uint64_t senders_ = 0;           // CountSenders()
  uint32_t server_shards_ = 1;     // of this server
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_COPIES_H_
