#include "client/core/commits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/core/request_tracker.h"

namespace verbena::client {

void Commits::WaitForCommit(Operation* operation, uint32_t first, uint32_t count,
                            uint64_t version) {
  TableState* table = operation->table;
  const Waiter waiter{{operation, operation->generation}, version};
  if (count == 0 || count == table->chunks()) {
    if (table->committed >= version) return;
    table->waiters.push_back(waiter);
    ++operation->commits;
    return;
  }
  for (uint32_t c = first; c < first + std::min(count, table->partitions); ++c) {
    PartState& part = table->parts[table->PartOf(c)];
    if (part.committed >= version) continue;
    part.waiters.push_back(waiter);
    ++operation->commits;
  }
}

void Commits::WaitForRows(Operation* operation, uint64_t version) {
  for (const KeyPlan::Range& range : operation->plan->ranges()) {
    PartState& part = operation->table->parts[range.partition];
    if (part.committed >= version) continue;
    part.waiters.push_back({{operation, operation->generation}, version});
    ++operation->commits;
  }
}

void Commits::LearnChunk(TableState* table, uint32_t chunk, uint64_t version) {
  const bool advanced = table->LearnChunk(chunk, version);
  ReleaseKept(table, chunk);
  Learned(table, table->PartOf(chunk), advanced);
}

void Commits::LearnPart(TableState* table, uint32_t part, uint64_t version) {
  const bool advanced = table->LearnPart(part, version);
  if (advanced && table->sync) {
    for (uint32_t c = part; c < table->chunks(); c += table->partitions) ReleaseKept(table, c);
  }
  Learned(table, part, advanced);
}

void Commits::Learned(TableState* table, uint32_t part, bool advanced) {
  PartState& state = table->parts[part];
  if (state.stream != nullptr) tracker_.queue.Touch(state.stream);  // a gate may have opened
  if (!advanced) return;
  if (table->clipped || table->trust) tracker_.norms.Wake();
  Notify(&state.waiters, state.committed);
  Notify(&table->waiters, table->committed);
}

void Commits::Notify(std::vector<Waiter>* waiters, uint64_t committed) {
  size_t kept = 0;
  for (size_t i = 0; i < waiters->size(); ++i) {
    const Waiter waiter = (*waiters)[i];
    if (!waiter.operation.live()) continue;
    if (waiter.version > committed) {
      (*waiters)[kept++] = waiter;
      continue;
    }
    --waiter.operation.operation->commits;
    tracker_.settlement.MaybeDone(waiter.operation.operation);
  }
  waiters->erase(waiters->begin() + static_cast<std::ptrdiff_t>(kept), waiters->end());
}

// In an embedding table a part is also a chunk.
bool Commits::Keeps(const TableState& table, uint32_t chunk, uint64_t step) const {
  if (!table.sync || table.dropped || tracker_.closed) return false;
  const PartState& part = table.parts[table.PartOf(chunk)];
  return part.copies && !part.lost && table.chunk_version[chunk] <= step;
}

PendingRequestQueue* Commits::KeptOf(const PendingRequest& entry) {
  return &entry.table->kept[entry.parts.empty() ? entry.chunk : entry.parts[0]];
}

void Commits::Keep(PendingRequest* entry) {
  if (Settlement::Over(*entry)) tracker_.settlement.MakeEmpty(entry);
  tracker_.staging.GiveStaging(entry);
  // The answer came from a server that was no longer the primary.
  if (Failover::MovedSince(*entry)) return tracker_.queue.Enqueue(entry);
  entry->stream = nullptr;
  entry->refused = ReplyStatus::kOk;
  entry->state = PendingRequest::State::kKept;
  KeptOf(*entry)->PushBack(entry);
}

void Commits::TakeKept(TableState* table, uint32_t part, std::vector<PendingRequest*>* entries) {
  if (!table->sync) return;
  for (uint32_t c = part; c < table->chunks(); c += table->partitions) {
    while (PendingRequest* entry = table->kept[c].front()) {
      table->kept[c].Remove(entry);
      entry->state = PendingRequest::State::kHeld;
      entries->push_back(entry);
    }
  }
}

// Their operations have ended.
void Commits::DropKept(TableState* table, uint32_t part) {
  std::vector<PendingRequest*> entries;
  TakeKept(table, part, &entries);
  for (PendingRequest* entry : entries) tracker_.entries.Free(entry);
}

void Commits::ReleaseKept(TableState* table, uint32_t chunk) {
  for (PendingRequest* entry = table->kept[chunk].front(); entry != nullptr;) {
    PendingRequest* next = PendingRequestQueue::Next(entry);
    if (entry->step < table->chunk_version[chunk]) {
      table->kept[chunk].Remove(entry);
      entry->state = PendingRequest::State::kAnswered;
      tracker_.settlement.Settled(entry);
    }
    entry = next;
  }
}

}  // namespace verbena::client
