// Partitions with a new primary or epoch: which records are resent, and when.
//
// Queued, kept and accepted records go to the new primary, in the order of their creation. Records
// in flight on the lane to the old one return when they are answered or the lane is dead, and are
// posted before the others. So a part with such records waits for them, while other parts of its
// table continue.
#include <algorithm>
#include <utility>
#include <vector>

#include "client/core/journal.h"

namespace verbena::client {

bool Journal::Route(TableState* table) {
  const v1::ClusterView& view = session_->view();
  bool changed = false;
  table->copies = false;
  for (uint32_t p = 0; p < table->parts.size(); ++p) {
    PartState& part = table->parts[p];
    v1::Partition nowhere;
    const bool known = part.partition < uint32_t(view.partitions_size());
    const v1::Partition& info = known ? view.partitions(part.partition) : nowhere;
    Peer* peer = lanes_->Get(info.primary(), info.primary() == 0 ? 0 : info.shard());
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
    if (!first) part.stream->peer->pins.Forget(part.partition);
    if (part.out > 0 && !std::exchange(part.away, true)) ++table->away;
    Place(table, &part, peer->rails[peer->pins.Of(part.partition)]);
    peer->pins.Add(part.partition, table->PartBytes(p));
  }
  CountMoving(table);
  return changed;
}

void Journal::FollowMoved(TableState* table) {
  std::vector<Entry*> again;
  for (uint32_t p = 0; p < table->parts.size(); ++p) {
    const PartState& part = table->parts[p];
    if (part.moved != session_->view().revision()) continue;
    TakeKept(table, p, &again);
    // A refusal by another server, or at another epoch, is no longer relevant.
    part.lane->retry_at = 0;
    part.lane->backoff.Reset();
  }
  TakeEnded(table, &again);
  if (table->copies) RestartNorms(*table);
  Reroute(table, std::move(again));
}

// Takes the parts of accepted end-steps that have moved.
void Journal::TakeEnded(TableState* table, std::vector<Entry*>* entries) {
  const uint64_t revision = session_->view().revision();
  const auto stays = [&](const PartState& part) { return part.moved != revision; };
  for (const auto& lane : table->lanes) {
    for (Entry* entry = lane->ended.front(); entry != nullptr;) {
      Entry* next = EntryQueue::Next(entry);
      Prune(entry);
      if (Entry* moved = SplitOff(entry, stays)) entries->push_back(moved);
      if (entry->parts.empty()) {
        lane->ended.Remove(entry);
        Free(entry);
      }
      entry = next;
    }
  }
}

bool Journal::MovedSince(const Entry& entry) {
  const auto moved = [&](uint32_t part) { return entry.table->parts[part].moved > entry.revision; };
  if (entry.parts.empty()) return moved(entry.part);
  return std::any_of(entry.parts.begin(), entry.parts.end(), moved);
}

Entry* Journal::ResendMoved(Entry* entry) {
  if (!MovedSince(*entry)) return entry;
  // At a new epoch of the same server, records posted behind it return too.
  entry->table->LaneOn(entry->stream)->reordering = true;
  Entry* moved = entry;
  if (!entry->parts.empty()) {
    const uint64_t posted = entry->revision;
    moved = SplitOff(entry, [posted](const PartState& part) { return part.moved <= posted; });
    if (entry->parts.empty()) Settled(std::exchange(entry, nullptr));
  } else {
    entry = nullptr;
  }
  Enqueue(moved);
  return entry;
}

// Closes lanes that have records of parts with another location now: invariant 7.
void Journal::LeaveOldLanes() {
  for (size_t i = 0; i < lanes_->streams().size(); ++i) {
    Stream* stream = lanes_->streams()[i].get();
    const auto left = [&](const Entry& entry) {
      const auto elsewhere = [&](uint32_t part) {
        return entry.table->parts[part].stream->peer != stream->peer;
      };
      if (entry.table->dropped) return false;
      if (entry.parts.empty()) return elsewhere(entry.part);
      return std::any_of(entry.parts.begin(), entry.parts.end(), elsewhere);
    };
    const Entry* entry = stream->posted.front();
    while (entry != nullptr && !left(*entry)) entry = entry->queue_links.next;
    if (entry == nullptr) continue;
    lanes_->Close(stream, absl::UnavailableError("its partitions have another primary"));
  }
}

Entry* Journal::FrontOf(TableLane* lane) {
  const TableState& table = *lane->table;
  Entry* entry = lane->queue.front();
  if (table.away == 0) return entry;
  const auto here = [](const PartState& part) { return !part.away; };
  for (; entry != nullptr; entry = EntryQueue::Next(entry)) {
    if (entry->parts.empty()) {
      if (here(table.parts[entry->part])) return entry;
      continue;
    }
    const auto may_go = [&](uint32_t part) { return here(table.parts[part]); };
    if (std::none_of(entry->parts.begin(), entry->parts.end(), may_go)) continue;
    if (Entry* rest = SplitOff(entry, here)) {
      lane->queue.InsertBefore(EntryQueue::Next(entry), rest);
      rest->state = Entry::State::kQueued;
      rest->stream = lane->stream;
    }
    return entry;
  }
  return nullptr;
}

}  // namespace verbena::client
