#include "client/operations/end_step.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/core/errors.h"
#include "client/core/failpoints.h"
#include "client/core/request_tracker.h"

namespace verbena::client {

void EndStepRequests::Add(TableState* table, Operation* operation, bool await) {
  if (table->ssp) table->clock = std::max(table->clock, table->seen) + 1;
  for (const auto& lane : table->lanes) {
    PendingRequest* entry = nullptr;
    for (uint32_t p = 0; p < table->parts.size(); ++p) {
      if (table->parts[p].lane != lane.get()) continue;
      if (entry == nullptr) {
        entry = tracker_.entries.NewRequest(this, table, table->sync ? nullptr : operation);
        entry->step = table->step;
        entry->min_version = table->clock;
        entry->await_after = await;
      }
      entry->parts.push_back(p);
      if (entry->parts.size() == kMaxGroups) {
        tracker_.queue.EnqueueOn(lane.get(), entry);
        entry = nullptr;
      }
    }
    if (entry != nullptr) tracker_.queue.EnqueueOn(lane.get(), entry);
    // Drops accepted end-steps whose commit is known by now.
    for (PendingRequest* ended = lane->ended.front(); ended != nullptr;) {
      PendingRequest* next = PendingRequestQueue::Next(ended);
      tracker_.poster.Prune(ended);
      if (ended->parts.empty()) {
        lane->ended.Remove(ended);
        tracker_.entries.Free(ended);
      }
      ended = next;
    }
  }
  ++table->step;
  if (table->clipped || table->trust) tracker_.norms.Wake();
}

bool EndStepRequests::Post(Stream* stream, PendingRequest* entry) {
  if (!tracker_.poster.Fits(stream, entry, 0)) return false;
  TableState* table = entry->table;
  if (!table->sync && !entry->numbered) {
    entry->numbered = true;
    for (const uint32_t p : entry->parts) {
      PartState& part = table->parts[p];
      entry->sequences.push_back(part.next_sequence++);
      entry->counts.push_back(std::exchange(part.pushes_since_end, 0));
    }
  }
  // A primary that has taken over counts only the pushes that it received itself. Those of chunks
  // that were committed before are not among them. All others must be there: they have not been
  // kept if the partition had no replica.
  const auto pushed = [&](uint32_t part) {
    const uint32_t all = table->parts[part].pushed[entry->step & 1];
    if (!table->sync || entry->posts == 0) return all;
    if (VERBENA_FAILPOINT(client, count_committed_pushes)) return all;
    if (VERBENA_FAILPOINT(client, count_no_pushes_again)) return 0u;
    return all - std::min(all, table->PushesCommitted(part, entry->step));
  };
  std::vector<Group>& groups = tracker_.poster.groups();
  for (size_t i = 0; i < entry->parts.size(); ++i) {
    const PartState& part = table->parts[entry->parts[i]];
    groups[i] = {part.partition,
                 0,
                 part.epoch,
                 entry->numbered ? entry->sequences[i] : entry->step,
                 entry->numbered ? entry->counts[i] : pushed(entry->parts[i]),
                 tracker_.admissions.NumberFor(*table)};
  }
  rdma::WorkerLane::Request request;
  request.header.type = traits_.type;
  request.header.dtype = ElementType::kNone;
  request.header.min_version = entry->min_version;  // 0, or the ssp clock
  request.groups = absl::MakeConstSpan(groups.data(), entry->parts.size());
  if (!tracker_.poster.Send(stream, entry, &request)) return false;
  if (std::exchange(entry->await_after, false)) {
    tracker_.requests.await.Add(table, entry->step + 1, stream, entry->parts);
  }
  return true;
}

void EndStepRequests::OnLaneLost(PendingRequest* entry) {
  if (entry->table->sync) tracker_.poster.Prune(entry);
  if (entry->parts.empty()) return tracker_.entries.Free(entry);
  tracker_.queue.Enqueue(entry);
}

void EndStepRequests::OnOperationEnd(PendingRequest* entry) {
  const bool queued = entry->state == PendingRequest::State::kQueued ||
                      entry->state == PendingRequest::State::kDelayed;
  // sync, ssp: the step must end even if the caller does not wait for it, or other workers wait
  // forever.
  if (queued && !entry->numbered && !entry->table->sync && !entry->table->ssp) {
    tracker_.queue.Unqueue(entry);
    return tracker_.entries.Free(entry);
  }
  tracker_.entries.Detach(entry);
}

void EndStepRequests::OnReply(Stream*, PendingRequest* entry, const Reply& reply) {
  TableState* table = entry->table;
  if (entry->parts.empty()) return tracker_.settlement.Settled(entry);
  ReplyStatus retry = ReplyStatus::kOk;
  std::vector<std::pair<uint32_t, ReplyStatus>> fatal;
  const size_t groups = entry->parts.size();
  entry->KeepGroups([&](size_t i) {
    const ReplyStatus status = Settlement::GroupStatus(*entry, reply, i);
    const bool accepted = Settlement::Accepted(status) || status == ReplyStatus::kNonFinite;
    if (Settlement::Retryable(status)) {
      retry = status;
      return true;
    }
    if (!accepted) fatal.emplace_back(entry->parts[i], status);
    // sync: kept until the commit. async: an accepted group is settled.
    return accepted && table->sync;
  });
  for (const auto& [part, status] : fatal) {
    if (!tracker_.settlement.OnFatal(entry, part, status) && entry->operation != nullptr) {
      tracker_.settlement.End(entry->operation, RefusalStatus(*entry, status));
    }
  }
  if (table->sync) tracker_.poster.Prune(entry);
  if (entry->parts.empty() || tracker_.closed || table->dropped)
    return tracker_.settlement.Settled(entry);
  // As of rows: an attempt that leaves fewer groups is not followed by a longer wait.
  if (entry->parts.size() < groups) table->LaneOn(entry->stream)->backoff.Reset();
  if (retry != ReplyStatus::kOk) return tracker_.settlement.Retry(entry, retry);
  entry = tracker_.failover.ResendMoved(entry);
  if (entry == nullptr) return;
  TableLane* lane = table->LaneOn(entry->stream);
  lane->backoff.Reset();
  entry->state = PendingRequest::State::kEnded;
  lane->ended.PushBack(entry);
}

}  // namespace verbena::client
