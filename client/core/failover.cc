#include "client/core/failover.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "client/core/errors.h"
#include "client/core/request_tracker.h"

namespace verbena::client {
namespace {

// More: a server that hangs right after it handed a partition over delays its records so long.
// Less: one that is busy has not refused them yet.
constexpr int64_t kHandOverNanos = 500 * kMillisecond;

}  // namespace

// ---- partitions that move -----------------------------------------------------------------------

bool Failover::Route(TableState* table) {
  const v1::ClusterView& view = tracker_.session->view();
  bool changed = false;
  table->copies = false;
  for (uint32_t p = 0; p < table->parts.size(); ++p) {
    PartState& part = table->parts[p];
    v1::Partition nowhere;
    const bool known = part.partition < uint32_t(view.partitions_size());
    const v1::Partition& info = known ? view.partitions(part.partition) : nowhere;
    Peer* peer = tracker_.lanes->Get(info.primary(), info.primary() == 0 ? 0 : info.shard());
    // Pushes that are answered before the first follower exists may be needed again too.
    part.copies = view.replicas() > 1 || !info.followers().empty() || !info.learners().empty();
    table->copies |= part.copies;
    const bool first = part.stream == nullptr;
    const bool stays = !first && part.stream->peer == peer;
    const bool same_epoch = !known || part.epoch == info.epoch();
    if (known) part.epoch = info.epoch();
    if (!first && (!stays || !same_epoch)) {
      part.moved = view.revision();
      changed = true;
    }
    if (stays) continue;
    const bool handed_over = info.released_epoch() != 0 && info.released_epoch() == info.epoch();
    part.leave_at = handed_over ? tracker_.now + kHandOverNanos : 0;
    if (!first) {
      part.stream->peer->pins.Forget(part.partition);
      // The refusals there were of this part: others need not wait.
      part.lane->retry_at = 0;
      part.lane->backoff.Reset();
    }
    if (part.out > 0 && !std::exchange(part.away, true)) ++table->away;
    RailMoves::Place(table, &part, peer->rails[peer->pins.Of(part.partition)]);
    peer->pins.Add(part.partition, table->PartBytes(p));
  }
  RailMoves::CountMoving(table);
  return changed;
}

void Failover::FollowMoved(TableState* table) {
  std::vector<PendingRequest*> again;
  for (uint32_t p = 0; p < table->parts.size(); ++p) {
    const PartState& part = table->parts[p];
    if (part.moved != tracker_.session->view().revision()) continue;
    tracker_.commits.TakeKept(table, p, &again);
    // A refusal by another server, or at another epoch, is no longer relevant.
    part.lane->retry_at = 0;
    part.lane->backoff.Reset();
  }
  TakeEnded(table, &again);
  if (table->copies) tracker_.norms.RestartNorms(*table);
  tracker_.queue.Reroute(table, std::move(again));
}

// Takes the parts of accepted end-steps that have moved.
void Failover::TakeEnded(TableState* table, std::vector<PendingRequest*>* entries) {
  const uint64_t revision = tracker_.session->view().revision();
  const auto stays = [&](const PartState& part) { return part.moved != revision; };
  for (const auto& lane : table->lanes) {
    for (PendingRequest* entry = lane->ended.front(); entry != nullptr;) {
      PendingRequest* next = PendingRequestQueue::Next(entry);
      tracker_.poster.Prune(entry);
      if (PendingRequest* moved = tracker_.entries.SplitOff(entry, stays))
        entries->push_back(moved);
      if (entry->parts.empty()) {
        lane->ended.Remove(entry);
        tracker_.entries.Free(entry);
      }
      entry = next;
    }
  }
}

bool Failover::MovedSince(const PendingRequest& entry) {
  const auto moved = [&](uint32_t part) { return entry.table->parts[part].moved > entry.revision; };
  if (entry.parts.empty()) return moved(entry.part);
  return std::any_of(entry.parts.begin(), entry.parts.end(), moved);
}

PendingRequest* Failover::ResendMoved(PendingRequest* entry) {
  if (!MovedSince(*entry)) return entry;
  // At a new epoch of the same server, records posted behind it return too.
  entry->table->LaneOn(entry->stream)->reordering = true;
  PendingRequest* moved = entry;
  if (!entry->parts.empty()) {
    const uint64_t posted = entry->revision;
    moved = tracker_.entries.SplitOff(
        entry, [posted](const PartState& part) { return part.moved <= posted; });
    if (entry->parts.empty()) tracker_.settlement.Settled(std::exchange(entry, nullptr));
  } else {
    entry = nullptr;
  }
  tracker_.queue.Enqueue(moved);
  return entry;
}

void Failover::LeaveOldLanes() {
  leave_at_ = kNever;
  for (size_t i = 0; i < tracker_.lanes->streams().size(); ++i) {
    Stream* stream = tracker_.lanes->streams()[i].get();
    const auto left = [&](const PendingRequest& entry) {
      const auto elsewhere = [&](uint32_t part) {
        const PartState& place = entry.table->parts[part];
        if (place.stream->peer == stream->peer) return false;
        if (tracker_.now >= place.leave_at) return true;
        leave_at_ = std::min(leave_at_, place.leave_at);
        return false;
      };
      if (entry.table->dropped || entry.of_follower) return false;
      if (entry.parts.empty()) return elsewhere(entry.part);
      return std::any_of(entry.parts.begin(), entry.parts.end(), elsewhere);
    };
    const PendingRequest* entry = stream->posted.front();
    while (entry != nullptr && !left(*entry)) entry = entry->queue_links.next;
    if (entry == nullptr) continue;
    tracker_.lanes->Close(stream, absl::UnavailableError("its partitions have another primary"));
  }
}

bool Failover::RunTimers(int64_t now) {
  if (leave_at_ > now) return false;
  LeaveOldLanes();
  return true;
}

// ---- lanes --------------------------------------------------------------------------------------

void Failover::OnLaneDead(Stream* stream) {
  tracker_.ReadClock();
  tracker_.rails.LeaveRail(stream);
  while (PendingRequest* entry = stream->posted.back()) {
    tracker_.queue.Unqueue(entry);
    Lost(entry);
  }
  for (TableLane* lane : stream->table_lanes) {
    lane->reordering = false;
    while (PendingRequest* entry = lane->ended.front()) {
      lane->ended.Remove(entry);
      entry->state = PendingRequest::State::kHeld;
      Lost(entry);
    }
  }
  tracker_.devices.DropCopies(stream);
  tracker_.followers.OnLaneDead(stream);
  stream->wanted = false;
  const bool queued = !stream->pulls.empty() || !stream->norms.empty() ||
                      std::any_of(stream->table_lanes.begin(), stream->table_lanes.end(),
                                  [](const TableLane* lane) { return !lane->queue.empty(); });
  // A rail is reopened even without waiting records: others carry its partitions meanwhile.
  const bool rail = stream->peer->rails.size() > 1;
  if ((queued || rail) && !tracker_.closed) tracker_.lanes->Want(stream);
}

// It is posted again at the current location of its partition, unless it is no longer needed.
void Failover::Lost(PendingRequest* entry) {
  if (tracker_.closed || entry->table->dropped) return tracker_.entries.Free(entry);
  entry->handler->OnLaneLost(entry);
}

void Failover::OnLaneRefused(Stream* stream, const absl::Status& status) {
  const absl::Status error(status.code(), DescribeServer(*tracker_.session, *stream) + ": " +
                                              std::string(status.message()));
  for (Operation* operation = tracker_.operations->first_live(); operation != nullptr;) {
    Operation* next = Operations::next_live(operation);
    bool uses = false;
    for (const PendingRequest* entry = operation->entries.front(); entry != nullptr;
         entry = entry->operation_links.next) {
      uses |= entry->stream == stream;
    }
    if (uses) tracker_.settlement.End(operation, error);
    operation = next;
  }
}

}  // namespace verbena::client
