#include "client/core/rail_moves.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/core/request_tracker.h"

namespace verbena::client {

Stream* RailMoves::Pinned(const PartState& part) {
  Peer* peer = part.stream->peer;
  return peer->rails[peer->pins.Of(part.partition)];
}

void RailMoves::Place(TableState* table, PartState* part, Stream* stream) {
  part->stream = stream;
  part->lane = table->LaneOn(stream);
  const auto& lanes = stream->table_lanes;
  if (std::find(lanes.begin(), lanes.end(), part->lane) == lanes.end()) {
    RequestQueue::Place(part->lane);
  }
}

void RailMoves::CountMoving(TableState* table) {
  table->moving = static_cast<uint32_t>(
      std::count_if(table->parts.begin(), table->parts.end(),
                    [](const PartState& part) { return part.stream != Pinned(part); }));
}

void RailMoves::RailsChanged() {
  for (const auto& [id, table] : tracker_.tables.all()) CountMoving(table.get());
  due_ = true;
}

void RailMoves::Spread(const TableState& table) {
  std::vector<Peer*> peers;
  for (const PartState& part : table.parts) {
    Peer* peer = part.stream->peer;
    if (peer->rails.size() == 1) continue;
    if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
  }
  for (Peer* peer : peers) peer->pins.Balance();
  if (!peers.empty()) RailsChanged();
}

void RailMoves::OnLaneOpen(Stream* stream) {
  stream->peer->pins.Up(stream->rail);
  if (stream->peer->rails.size() > 1) RailsChanged();
  tracker_.queue.Touch(stream);
}

bool RailMoves::RunMoves() {
  due_ = false;
  bool moved = false;
  for (const auto& [id, table] : tracker_.tables.all()) {
    if (table->moving == 0 || table->dropped) continue;
    const uint32_t before = table->moving;
    for (PartState& part : table->parts) {
      if (part.out > 0) continue;
      Stream* to = Pinned(part);
      if (part.stream == to) continue;
      Place(table.get(), &part, to);
      --table->moving;
      ++tracker_.counters.rail_moves;
    }
    if (table->moving == before) continue;
    tracker_.queue.Reroute(table.get());
    moved = true;
  }
  return moved;
}

// Before its records are resent: they use the locations of their parts at that time.
void RailMoves::LeaveRail(Stream* stream) {
  stream->peer->pins.Down(stream->rail);
  if (stream->peer->rails.size() == 1) return;
  for (const auto& [id, table] : tracker_.tables.all()) {
    bool changed = false;
    for (PartState& part : table->parts) {
      if (part.stream != stream || Pinned(part) == stream) continue;
      Place(table.get(), &part, Pinned(part));
      ++tracker_.counters.rail_moves;
      changed = true;
    }
    if (changed && !table->dropped) tracker_.queue.Reroute(table.get());
  }
  RailsChanged();
}

bool RailMoves::Draining(const PendingRequest& entry) const {
  const TableState& table = *entry.table;
  const auto waits = [&](uint32_t p) {
    const PartState& part = table.parts[p];
    const bool under_way = table.sync && entry.step <= part.last_step;
    return part.out > 0 && !under_way && part.stream != Pinned(part);
  };
  if (entry.parts.empty()) return waits(entry.part);
  return std::any_of(entry.parts.begin(), entry.parts.end(), waits);
}

void RailMoves::CountOut(const PendingRequest& entry, int change) {
  TableState* table = entry.table;
  const auto count = [&](uint32_t p) {
    PartState& part = table->parts[p];
    part.out += static_cast<uint32_t>(change);
    if (change > 0) {
      part.last_step = std::max(part.last_step, entry.step);
    } else if (part.out == 0) {
      due_ |= table->moving > 0 && part.stream != Pinned(part);
      if (!std::exchange(part.away, false)) return;
      --table->away;
      tracker_.queue.Touch(part.stream);
    }
  };
  if (entry.parts.empty()) return count(entry.part);
  for (const uint32_t p : entry.parts) count(p);
}

void RailMoves::CountLoad(const Stream& stream, const PendingRequest& entry) {
  Peer* peer = stream.peer;
  if (peer->rails.size() == 1) return;
  const uint64_t bytes = entry.handler->BytesOf(entry);
  if (bytes == 0) return;
  const TableState& table = *entry.table;
  if (entry.parts.empty()) return peer->pins.Add(table.parts[entry.part].partition, bytes);
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    peer->pins.Add(table.parts[entry.parts[i]].partition, entry.counts[i] * bytes);
  }
}

}  // namespace verbena::client
