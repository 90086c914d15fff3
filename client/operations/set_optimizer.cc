#include "client/operations/set_optimizer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/core/client_core.h"
#include "client/core/errors.h"
#include "client/core/request_tracker.h"

namespace verbena::client {
namespace {

bool Live(const PendingRequest& entry) {
  return entry.operation != nullptr && entry.operation->live;
}

}  // namespace

bool SetOptimizerRequests::Numbers(const TableState& table) const {
  return !table.sync && tracker_.session->rank() >= 0;
}

void SetOptimizerRequests::Add(Operation* operation) {
  TableState* table = operation->table;
  operation->change->number = ++table->changes;
  for (const auto& lane : table->lanes) {
    PendingRequest* entry = nullptr;
    for (uint32_t p = 0; p < table->parts.size(); ++p) {
      if (table->parts[p].lane != lane.get()) continue;
      if (entry == nullptr) {
        entry = tracker_.entries.NewRequest(this, table, operation);
        // A step to which this worker has pushed may be committed in part.
        entry->step = table->step + (table->pushed_step > table->step ? 1 : 0);
      }
      entry->parts.push_back(p);
      if (entry->parts.size() == kMaxSetOptimizerGroups) {
        tracker_.queue.EnqueueOn(lane.get(), std::exchange(entry, nullptr));
      }
    }
    if (entry != nullptr) tracker_.queue.EnqueueOn(lane.get(), entry);
  }
}

bool SetOptimizerRequests::Post(Stream* stream, PendingRequest* entry) {
  TableState* table = entry->table;
  std::vector<NamedValue> values;
  if (Live(*entry)) values = entry->operation->change->values;
  static_assert(kRecordAlignment == 2 * sizeof(NamedValue));
  if (values.size() % 2 != 0) values.push_back({});
  const auto bytes = static_cast<uint32_t>(values.size() * sizeof(NamedValue));
  if (!tracker_.poster.Fits(stream, entry, bytes)) return false;
  const bool numbers = Numbers(*table);
  if (numbers && !std::exchange(entry->numbered, true)) {
    for (const uint32_t p : entry->parts) {
      entry->sequences.push_back(table->parts[p].next_sequence++);
    }
  }
  const uint32_t number = Live(*entry) ? entry->operation->change->number : 0;
  std::vector<Group>& groups = tracker_.poster.groups();
  for (size_t i = 0; i < entry->parts.size(); ++i) {
    const PartState& part = table->parts[entry->parts[i]];
    groups[i] = {
        part.partition, number, part.epoch, numbers ? entry->sequences[i] : entry->step, 0, 0};
  }
  rdma::WorkerLane::Request request;
  request.header.type = traits_.type;
  request.header.dtype = ElementType::kNone;
  request.groups = absl::MakeConstSpan(groups.data(), entry->parts.size());
  request.prefix = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), bytes);
  if (!tracker_.poster.Send(stream, entry, &request)) return false;
  if (!numbers) ++table->LaneOn(stream)->changes_out;
  return true;
}

void SetOptimizerRequests::OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) {
  TableState* table = entry->table;
  if (!Numbers(*table)) --table->LaneOn(stream)->changes_out;
  ReplyStatus retry = ReplyStatus::kOk;
  bool accepted = false;
  std::vector<std::pair<uint32_t, ReplyStatus>> fatal;
  entry->KeepGroups([&](size_t i) {
    const ReplyStatus status = Settlement::GroupStatus(*entry, reply, i);
    if (Settlement::Accepted(status)) {
      accepted = true;
      return false;
    }
    retry = status;
    if (Settlement::Retryable(status)) return true;
    fatal.emplace_back(entry->parts[i], status);
    // Its sequence is still to be settled, without values.
    return entry->numbered && Live(*entry);
  });
  if (accepted && Live(*entry)) entry->operation->change->InForce(reply.version, reply.detail);
  for (const auto& [part, status] : fatal) {
    if (!tracker_.settlement.OnFatal(entry, part, status) && entry->operation != nullptr) {
      tracker_.settlement.End(entry->operation, RefusalStatus(*entry, status));
    }
  }
  if (entry->parts.empty() || tracker_.closed || table->dropped ||
      (!Live(*entry) && !entry->numbered)) {
    return tracker_.settlement.Settled(entry);
  }
  tracker_.settlement.Retry(entry, retry);
}

void SetOptimizerRequests::OnLaneLost(PendingRequest* entry) {
  if (!Numbers(*entry->table)) --entry->table->LaneOn(entry->stream)->changes_out;
  if (!Live(*entry) && !entry->numbered) return tracker_.entries.Free(entry);
  tracker_.queue.Enqueue(entry);
}

// A sequence that was assigned must arrive: later pushes wait for it. Then it has no values.
void SetOptimizerRequests::OnOperationEnd(PendingRequest* entry) {
  const bool queued = entry->state == PendingRequest::State::kQueued ||
                      entry->state == PendingRequest::State::kDelayed;
  if (!queued || entry->numbered) return tracker_.entries.Detach(entry);
  tracker_.queue.Unqueue(entry);
  tracker_.entries.Free(entry);
}

}  // namespace verbena::client
