// The largest chunk of all tables of a view.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_LARGEST_CHUNK_H_
#define VERBENA_SERVER_EXECUTOR_LARGEST_CHUNK_H_

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "proto/control/view_difference.h"
#include "proto/control/view_tables.h"
#include "proto/spec/table_spec.h"
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
  // The state of the optimizer is in f32, also where parameters and gradients have 16 bits.
  static uint32_t BytesOf(const v1::TableSpec& spec) {
    if (spec.dim() > 0) return spec.chunk_bytes();
    const uint64_t state = uint64_t{LayoutOf(spec).chunk_elements} * sizeof(float);
    return static_cast<uint32_t>(std::max<uint64_t>(spec.chunk_bytes(), state));
  }
  void Set(uint32_t id, const v1::Table* table) {
    if (const auto it = by_table_.find(id); it != by_table_.end()) {
      if (--tables_[it->second] == 0) tables_.erase(it->second);
      by_table_.erase(it);
    }
    if (table == nullptr) return;
    const uint32_t bytes = BytesOf(table->spec());
    by_table_[id] = bytes;
    ++tables_[bytes];
  }

  absl::flat_hash_map<uint32_t, uint32_t> by_table_;  // bytes of a chunk, by the table's id
  std::map<uint32_t, uint32_t> tables_;               // how many, by bytes of a chunk
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_LARGEST_CHUNK_H_
