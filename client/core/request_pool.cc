#include "client/core/request_pool.h"

#include <utility>

#include "client/core/request_tracker.h"

namespace verbena::client {

PendingRequest* RequestPool::NewRequest(RequestHandler* handler, TableState* table,
                                        Operation* operation) {
  PendingRequest* entry = pool_.Get();
  entry->handler = handler;
  entry->state = PendingRequest::State::kHeld;
  entry->numbered = entry->holds_buffer = entry->await_after = false;
  entry->posts = 0;
  entry->order = ++order_;
  entry->operation = operation;
  entry->table = table;
  ++table->entries;
  entry->stream = nullptr;
  entry->part = entry->chunk = entry->bags = entry->elements = entry->staging_bytes = 0;
  entry->step = entry->min_version = entry->norm = entry->applies = entry->floor = 0;
  entry->of_follower = false;
  entry->array = 0;
  entry->block = nullptr;
  entry->data = entry->staging = nullptr;
  entry->awaited_from = nullptr;
  entry->device = nullptr;
  entry->direct = false;
  entry->copy = PendingRequest::Copy::kNone;
  entry->follow = nullptr;
  entry->parts.clear();
  entry->sequences.clear();
  entry->counts.clear();
  entry->firsts.clear();
  entry->refused = ReplyStatus::kOk;
  entry->backoff.Reset();
  entry->retry_at = entry->posted_at = 0;
  entry->revision = tracker_.session->view().revision();
  if (operation != nullptr) {
    operation->entries.PushBack(entry);
    ++operation->records;
  }
  return entry;
}

PendingRequest* RequestPool::NewRest(const PendingRequest& entry) {
  PendingRequest* rest = NewRequest(entry.handler, entry.table, entry.operation);
  rest->order = entry.order;
  rest->step = entry.step;
  rest->min_version = entry.min_version;
  rest->numbered = entry.numbered;
  rest->await_after = entry.await_after;
  rest->posts = entry.posts;
  rest->refused = entry.refused;
  rest->block = entry.block;
  rest->data = entry.data;
  if (entry.holds_buffer) {
    rest->holds_buffer = true;
    ++rest->operation->buffers;
  }
  return rest;
}

PendingRequest* RequestPool::NewGroup(const PendingRequest& entry, size_t group) {
  PendingRequest* one = NewRest(entry);
  one->revision = entry.revision;
  one->parts.push_back(entry.parts[group]);
  one->sequences.push_back(entry.sequences[group]);
  one->counts.push_back(entry.counts[group]);
  one->firsts.push_back(entry.firsts[group]);
  return one;
}

PendingRequest* RequestPool::SplitOff(PendingRequest* entry,
                                      absl::FunctionRef<bool(const PartState&)> same) {
  const auto stays = [&](size_t i) { return same(entry->table->parts[entry->parts[i]]); };
  size_t i = 0;
  while (i < entry->parts.size() && stays(i)) ++i;
  if (i == entry->parts.size()) return nullptr;
  PendingRequest* rest = NewRest(*entry);
  entry->KeepGroups(stays, rest);
  return rest;
}

void RequestPool::ReleaseBuffer(PendingRequest* entry) {
  if (!entry->holds_buffer) return;
  entry->holds_buffer = false;
  entry->block = nullptr;
  --entry->operation->buffers;
}

void RequestPool::Detach(PendingRequest* entry) {
  Operation* operation = entry->operation;
  if (operation == nullptr) return;
  ReleaseBuffer(entry);
  operation->entries.Remove(entry);
  entry->operation = nullptr;
  tracker_.operations->MaybeFree(operation);
}

// The entry is in no queue.
void RequestPool::Free(PendingRequest* entry) {
  tracker_.staging.StopAwaiting(entry);
  Detach(entry);
  tracker_.staging.GiveStaging(entry);
  entry->state = PendingRequest::State::kFree;
  --entry->table->entries;
  pool_.Put(entry);
}

}  // namespace verbena::client
