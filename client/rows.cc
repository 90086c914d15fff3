// Calls on embedding tables, and scans.
#include <utility>

#include "client/client_impl.h"

namespace verbena {

using client::ClientCore;

std::unique_ptr<client::KeySort> Client::Impl::SortKeys(const Table& table,
                                                        absl::Span<const uint64_t> keys) {
  std::unique_ptr<client::KeySort> sorted;
  if (keys.size() < client::KeySort::kManyKeys || !CheckTable(table).ok()) return sorted;
  runtime->Run([&](ClientCore& core) { sorted = core.StartKeys(table.id(), keys); });
  if (sorted != nullptr) sorted->Run();
  return sorted;
}

Ticket Client::PushRows(const Table& table, absl::Span<const uint64_t> keys,
                        const Region& gradients, const RowOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  auto sorted = impl_->SortKeys(table, keys);
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        if (absl::Status s = impl_->CheckHandles(table, gradients, "gradient"); !s.ok()) return s;
        return core.PushRows(table.id(), keys, {gradients.state_->block, options.region_offset},
                             deadline, std::move(done), std::move(sorted));
      });
  return ticket;
}

Ticket Client::Lookup(const Table& table, absl::Span<const uint64_t> keys, const Region& rows,
                      const LookupOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  auto sorted = impl_->SortKeys(table, keys);
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        if (absl::Status s = impl_->CheckHandles(table, rows, "destination"); !s.ok()) return s;
        return core.Lookup(table.id(), keys, {rows.state_->block, options.region_offset},
                           options.min_version, deadline, std::move(done), std::move(sorted));
      });
  return ticket;
}

static_assert(static_cast<int>(BagMode::kMean) == static_cast<int>(client::BagMode::kMean) &&
              static_cast<int>(BagMode::kSqrtN) == static_cast<int>(client::BagMode::kSqrtN));

Ticket Client::LookupBags(const Table& table, absl::Span<const uint64_t> keys,
                          absl::Span<const uint64_t> offsets, const Region& sums,
                          const BagOptions& options) {
  const client::BagKeys bags = {keys, offsets, options.weights,
                                static_cast<client::BagMode>(options.mode)};
  const int64_t deadline = impl_->Deadline(options.timeout);
  std::unique_ptr<client::KeySort> sorted;
  if (keys.size() >= client::KeySort::kManyKeys) {
    impl_->runtime->Run([&](ClientCore& core) {
      if (!impl_->CheckHandles(table, sums, "destination").ok()) return;
      sorted = core.StartBags(table.id(), bags, {sums.state_->block, options.region_offset});
    });
    if (sorted != nullptr) sorted->Run();
  }
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        if (absl::Status s = impl_->CheckHandles(table, sums, "destination"); !s.ok()) return s;
        return core.LookupBags(table.id(), bags, {sums.state_->block, options.region_offset},
                               options.min_version, deadline, std::move(done), std::move(sorted));
      });
  return ticket;
}

Ticket Client::Prefetch(const Table& table, absl::Span<const uint64_t> keys,
                        const PrefetchOptions& options) {
  const int64_t deadline = impl_->Deadline(options.timeout);
  auto sorted = impl_->SortKeys(table, keys);
  Ticket ticket;
  ticket.state_ = impl_->Launch(
      [&](ClientCore& core, ClientCore::Done done) -> absl::StatusOr<client::OperationId> {
        if (absl::Status s = impl_->CheckTable(table); !s.ok()) return s;
        return core.Prefetch(table.id(), keys, deadline, std::move(done), std::move(sorted));
      });
  return ticket;
}

// ---- scans --------------------------------------------------------------------------------------

// Guarded by the runtime's lock, except the fields of a part that is not running.
struct __attribute__((visibility("hidden"))) RowScan::State {
  // A partition that is being scanned, with one record at a time.
  struct Part {
    uint32_t partition = 0;
    uint64_t cursor = 0;
    bool open = false;     // has a partition
    bool running = false;  // a record of it is requested
    absl::Status status;
    std::shared_ptr<client::ScanResult> result = std::make_shared<client::ScanResult>();
  };
  // Number of concurrent partitions: sufficient for several records at every server.
  static constexpr size_t kParts = 16;

