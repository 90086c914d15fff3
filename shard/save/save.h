// One checkpoint of some tables of this shard: its pieces, its memory, and its result.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. Memory goes from applies to pieces and back. A holder of memory waits for nothing but the
//     release of a piece. So as long as pieces are taken and released, all applies proceed.
#ifndef VERBENA_SHARD_SAVE_SAVE_H_
#define VERBENA_SHARD_SAVE_SAVE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "shard/save/budget.h"
#include "shard/save/table_save.h"
#include "shard/save/types.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

class Save {
 public:
  // `memory_bytes`: that of the request, or its default. The other arguments outlive it.
  Save(const SaveRequest& request, uint64_t memory_bytes, BufferPool* pool, SaveCounters* counters);
  ~Save();
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  SaveParts parts();
  // Adds a table with its slices.
  void Add(std::unique_ptr<TableSave> table);
  void Start();
  // Whether it still writes the table.
  bool Saves(uint32_t table) const;

  // False: none now.
  bool Take(SavePiece* piece);
  // False: no such piece is out.
  bool Release(uint64_t piece);

  // Gives up the table's slices for which `why` returns an error.
  using Why = absl::FunctionRef<absl::Status(uint32_t slice, const TableSave::Slice& state)>;
  void Abort(uint32_t table, Why why);
  // The table is about to go; all its slices have ended or are given up.
  void Leave(uint32_t table);
  // No piece is taken any more.
  void End(bool committed);
  bool ended() const { return ended_; }
  // Whether the save has ended and none of its pieces is used any more.
  bool over() const { return ended_ && out_.empty(); }

  SaveProgress progress() const;

 private:
  struct Out {
    TableSave* table;
    HeldPiece held;
  };

  const SaveRequest request_;
  BufferPool& pool_;
  SaveCounters& counters_;
  SaveBudget budget_;
  std::vector<std::unique_ptr<TableSave>> tables_;
  absl::flat_hash_map<uint32_t, TableSave*> by_id_;
  size_t turn_ = 0;  // whose piece is next
  absl::flat_hash_map<uint64_t, Out> out_;
  uint64_t last_piece_ = 0;
  uint64_t taken_bytes_ = 0;
  bool ended_ = false;
  absl::Status status_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_SAVE_SAVE_H_
