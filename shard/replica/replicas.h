// The replicas elsewhere of this shard's partitions: which there are, the records for them, and
// their answers.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_REPLICA_REPLICAS_H_
#define VERBENA_SHARD_REPLICA_REPLICAS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "proto/control/view_difference.h"
#include "shard/engine.h"

namespace verbena::shard {

struct EngineCore;
struct TableState;

class Replicas {
 public:
  explicit Replicas(EngineCore* core) : core_(*core) {}

  // Moves records for replicas to the end of *records, about `most` at most. Returns whether there
  // were any, or more can be taken at once. May make more records: data that a learner has not
  // received yet.
  bool Take(std::vector<ReplicaRecord>* records, size_t most);
  // Call when a replica has answered the record: its memory, and that of records before it, is not
  // read any more. kOk, kDuplicate: the replica has it, and all before it. Events may follow.
  void Answered(const CopyId& from, uint32_t partition, uint64_t sequence, ReplyStatus status);
  // No memory of records for that replica is read any more; records that it still needs will be
  // sent again.
  void Lost(const CopyId& copy);
  // Free memory of the replica's server. Call with each of its answers, before Answered().
  void SetRoom(const CopyId& copy, const CopyRoom& room);
  // Records that the replica has not answered are to be sent again.
  void Resend(const CopyId& copy, uint32_t partition);
  // Whether the partition has replicas, and its learner, if there is one, has all that it needs to
  // be a follower.
  bool CaughtUp(uint32_t partition) const;
  // Whether the replica is a learner that has not everything yet.
  bool Learns(const CopyId& copy, uint32_t partition) const;
  // The replica has the record of an apply that failed here, so it has to be copied again.
  bool Differs(const CopyId& copy, uint32_t partition) const;
  // Ends requests of a partition that is handed over to a follower: they wait, or are refused,
  // until another shard leads it or Unseal(). `between_steps`: pushes of a step of a sync table
  // that has begun may be answered already, and be on this shard alone. False: there is such a
  // step; its pushes are taken until it ends, and no other step begins; call again.
  bool Seal(uint32_t partition, bool between_steps);
  void Unseal(uint32_t partition);
  bool sealed(uint32_t partition) const;
  // Whether all replicas have everything that was applied here, and all of it is applied.
  bool Drained(uint32_t partition) const;
  // The contents of a partition of this shard, of whatever role; none elsewhere.
  PartitionContents ContentsOf(uint32_t partition) const;
  // Learners of planned moves are sent about so many bytes of contents until the next call;
  // INT64_MAX: no limit. Records of applies count in no limit.
  void AllowMoves(int64_t bytes);
  // What is left of it. Less than 0: the last record was larger than the rest.
  int64_t moves_allowed() const;
  // Whether such a learner was sent nothing in the last Take() for that limit.
  bool moves_held_back() const;
  // ReplicaLog::Settled().
  uint64_t Settled(uint32_t partition) const;
  // Settled(), or 0 if reads here show anything that followers lack.
  uint64_t SettledForReads(uint32_t partition) const;
  // The partitions that have a replica, or are one.
  std::vector<CopyStatus> Status() const;

  // ---- for the engine's parts ----
  // After tables have followed the view; `followed`: those that did.
  void FollowView(const v1::ClusterView& view, const ViewDifference& what,
                  const std::vector<uint32_t>& followed);
  // The slice has become ready: a replica that has received it starts with the same content.
  void Announce(const TableState& state, uint32_t slice);
  // Partitions whose replica was a learner when the view came.
  const std::vector<uint32_t>& learners() const { return learners_; }

 private:
  void AnnounceAll(uint32_t partition);
  void ReplicateClocks(uint32_t partition);
  // A learner gets rows by number: rows that were sent keep their numbers.
  void KeepNumbers(uint32_t partition);
  void KeepNumbersOf(const TableState& state);
  // Slices that were replicas until this view.
  void Adopt(TableState* state);
  // Followers of the primary before get what this view has changed in the partition.
  void ReplicateChanges(uint32_t partition, absl::Span<const uint32_t> announced);
  // An estimate of the memory that the partition's rows take.
  uint64_t RowMemoryOf(uint32_t partition) const;

  EngineCore& core_;
  std::vector<uint32_t> learners_;
  std::vector<std::pair<uint32_t, uint32_t>> restarted_;  // by Adopt(): table, partition
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_REPLICAS_H_