  std::shared_ptr<ClientRuntime> runtime;
  Table table;
  absl::Duration timeout;
  uint32_t partitions = 0;
  uint32_t next = 0;  // the first partition that has not started
  std::vector<Part> parts = std::vector<Part>(kParts);
  absl::Status failed;

  static void Ask(const std::shared_ptr<State>& self, ClientCore& core, Part* part);
  // Requests everything that can be requested. False: nothing is left.
  static bool AskAll(const std::shared_ptr<State>& self, ClientCore& core);
};

void RowScan::State::Ask(const std::shared_ptr<State>& self, ClientCore& core, Part* part) {
  part->running = true;
  const auto id =
      core.Scan(self->table.id(), part->partition, part->cursor, part->result,
                After(self->runtime->Now(), self->timeout), [self, part](absl::Status status) {
                  part->running = false;
                  part->status = std::move(status);
                });
  if (id.ok()) return;
  part->running = false;
  part->status = id.status();
}

bool RowScan::State::AskAll(const std::shared_ptr<State>& self, ClientCore& core) {
  bool left = false;
  for (Part& part : self->parts) {
    if (!part.open && self->next < self->partitions) {
      part.partition = self->next++;
      part.cursor = 0;
      part.open = true;
      Ask(self, core, &part);
    }
    left |= part.open;
  }
  return left;
}

absl::StatusOr<RowScan> Client::Scan(const Table& table, const ScanOptions& options) {
  if (absl::Status s = impl_->CheckTable(table); !s.ok()) return s;
  auto state = MakeSharedOfProcess<RowScan::State>();
  state->runtime = impl_->runtime;
  state->table = table;
  state->timeout = options.timeout.value_or(impl_->options.timeout);
  absl::Status status = impl_->runtime->WhyNot();
  impl_->runtime->Run([&](ClientCore& core) {
    status = absl::OkStatus();
    state->partitions = static_cast<uint32_t>(core.view().partitions_size());
    RowScan::State::AskAll(state, core);
    for (const RowScan::State::Part& part : state->parts) {
      // An error of the call itself; Next() reports later errors.
      if (status.ok() && !part.running) status = part.status;
    }
  });
  if (!status.ok()) return status;
  RowScan scan;
  scan.state_ = std::move(state);
  return scan;
}

absl::StatusOr<bool> RowScan::Next(std::vector<uint64_t>* keys, std::vector<float>* rows) {
  if (keys == nullptr || rows == nullptr) {
    return absl::InvalidArgumentError("RowScan::Next: keys or rows is null");
  }
  if (state_ == nullptr) return absl::FailedPreconditionError("RowScan::Next: an empty scan");
  State& s = *state_;
  keys->clear();
  rows->clear();
  while (s.failed.ok()) {
    State::Part* ready = nullptr;
    const auto find = [&] {
      for (State::Part& part : s.parts) {
        if (part.open && !part.running) ready = &part;
      }
      return ready != nullptr;
    };
    bool left = false;
    if (!s.runtime->Run([&](ClientCore& core) { left = State::AskAll(state_, core); })) {
      s.failed = s.runtime->WhyNot();
      break;
    }
    if (!left) return false;
    s.runtime->WaitUntil(find, INT64_MAX);
    if (ready == nullptr) continue;  // closed meanwhile
    if (!ready->status.ok()) {
      s.failed = ready->status;
      break;
    }
    if (ready->result->keys.empty()) {
      ready->open = false;
      continue;
    }
    keys->swap(ready->result->keys);
    rows->swap(ready->result->rows);
    ready->cursor = ready->result->next;
    s.runtime->Run([&](ClientCore& core) { State::Ask(state_, core, ready); });
    return true;
  }
  return s.failed;
}

}  // namespace verbena
