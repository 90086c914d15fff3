// Embedding tables in this process: a map from key to row, with the optimizer's state of each row.
//
// Behaves as servers do with one worker. The gradients of a step are summed by key and applied when
// it ends, and each row counts its own applies. A row is created by the first push to it, and has
// its initial value before that.
//
// **Thread safety**: one thread.
#ifndef VERBENA_WORKER_STORES_LOCAL_ROWS_H_
#define VERBENA_WORKER_STORES_LOCAL_ROWS_H_

#include <array>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "worker/stores/row_store.h"
#include "worker/train/local_optimizer.h"

namespace verbena::worker {

class LocalRows : public RowStore {
 public:
  LocalRows(std::vector<EmbeddingTable> tables, LocalOptimizer optimizer, uint64_t seed);

  absl::Span<const EmbeddingTable> tables() const override { return specs_; }
  void Lookup(size_t slot, size_t table, absl::Span<const uint64_t> keys) override;
  absl::Status WaitLookups(size_t /*slot*/) override { return absl::OkStatus(); }
  const float* rows(size_t slot, size_t table) const override {
    return tables_[table].slots[slot].data();
  }
  absl::StatusOr<float*> Gradients(size_t table, size_t rows) override;
  // Duplicate keys are summed.
  void Push(size_t table, absl::Span<const uint64_t> keys) override;

  // Applies the pushes since the last call.
  void EndStep();

  // Rows that were pushed to.
  size_t size(size_t table) const { return tables_[table].places.size(); }
  uint64_t bytes_pushed() const { return bytes_pushed_; }
  uint64_t bytes_pulled() const { return bytes_pulled_; }

 private:
  struct TableState {
    uint64_t seed = 0;
    absl::flat_hash_map<uint64_t, size_t> places;
    // By place, dim floats each, except for the counts.
    std::vector<float> parameters, first, second, sums;
    std::vector<uint64_t> counts;  // of applies
    std::vector<bool> summed;      // whether sums holds something of this step
    std::vector<size_t> touched;   // the places where it does
    std::vector<float> gradients;
    std::array<std::vector<float>, kSlots> slots;
  };

  size_t PlaceOf(TableState* state, const EmbeddingTable& spec, uint64_t key);
  static void InitialRow(const TableState& state, const EmbeddingTable& spec, uint64_t key,
                         float* out);

  std::vector<EmbeddingTable> specs_;
  LocalOptimizer optimizer_;
  std::vector<TableState> tables_;
  uint64_t bytes_pushed_ = 0;
  uint64_t bytes_pulled_ = 0;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_STORES_LOCAL_ROWS_H_
