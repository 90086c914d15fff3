#include "shard/replica/copy_reads.h"

#include <algorithm>

#include "shard/engine_core.h"
#include "shard/failpoints.h"

namespace verbena::shard {
namespace {

uint64_t Key(uint32_t table, uint32_t chunk) { return uint64_t{table} << 32 | chunk; }

}  // namespace

bool ChangesChunks(ReplicaKind kind) {
  switch (kind) {
    case ReplicaKind::kRows:
    case ReplicaKind::kRowStates:
    case ReplicaKind::kMakeRows:
    case ReplicaKind::kSettle:
    case ReplicaKind::kProveRows:
    case ReplicaKind::kProveChunk:
    case ReplicaKind::kProvePartition:
    case ReplicaKind::kNothing:
      return false;
    default:
      return true;
  }
}

void CopyReads::ForgetTables(absl::FunctionRef<bool(uint32_t)> which) {
  for (Part& part : parts_) {
    absl::erase_if(part.chunks, [&](const auto& chunk) {
      return which(static_cast<uint32_t>(chunk.first >> 32));
    });
  }
}

void CopyReads::Applied(const Group& group, uint32_t table, const ReplicaHeader& header) {
  Part& part = parts_[group.partition];
  if (header.kind == ReplicaKind::kBegin) {
    part = {};
    part.changed = group.sequence;
  } else if (header.kind == ReplicaKind::kDense) {
    // Records of a table that was dropped here may still come.
    if (core_.tables.contains(table)) part.chunks[Key(table, group.index)] = group.sequence;
  } else if (ChangesChunks(header.kind)) {
    part.changed = group.sequence;
  }
  part.settled = std::max(part.settled, header.committed);
}

void CopyReads::Settle(const CopyId& from, const Group& group, uint64_t sequence) {
  if (group.partition >= core_.partitions.size() || sequence == 0) return;
  const PartitionInfo& info = core_.partitions[group.partition];
  const bool known = info.copy && info.epoch == group.epoch && info.primary == from &&
                     core_.copies.begun(group.partition);
  if (!known) return;
  uint64_t& settled = parts_[group.partition].settled;
  settled = std::max(settled, sequence);
}

bool CopyReads::Settled(const PullRequest& request) {
  Part& part = parts_[request.group.partition];
  // A number that is ahead of the log here is of another one.
  if (part.settled < part.changed || part.changed == 0 ||
      part.settled > core_.copies.sequence(request.group.partition)) {
    return false;
  }
  const auto chunk = part.chunks.find(Key(request.table, request.group.index));
  if (chunk == part.chunks.end()) return true;
  if (chunk->second > part.settled) return false;
  part.chunks.erase(chunk);
  return true;
}

ReplyStatus CopyReads::Find(const PullRequest& request, DenseTable** table, uint32_t* chunk) {
  const Group& group = request.group;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  const ReplyStatus status = core_.Find(request.worker, request.table, &state, &member);
  if (status != ReplyStatus::kOk) return status;
  if (group.partition >= core_.partitions.size()) return ReplyStatus::kOutOfRange;
  const PartitionInfo& info = core_.partitions[group.partition];
  if (!info.copy || info.epoch != group.epoch) return ReplyStatus::kWrongEpoch;
  const bool whole = core_.copies.begun(group.partition) &&
                     !core_.copies.learning(group.partition) &&
                     core_.copies.announced(group.partition, request.table);
  if (!whole || state->placement[group.partition].lost) return ReplyStatus::kNotReady;
  *table = state->dense.table.get();
  if (*table == nullptr || group.index >= (*table)->layout().chunks() ||
      (*table)->partition_of(group.index) != group.partition ||
      request.dtype != (*table)->pull_type()) {
    return ReplyStatus::kOutOfRange;
  }
  // Clocks of ssp are the primary's alone, and so is what a worker has pushed itself.
  const bool primary_only = state->table->spec().consistency() == v1::CONSISTENCY_SSP ||
                            request.array != 0 || group.sequence != 0;
  const uint32_t slice = state->table->slice_of(group.partition);
  if (primary_only || slice == PartitionedTable::kNone || !state->table->ready(slice)) {
    return ReplyStatus::kNotReady;
  }
  *chunk = (*table)->local_chunk(group.index);
  return *chunk == PartitionedTable::kNone ? ReplyStatus::kNotReady : ReplyStatus::kOk;
}

PullOutcome CopyReads::Pull(const PullRequest& request) {
  PullOutcome outcome;
  DenseTable* table = nullptr;
  uint32_t chunk = 0;
  outcome.answer.status = Find(request, &table, &chunk);
  if (outcome.answer.status != ReplyStatus::kOk) return outcome;
  const DenseTable::Chunk& content = table->chunk(chunk);
  const bool old =
      content.version < request.min_version && !VERBENA_FAILPOINT(shard, follower_ignores_floor);
  if (old || !(Settled(request) || VERBENA_FAILPOINT(shard, follower_answers_unapplied))) {
    outcome.answer.status = ReplyStatus::kNotReady;
    return outcome;
  }
  // A pinned chunk makes an apply take a spare; the primary's would wait for one.
  if (core_.pool.over_limit() || !table->PinToPull(chunk, 0, &outcome.view)) {
    outcome.answer.status = ReplyStatus::kResourceExhausted;
    return outcome;
  }
  outcome.answer.version = content.version;
  outcome.answer.applies = content.applies;
  outcome.kind = PullOutcome::Kind::kReady;
  core_.sink.Pulled(outcome.view, &table->counters(), nullptr);
  return outcome;
}

}  // namespace verbena::shard
