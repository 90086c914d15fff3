// Embedding tables on a cluster, through verbena::Client: the rows of a ClientStore.
//
// **Thread safety**: one thread.
#ifndef VERBENA_WORKER_STORES_CLIENT_ROWS_H_
#define VERBENA_WORKER_STORES_CLIENT_ROWS_H_

#include <array>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "verbena/client.h"
#include "worker/stores/row_store.h"

namespace verbena::worker {

// Interval at which a wait checks `stop`.
inline constexpr absl::Duration kStopCheck = absl::Milliseconds(100);

// Waits for all; returns the first error. CANCELLED once *stop is set.
absl::Status WaitAll(std::vector<Ticket>* tickets, const std::atomic<bool>* stop);

class ClientRows : public RowStore {
 public:
  // tables[i] was created for specs[i]. The client outlives this; `stop` may be null.
  ClientRows(Client* client, absl::Span<const EmbeddingTable> specs, std::vector<Table> tables,
             const std::atomic<bool>* stop);

  absl::Span<const EmbeddingTable> tables() const override { return specs_; }
  void Prefetch(size_t table, absl::Span<const uint64_t> keys) override;
  void Lookup(size_t slot, size_t table, absl::Span<const uint64_t> keys) override;
  absl::Status WaitLookups(size_t slot) override;
  const float* rows(size_t slot, size_t table) const override;
  absl::StatusOr<float*> Gradients(size_t table, size_t rows) override;
  void Push(size_t table, absl::Span<const uint64_t> keys) override;

  // The ClientStore's operations of these names, for the tables.
  void EndStep();
  absl::Status Wait();
  absl::Status DropTables();

 private:
  // Memory that the servers can access; it grows with the batches.
  absl::Status Reserve(size_t floats, std::optional<Region>* region);

  struct Slot {
    std::vector<std::optional<Region>> rows;  // by table
    std::vector<Ticket> tickets;
    absl::Status status;  // of an operation that could not be started
  };

  // Before the regions and tickets: users of the client are destroyed first.
  Client* client_;
  std::vector<EmbeddingTable> specs_;
  std::vector<Table> tables_;
  const std::atomic<bool>* stop_;
  std::vector<std::optional<Region>> gradients_;  // by table
  std::array<Slot, kSlots> slots_;
  std::vector<Ticket> tickets_;  // of pushes and ended steps
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_STORES_CLIENT_ROWS_H_
