#include "shard/partition/row_consistency.h"

#include <cstring>
#include <utility>
#include <vector>

#include "shard/planted_bugs.h"

namespace verbena::shard {

bool TellNewRows(const RowParts& parts, uint32_t slice) {
  const EmbeddingTable& table = *parts.table;
  ReplicaLog& log = *parts.sink->log;
  const uint32_t partition = table.life(slice).partition;
  ReplicaLog::Cursor& cursor = log.cursor(partition);
  if (!cursor.sends(table.id()) || planted_bugs().chase_new_rows) return true;
  const uint32_t end = table.rows_in(slice);
  uint32_t& made = cursor.slices.at(table.id()).rows_made;
  if (made >= end) return true;
  std::vector<uint64_t> keys;
  for (uint32_t row = made; row < end; ++row) {
    if (!table.rows(slice).is_free(row)) keys.push_back(table.rows(slice).key(row));
  }
  if (!keys.empty() && !planted_bugs().forget_new_rows) {
    ReplicaLog::Append told;
    const size_t bytes = KeyBytes(keys.size());
    told.data = parts.pool->TakeScratch(bytes, table.account());
    if (told.data.data == nullptr) return false;
    std::memset(told.data.data, 0, bytes);
    std::memcpy(told.data.data, keys.data(), keys.size() * sizeof(uint64_t));
    told.table = table.id();
    told.partition = partition;
    told.header.kind = ReplicaKind::kMakeRows;
    told.header.generation = parts.roster->generation();
    told.header.count = static_cast<uint32_t>(keys.size());
    told.header.total_bytes = static_cast<uint32_t>(bytes);
    log.Add(std::move(told));
  }
  made = end;
  return true;
}

}  // namespace verbena::shard
