// Rails: the lane of each table part, and its move to another one.
//
// A partition is pinned to a rail (rails.h); each table's part of it follows. It may move when none
// of its pushes and end-steps is posted and unanswered. The wait for that never depends on another
// worker. Async and ssp pushes are answered at once, so all new records are held back. A server may
// hold sync pushes until others have pushed the same step. So records of the steps in progress
// continue, and only a new step begins on the new rail.
#include <algorithm>
#include <utility>
#include <vector>

#include "client/core/journal.h"

namespace verbena::client {

Stream* Journal::Pinned(const PartState& part) {
  Peer* peer = part.stream->peer;
  return peer->rails[peer->pins.Of(part.partition)];
}

void Journal::Place(TableState* table, PartState* part, Stream* stream) {
  part->stream = stream;
  part->lane = table->LaneOn(stream);
  auto& lanes = stream->table_lanes;
  if (std::find(lanes.begin(), lanes.end(), part->lane) == lanes.end()) {
    lanes.push_back(part->lane);
  }
}

void Journal::CountMoving(TableState* table) {
  table->moving = static_cast<uint32_t>(
      std::count_if(table->parts.begin(), table->parts.end(),
                    [](const PartState& part) { return part.stream != Pinned(part); }));
}

void Journal::RailsChanged() {
  for (const auto& [id, table] : tables_) CountMoving(table.get());
  moves_dirty_ = true;
}

void Journal::Spread(const TableState& table) {
  std::vector<Peer*> peers;
  for (const PartState& part : table.parts) {
    Peer* peer = part.stream->peer;
    if (peer->rails.size() == 1) continue;
    if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
  }
  for (Peer* peer : peers) peer->pins.Balance();
  if (!peers.empty()) RailsChanged();
}

void Journal::OnLaneOpen(Stream* stream) {
  stream->peer->pins.Up(stream->rail);
  if (stream->peer->rails.size() > 1) RailsChanged();
  Touch(stream);
}

bool Journal::RunMoves() {
  moves_dirty_ = false;
  bool moved = false;
  for (const auto& [id, table] : tables_) {
    if (table->moving == 0 || table->dropped) continue;
    const uint32_t before = table->moving;
    for (PartState& part : table->parts) {
      if (part.out > 0) continue;
      Stream* to = Pinned(part);
      if (part.stream == to) continue;
      Place(table.get(), &part, to);
      --table->moving;
      ++counters_.rail_moves;
    }
    if (table->moving == before) continue;
    Reroute(table.get());
    moved = true;
  }
  return moved;
}

// Before its records are resent: they use the locations of their parts at that time.
void Journal::LeaveRail(Stream* stream) {
  stream->peer->pins.Down(stream->rail);
  if (stream->peer->rails.size() == 1) return;
  for (const auto& [id, table] : tables_) {
    bool changed = false;
    for (PartState& part : table->parts) {
      if (part.stream != stream || Pinned(part) == stream) continue;
      Place(table.get(), &part, Pinned(part));
      ++counters_.rail_moves;
      changed = true;
    }
    if (changed && !table->dropped) Reroute(table.get());
  }
  RailsChanged();
}

bool Journal::Draining(const Entry& entry) const {
  const TableState& table = *entry.table;
  const auto waits = [&](uint32_t p) {
    const PartState& part = table.parts[p];
    const bool under_way = table.sync && entry.step <= part.last_step;
    return part.out > 0 && !under_way && part.stream != Pinned(part);
  };
  if (entry.parts.empty()) return waits(entry.part);
  return std::any_of(entry.parts.begin(), entry.parts.end(), waits);
}

void Journal::CountOut(const Entry& entry, int change) {
  TableState* table = entry.table;
  const auto count = [&](uint32_t p) {
    PartState& part = table->parts[p];
    part.out += static_cast<uint32_t>(change);
    if (change > 0) {
      part.last_step = std::max(part.last_step, entry.step);
    } else if (part.out == 0) {
      moves_dirty_ |= table->moving > 0 && part.stream != Pinned(part);
      if (!std::exchange(part.away, false)) return;
      --table->away;
      Touch(part.stream);
    }
  };
  if (entry.parts.empty()) return count(entry.part);
  for (const uint32_t p : entry.parts) count(p);
}

void Journal::CountLoad(const Stream& stream, const Entry& entry) {
  Peer* peer = stream.peer;
  if (peer->rails.size() == 1) return;
  const TableState& table = *entry.table;
  if (entry.parts.empty()) {
    const uint64_t bytes = table.embedding() ? entry.elements * table.row_bytes()
                           : entry.type == RecordType::kPush
                               ? PayloadBytes(table.push_type, entry.elements)
                               : table.PullBytes(entry.elements);
    return peer->pins.Add(table.parts[entry.part].partition, bytes);
  }
  uint64_t bytes =
      entry.type == RecordType::kPushRows ? table.PushedRowBytes() : table.PulledRowBytes();
  if (entry.type == RecordType::kLookupBags) {
    // A partition's share of the reply is proportional to its keys.
    bytes = sizeof(uint64_t) + sizeof(BagUse) + entry.chunk * table.row_bytes() / entry.elements;
  } else if (entry.type != RecordType::kPushRows && entry.type != RecordType::kLookup) {
    return;
  }
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    peer->pins.Add(table.parts[entry.parts[i]].partition, entry.counts[i] * bytes);
  }
}

}  // namespace verbena::client
