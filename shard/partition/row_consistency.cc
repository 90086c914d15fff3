#include "shard/partition/row_consistency.h"

#include <cstring>
#include <utility>
#include <vector>

#include "shard/failpoints.h"

namespace verbena::shard {

bool MakeRows(const RowParts& parts, const RowPush& push, uint32_t slice, uint32_t* rows,
              RowGrowth* growth) {
  EmbeddingTable& table = *parts.table;
  ReplicaLog& log = *parts.sink->log;
  const uint32_t partition = table.life(slice).partition;
  growth->room = log.rooms().RoomFor(log.copies(partition));
  const bool made =
      table.FindOrCreate(slice, push.keys, rows, push.guesses, RowStore::Fresh::kInitial, growth);
  if (made) log.rooms().Grow(log.copies(partition), partition, table.id(), growth->bytes);
  return made;
}

Answer NoRoom(const RowParts& parts, const RowPush& push, uint32_t slice, const RowGrowth& growth) {
  const EmbeddingTable& table = *parts.table;
  const JobAccount* const account = table.account();
  const BufferPool& pool = *parts.pool;
  const auto refusal = [](ReplyStatus status, uint64_t limit) {
    return Answer{status,
                  static_cast<uint32_t>(std::min<uint64_t>(limit >> 20, kPartitionIsFull - 1))};
  };
  if (growth.refused) {
    ReplicaLog& log = *parts.sink->log;
    const CopyId copy = log.rooms().Fullest(log.copies(table.life(slice).partition));
    // Rows of an open step stay on their way until it ends, which may wait for this push.
    const bool waits = table.spec().consistency() != v1::CONSISTENCY_SYNC;
    if (waits && log.rooms().MayFit(copy, growth.bytes)) return {ReplyStatus::kResourceExhausted};
    return refusal(ReplyStatus::kCopyMemoryLimit, log.rooms().limit(copy));
  }
  if (pool.refused_by_job()) {
    return refusal(ReplyStatus::kJobMemoryLimit, account == nullptr ? 0 : account->job().limit());
  }
  if (table.rows(slice).FullFor(push.keys.size())) {
    return {ReplyStatus::kMemoryLimit, kPartitionIsFull};
  }
  ++parts.sink->counters.memory_refusals;
  return refusal(ReplyStatus::kMemoryLimit, pool.limit_bytes());
}

bool ReplicateNewRows(const RowParts& parts, uint32_t slice) {
  const EmbeddingTable& table = *parts.table;
  ReplicaLog& log = *parts.sink->log;
  const uint32_t partition = table.life(slice).partition;
  CopySet::Cursor& cursor = log.cursor(partition);
  if (!cursor.sends(table.id()) || VERBENA_FAILPOINT(shard, chase_new_rows)) return true;
  const uint32_t end = table.rows_in(slice);
  uint32_t& made = cursor.slices.at(table.id()).rows_made;
  if (made >= end) return true;
  std::vector<uint64_t> keys;
  for (uint32_t row = made; row < end; ++row) {
    if (!table.rows(slice).is_free(row)) keys.push_back(table.rows(slice).key(row));
  }
  if (!keys.empty() && !VERBENA_FAILPOINT(shard, forget_new_rows)) {
    ReplicaLog::Append appended;
    const size_t bytes = KeyBytes(keys.size());
    appended.data = parts.pool->TakeScratch(bytes, table.account());
    if (appended.data.data == nullptr) return false;
    std::memset(appended.data.data, 0, bytes);
    std::memcpy(appended.data.data, keys.data(), keys.size() * sizeof(uint64_t));
    appended.table = table.id();
    appended.partition = partition;
    appended.for_learner = true;
    appended.header.kind = ReplicaKind::kMakeRows;
    appended.header.generation = parts.members->generation();
    appended.header.count = static_cast<uint32_t>(keys.size());
    appended.header.total_bytes = static_cast<uint32_t>(bytes);
    log.Add(std::move(appended));
  }
  made = end;
  return true;
}

}  // namespace verbena::shard
