// A training loop's embedding tables: rows looked up and pushed by key, in buffers the store owns.
//
//     rows->Prefetch(table, keys)                       these will be looked up soon
//     rows->Lookup(slot, table, keys) ...; rows->WaitLookups(slot);
//     ... = rows->rows(slot, table)                   row i is that of keys[i]
//     gradients = rows->Gradients(table, keys.size()) row i becomes the gradient of keys[i]
//     rows->Push(table, keys) ...; store->EndStep(); store->Wait();
//
// A slot is one batch's rows of every table, and the ticket of their lookups: while one batch
// computes on its slot, the next one's rows travel to another.
//
// **Thread safety**: one thread.
//
// Invariants:
//  1. A slot's rows are valid from WaitLookups() to the slot's next Lookup().
//  2. Between a Push and the ParameterStore::Wait() that ends it, the caller leaves the table's
//     gradients alone. Keys are copied at the call.
//  3. A lookup sees every push whose step this worker had ended when it was called, and creates no
//     row.
#ifndef VERBENA_WORKER_STORES_ROW_STORE_H_
#define VERBENA_WORKER_STORES_ROW_STORE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/models/layout.h"

namespace verbena::worker {

class RowStore {
 public:
  // Two to train with in turn, and one to evaluate with in between.
  static constexpr size_t kSlots = 3;
  static constexpr size_t kEvaluationSlot = 2;

  virtual ~RowStore() = default;

  virtual absl::Span<const EmbeddingTable> tables() const = 0;

  // A hint, without an effect on the values read.
  virtual void Prefetch(size_t /*table*/, absl::Span<const uint64_t> /*keys*/) {}
  // Starts reading the rows of `keys`, which are distinct. One at a time for a slot and table.
  virtual void Lookup(size_t slot, size_t table, absl::Span<const uint64_t> keys) = 0;
  // The first error of the slot's lookups since it was last waited for.
  virtual absl::Status WaitLookups(size_t slot) = 0;
  virtual const float* rows(size_t slot, size_t table) const = 0;

  // Room for the gradients of so many rows of the table. An error when there is no memory.
  virtual absl::StatusOr<float*> Gradients(size_t table, size_t rows) = 0;
  // Starts to push the contents of Gradients(table, keys.size()).
  virtual void Push(size_t table, absl::Span<const uint64_t> keys) = 0;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_STORES_ROW_STORE_H_
