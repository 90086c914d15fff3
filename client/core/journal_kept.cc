// Answered sync pushes that are kept for a server that takes over, until their step is committed.
//
// A follower has every committed step, but no data of the open one. When it becomes primary, it
// needs the data again that the old primary has read of the open step. A kept push holds no
// operation, slot or staging of a lane, only the caller's memory.
#include <utility>
#include <vector>

#include "client/core/journal.h"

namespace verbena::client {

// In an embedding table a part is also a chunk.
bool Journal::Keeps(const TableState& table, uint32_t chunk, uint64_t step) const {
  if (!table.sync || table.dropped || closed_) return false;
  const PartState& part = table.parts[table.PartOf(chunk)];
  return part.copies && !part.lost && table.chunk_version[chunk] <= step;
}

EntryQueue* Journal::KeptOf(const Entry& entry) {
  return &entry.table->kept[entry.parts.empty() ? entry.chunk : entry.parts[0]];
}

void Journal::Keep(Entry* entry) {
  if (Over(*entry)) MakeEmpty(entry);
  GiveStaging(entry);
  // The answer came from a server that was no longer the primary.
  if (MovedSince(*entry)) return Enqueue(entry);
  entry->stream = nullptr;
  entry->refused = ReplyStatus::kOk;
  entry->state = Entry::State::kKept;
  KeptOf(*entry)->PushBack(entry);
}

// Kept individually, because the partitions of a record commit and move one by one.
void Journal::KeepRows(const Entry& entry, size_t group) {
  Entry* one = NewGroup(entry, group);
  Keep(one);
}

void Journal::TakeKept(TableState* table, uint32_t part, std::vector<Entry*>* entries) {
  if (!table->sync) return;
  for (uint32_t c = part; c < table->chunks(); c += table->partitions) {
    while (Entry* entry = table->kept[c].front()) {
      table->kept[c].Remove(entry);
      entry->state = Entry::State::kHeld;
      entries->push_back(entry);
    }
  }
}

// Their operations have ended.
void Journal::DropKept(TableState* table, uint32_t part) {
  std::vector<Entry*> entries;
  TakeKept(table, part, &entries);
  for (Entry* entry : entries) Free(entry);
}

void Journal::ReleaseKept(TableState* table, uint32_t chunk) {
  for (Entry* entry = table->kept[chunk].front(); entry != nullptr;) {
    Entry* next = EntryQueue::Next(entry);
    if (entry->step < table->chunk_version[chunk]) {
      table->kept[chunk].Remove(entry);
      entry->state = Entry::State::kAnswered;
      Settled(entry);
    }
    entry = next;
  }
}

void Journal::LearnChunk(TableState* table, uint32_t chunk, uint64_t version) {
  const bool advanced = table->LearnChunk(chunk, version);
  ReleaseKept(table, chunk);
  Learned(table, table->PartOf(chunk), advanced);
}

void Journal::LearnPart(TableState* table, uint32_t part, uint64_t version) {
  const bool advanced = table->LearnPart(part, version);
  if (advanced && table->sync) {
    for (uint32_t c = part; c < table->chunks(); c += table->partitions) ReleaseKept(table, c);
  }
  Learned(table, part, advanced);
}

}  // namespace verbena::client
