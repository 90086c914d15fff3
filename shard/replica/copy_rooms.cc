#include "shard/replica/copy_rooms.h"

#include <algorithm>

#include "shard/failpoints.h"

namespace verbena::shard {

const CopyRooms::Copy* CopyRooms::Find(const CopyId& copy) const {
  const auto it =
      std::find_if(copies_.begin(), copies_.end(), [&](const Copy& c) { return c.id == copy; });
  return it == copies_.end() ? nullptr : &*it;
}

CopyRooms::Copy* CopyRooms::Find(const CopyId& copy) {
  if (const Copy* const found = std::as_const(*this).Find(copy)) return const_cast<Copy*>(found);
  // Incarnations only grow: of those before it some are gone, and the others report again.
  std::erase_if(copies_, [&](const Copy& c) {
    return c.id.server < copy.server && c.on_their_way == 0 && copies_.size() >= kMostCopies;
  });
  copies_.push_back({copy, {}, 0});
  return &copies_.back();
}

uint64_t CopyRooms::RoomFor(const CopyId& copy) const {
  const Copy* const c = Find(copy);
  if (c == nullptr || c->room.bytes == UINT64_MAX || VERBENA_FAILPOINT(shard, ignore_copy_room)) {
    return UINT64_MAX;
  }
  return c->room.bytes - std::min(c->room.bytes, c->on_their_way);
}

uint64_t CopyRooms::RoomFor(const CopySet& copies) const {
  uint64_t room = UINT64_MAX;
  for (const CopySet::Copy& copy : copies) {
    if (copy.required) room = std::min(room, RoomFor(copy.id));
  }
  return room;
}

CopyId CopyRooms::Fullest(const CopySet& copies) const {
  CopyId fullest;
  uint64_t room = UINT64_MAX;
  for (const CopySet::Copy& copy : copies) {
    if (!copy.required || (fullest.server != 0 && RoomFor(copy.id) >= room)) continue;
    fullest = copy.id;
    room = RoomFor(copy.id);
  }
  return fullest;
}

bool CopyRooms::MayFit(const CopyId& copy, uint64_t bytes) const {
  const Copy* const c = Find(copy);
  if (c == nullptr) return true;
  const uint64_t made =
      VERBENA_FAILPOINT(shard, wait_for_open_steps) ? 0 : c->on_their_way - c->in_records;
  const uint64_t awaited = c->on_their_way - made;
  return awaited > 0 && made <= c->room.bytes && bytes <= c->room.bytes - made;
}

void CopyRooms::Grow(const CopySet& copies, uint32_t partition, uint32_t table, uint64_t bytes) {
  if (bytes == 0) return;
  for (const CopySet::Copy& copy : copies) {
    if (copy.required) GrowAt(copy.id, partition, table, bytes);
  }
}

void CopyRooms::GrowAt(const CopyId& copy, uint32_t partition, uint32_t table, uint64_t bytes) {
  const auto [first, end] = partitions_.equal_range(partition);
  auto p = std::find_if(first, end, [&](const auto& of) { return of.second.copy == copy; });
  if (p == end) p = partitions_.insert({partition, {copy, {}, {}}});
  p->second.made[table] += bytes;
  Find(copy)->on_their_way += bytes;
}

void CopyRooms::Take(const CopyId& copy, uint64_t bytes, bool in_record) {
  Copy* const c = Find(copy);
  c->on_their_way -= bytes;
  if (in_record) c->in_records -= bytes;
}

void CopyRooms::Logged(uint32_t partition, uint32_t table, uint64_t sequence) {
  const auto [first, end] = partitions_.equal_range(partition);
  for (auto p = first; p != end; ++p) {
    const auto made = p->second.made.find(table);
    if (made == p->second.made.end()) continue;
    p->second.logged.emplace_back(sequence, made->second);
    Find(p->second.copy)->in_records += made->second;
    p->second.made.erase(made);
  }
}

void CopyRooms::Answered(uint32_t partition, const CopyId& copy, uint64_t sequence) {
  const auto [first, end] = partitions_.equal_range(partition);
  const auto p = std::find_if(first, end, [&](const auto& of) { return of.second.copy == copy; });
  if (p == end) return;
  auto& logged = p->second.logged;
  for (; !logged.empty() && logged.front().first <= sequence; logged.pop_front()) {
    Take(copy, logged.front().second, /*in_record=*/true);
  }
  if (logged.empty() && p->second.made.empty()) partitions_.erase(p);
}

void CopyRooms::ForgetTable(uint32_t partition, uint32_t table) {
  const auto [first, end] = partitions_.equal_range(partition);
  for (auto p = first; p != end; ++p) {
    const auto made = p->second.made.find(table);
    if (made == p->second.made.end()) continue;
    Take(p->second.copy, made->second, /*in_record=*/false);
    p->second.made.erase(made);
  }
}

void CopyRooms::TakeAll(const Partition& partition) {
  for (const auto& [table, bytes] : partition.made) Take(partition.copy, bytes, false);
  for (const auto& [sequence, bytes] : partition.logged) Take(partition.copy, bytes, true);
}

void CopyRooms::Forget(uint32_t partition, const CopyId& copy) {
  const auto [first, end] = partitions_.equal_range(partition);
  const auto p = std::find_if(first, end, [&](const auto& of) { return of.second.copy == copy; });
  if (p == end) return;
  TakeAll(p->second);
  partitions_.erase(p);
}

void CopyRooms::Forget(uint32_t partition) {
  const auto [first, end] = partitions_.equal_range(partition);
  for (auto p = first; p != end; ++p) TakeAll(p->second);
  partitions_.erase(first, end);
}

}  // namespace verbena::shard
