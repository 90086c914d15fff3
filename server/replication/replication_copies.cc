// What a replica here answers to its primary.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/replication/replication.h"
#include "shard/replica/copies.h"
#include "shard/replica/copy_reads.h"

namespace verbena::server {

shard::Answer Replication::OnRecord(const PeerId& from, const Record& record,
                                    absl::Span<const std::byte> payload) {
  if (engine_ == nullptr) return {ReplyStatus::kNotReady, 0, 0};
  const shard::Answer answer =
      engine_->copies().Replicate({from.server, from.shard}, record, payload);
  if (answer.status == ReplyStatus::kOk) ++counters_.applied_records;
  if (answer.status == ReplyStatus::kDataLoss) {
    ReplicaHeader header;
    std::memcpy(&header, payload.data(), sizeof(header));
    Log(absl::StrCat("replica of partition ", record.groups[0].partition, ", table ",
                     record.header.table, ": differs from its primary on server ", from.server,
                     " at record ", record.groups[0].sequence, " (kind ",
                     static_cast<uint32_t>(header.kind), "); the primary copies it again"));
  }
  return answer;
}

ReplyStatus Replication::OnBeacon(const PeerId& from, const Group& group, uint64_t echo) {
  const ReplyStatus status =
      leases_.OnBeacon(from, group, clock_->NowNanos(), static_cast<int64_t>(echo));
  if (status == ReplyStatus::kOk && engine_ != nullptr) {
    engine_->copy_reads().Settle({from.server, from.shard}, group, SettledOf(group));
  }
  return status;
}

}  // namespace verbena::server
