#include "worker/stores/client_rows.h"

#include <algorithm>

namespace verbena::worker {
namespace {

// The client takes so many keys in a call.
constexpr size_t kMaxKeys = 4194304;

}  // namespace

absl::Status WaitAll(std::vector<Ticket>* tickets, const std::atomic<bool>* stop) {
  absl::Status first;
  for (Ticket& ticket : *tickets) {
    absl::Status status;
    for (;;) {
      status = ticket.Wait(kStopCheck);
      if (ticket.Done()) {
        status = ticket.status();
        break;
      }
      if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
        return absl::CancelledError("stopped by a signal");
      }
    }
    if (first.ok()) first = std::move(status);
  }
  tickets->clear();
  return first;
}

ClientRows::ClientRows(Client* client, absl::Span<const EmbeddingTable> specs,
                       std::vector<Table> tables, const std::atomic<bool>* stop)
    : client_(client),
      specs_(specs.begin(), specs.end()),
      tables_(std::move(tables)),
      stop_(stop),
      gradients_(specs.size()) {
  for (Slot& slot : slots_) slot.rows.resize(specs.size());
}

absl::Status ClientRows::Reserve(size_t floats, std::optional<Region>* region) {
  const size_t bytes = std::max<size_t>(floats, 1) * sizeof(float);
  if (*region && (*region)->size() >= bytes) return absl::OkStatus();
  // Half as much again, so that batches that vary a little do not allocate each time.
  absl::StatusOr<Region> allocated = client_->AllocateRegion(bytes + bytes / 2);
  if (!allocated.ok()) return allocated.status();
  *region = *std::move(allocated);
  return absl::OkStatus();
}

void ClientRows::Prefetch(size_t table, absl::Span<const uint64_t> keys) {
  for (size_t done = 0; done < keys.size(); done += kMaxKeys) {
    tickets_.push_back(client_->Prefetch(tables_[table], keys.subspan(done, kMaxKeys)));
  }
}

void ClientRows::Lookup(size_t slot, size_t table, absl::Span<const uint64_t> keys) {
  Slot& into = slots_[slot];
  const size_t dim = specs_[table].dim;
  absl::Status status = Reserve(keys.size() * dim, &into.rows[table]);
  into.status.Update(status);
  if (!status.ok()) return;
  for (size_t done = 0; done < keys.size(); done += kMaxKeys) {
    LookupOptions options;
    options.region_offset = done * dim * sizeof(float);
    into.tickets.push_back(
        client_->Lookup(tables_[table], keys.subspan(done, kMaxKeys), *into.rows[table], options));
  }
}

absl::Status ClientRows::WaitLookups(size_t slot) {
  absl::Status status = std::exchange(slots_[slot].status, absl::OkStatus());
  status.Update(WaitAll(&slots_[slot].tickets, stop_));
  return status;
}

const float* ClientRows::rows(size_t slot, size_t table) const {
  const std::optional<Region>& region = slots_[slot].rows[table];
  return region ? region->floats() : nullptr;
}

absl::StatusOr<float*> ClientRows::Gradients(size_t table, size_t rows) {
  absl::Status status = Reserve(rows * specs_[table].dim, &gradients_[table]);
  if (!status.ok()) return status;
  return gradients_[table]->floats();
}

void ClientRows::Push(size_t table, absl::Span<const uint64_t> keys) {
  for (size_t done = 0; done < keys.size(); done += kMaxKeys) {
    RowOptions options;
    options.region_offset = done * specs_[table].dim * sizeof(float);
    tickets_.push_back(client_->PushRows(tables_[table], keys.subspan(done, kMaxKeys),
                                         *gradients_[table], options));
  }
}

void ClientRows::EndStep() {
  for (const Table& table : tables_) tickets_.push_back(client_->EndStep(table));
}

absl::Status ClientRows::Wait() { return WaitAll(&tickets_, stop_); }

absl::Status ClientRows::DropTables() {
  absl::Status first;
  for (const Table& table : tables_) first.Update(client_->DropTable(table));
  return first;
}

}  // namespace verbena::worker
