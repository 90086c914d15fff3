// The largest chunk of all tables of a view.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_LARGEST_CHUNK_H_
#define VERBENA_SERVER_EXECUTOR_LARGEST_CHUNK_H_

#include <cstdint>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "proto/control/view_difference.h"
#include "proto/control/view_tables.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

class LargestChunk {
 public:
  void Follow(const v1::ClusterView& view, const ViewDifference& what) {
    if (what.all) {
      by_table_.clear();
      tables_.clear();
      for (const v1::Table& table : view.tables()) Set(table.id(), &table);
      return;
    }
    for (const uint32_t id : what.tables) Set(id, FindTableById(id, view));
  }
  // 0: there is no table.
  uint32_t bytes() const { return tables_.empty() ? 0 : tables_.rbegin()->first; }

 private:
  void Set(uint32_t id, const v1::Table* table) {
    if (const auto it = by_table_.find(id); it != by_table_.end()) {
      if (--tables_[it->second] == 0) tables_.erase(it->second);
      by_table_.erase(it);
    }
    if (table == nullptr) return;
    by_table_[id] = table->spec().chunk_bytes();
    ++tables_[table->spec().chunk_bytes()];
  }

  absl::flat_hash_map<uint32_t, uint32_t> by_table_;  // bytes of a chunk, by the table's id
  std::map<uint32_t, uint32_t> tables_;               // how many, by bytes of a chunk
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_LARGEST_CHUNK_H_
