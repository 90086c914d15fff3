// The last sequence that each member of a job has had applied in each slice of a table.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_PARTITION_SEQUENCES_H_
#define VERBENA_SHARD_PARTITION_SEQUENCES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "shard/partition/consistency.h"
#include "shard/partition/members.h"

namespace verbena::shard {

class Sequences {
 public:
  // The table got slices, or the job members.
  void Resize(const Members& members, uint32_t slices);
  // A new member in the place of a departed one starts at 1. Resize() has been called.
  void MembersChanged(const Members& members);
  // A new generation of the job.
  void Reset();

  // The progress that a replica of the slice needs, and how a former replica takes it over.
  std::vector<WorkerMark> Marks(uint32_t slice) const;
  void Adopt(const Members& members, uint32_t slice, absl::Span<const WorkerMark> marks);

  uint64_t& last(uint32_t slice, uint32_t member) { return last_[slice][member]; }
  uint64_t last(uint32_t slice, uint32_t member) const { return last_[slice][member]; }
  // kOk: `sequence` is `next`. It is not above `last`, which is below next: a resend.
  static ReplyStatus Check(uint64_t sequence, uint64_t last, uint64_t next);
  // Takes the sequence if it is the next one.
  ReplyStatus Take(uint32_t slice, uint32_t member, uint64_t sequence);

 private:
  std::vector<std::vector<uint64_t>> last_;  // by slice, by member index
  std::vector<uint64_t> owners_;             // of each member index, as of the last member list
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_SEQUENCES_H_
