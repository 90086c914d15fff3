// Queues: entries, their lanes, and changes of the view.
#include "client/core/journal.h"

#include <algorithm>
#include <utility>

#include "client/core/errors.h"
#include "client/core/planted_bugs.h"
#include "rdma/sim/sim_network.h"

namespace verbena::client {

// ---- entries ------------------------------------------------------------------------------------

Entry* Journal::NewEntry(RecordType type, TableState* table, Operation* operation) {
  Entry* entry = entries_.Get();
  entry->type = type;
  entry->state = Entry::State::kHeld;
  entry->numbered = entry->holds_buffer = entry->await_after = false;
  entry->posts = 0;
  entry->order = ++order_;
  entry->operation = operation;
  entry->table = table;
  ++table->entries;
  entry->stream = nullptr;
  entry->part = entry->chunk = entry->elements = entry->staging_bytes = 0;
  entry->step = entry->min_version = entry->norm = 0;
  entry->block = nullptr;
  entry->data = entry->staging = nullptr;
  entry->awaited_from = nullptr;
  entry->device = nullptr;
  entry->direct = false;
  entry->copy = Entry::Copy::kNone;
  entry->follow = nullptr;
  entry->parts.clear();
  entry->sequences.clear();
  entry->counts.clear();
  entry->firsts.clear();
  entry->refused = ReplyStatus::kOk;
  entry->backoff.Reset();
  entry->retry_at = entry->posted_at = 0;
  entry->revision = session_->view().revision();
  if (operation != nullptr) {
    operation->entries.PushBack(entry);
    ++operation->records;
  }
  return entry;
}

Entry* Journal::NewPush(Operation* operation, uint32_t chunk, std::byte* data) {
  TableState* table = operation->table;
  Entry* entry = NewEntry(RecordType::kPush, table, operation);
  entry->chunk = chunk;
  entry->part = table->PartOf(chunk);
  entry->step = table->sync ? operation->step : 0;
  entry->block = operation->blocks[0].get();
  entry->device = StagingFor(*entry->block);
  entry->data = data;
  entry->elements = table->layout.elements_of(chunk);
  entry->holds_buffer = true;
  ++operation->buffers;
  if (table->sync) table->chunk_pushed[chunk] = operation->step + 1;
  return entry;
}

Entry* Journal::NewPull(Operation* operation, uint32_t chunk, std::byte* data,
                        uint64_t min_version) {
  TableState* table = operation->table;
  Entry* entry = NewEntry(RecordType::kPull, table, operation);
  entry->chunk = chunk;
  entry->part = table->PartOf(chunk);
  entry->min_version = min_version;
  entry->block = operation->blocks[1].get();
  entry->device = StagingFor(*entry->block);
  entry->data = data;
  entry->elements = table->layout.elements_of(chunk);
  entry->holds_buffer = true;
  ++operation->buffers;
  return entry;
}

void Journal::ReleaseBuffer(Entry* entry) {
  if (!entry->holds_buffer) return;
  entry->holds_buffer = false;
  entry->block = nullptr;
  --entry->operation->buffers;
}

void Journal::Detach(Entry* entry) {
  Operation* operation = entry->operation;
  if (operation == nullptr) return;
  ReleaseBuffer(entry);
  operation->entries.Remove(entry);
  entry->operation = nullptr;
  operations_->MaybeFree(operation);
}

Staging* Journal::StagingOf(const Entry& entry) {
  if (entry.device != nullptr) {
    return entry.device->buffers(IsPull(entry.type) ? DeviceStaging::Direction::kToDevice
                                                    : DeviceStaging::Direction::kToHost);
  }
  const bool packs = entry.type == RecordType::kPush || entry.type == RecordType::kPushRows ||
                     entry.type == RecordType::kIntent;
  return packs ? packing_ : entry.type == RecordType::kNorms ? &norm_staging_ : staging_;
}

// The transport no longer accesses the staging.
void Journal::GiveStaging(Entry* entry) {
  if (entry->staging == nullptr) return;
  StagingOf(*entry)->Give(entry->staging, entry->staging_bytes);
  entry->staging = nullptr;
  entry->copy = Entry::Copy::kNone;
  TouchStalled();  // a record may have waited for it, on any lane
}

void Journal::TouchStalled() {
  for (const auto& stream : lanes_->streams()) {
    if (stream->stalled || !stream->pulls.empty() || !stream->norms.empty()) Touch(stream.get());
  }
}

// The entry is in no queue.
void Journal::Free(Entry* entry) {
  StopAwaiting(entry);
  Detach(entry);
  GiveStaging(entry);
  entry->state = Entry::State::kFree;
  --entry->table->entries;
  entries_.Put(entry);
}

// ---- starting -----------------------------------------------------------------------------------

void Journal::AddPushes(Operation* operation, uint32_t first, uint32_t count, size_t offset) {
  std::byte* data = operation->blocks[0]->data() + offset;
  for (uint32_t c = first; c < first + count; ++c) {
    Entry* push = NewPush(operation, c, data);
    data += operation->table->PushBytes(push->elements);
    Enqueue(push);
  }
}

void Journal::AddPulls(Operation* operation, uint32_t first, uint32_t count, size_t offset,
                       uint64_t min_version) {
  std::byte* data = operation->blocks[1]->data() + offset;
  for (uint32_t c = first; c < first + count; ++c) {
    Entry* pull = NewPull(operation, c, data, min_version);
    data += size_t{pull->elements} * operation->table->layout.parameter_bytes;
    EnqueuePull(pull, false);
  }
}

void Journal::AddPushPulls(Operation* operation, uint32_t first, uint32_t count, size_t push_offset,
                           size_t pull_offset, uint64_t min_version) {
  std::byte* from = operation->blocks[0]->data() + push_offset;
  std::byte* to = operation->blocks[1]->data() + pull_offset;
  for (uint32_t c = first; c < first + count; ++c) {
    Entry* push = NewPush(operation, c, from);
    push->follow = NewPull(operation, c, to, min_version);
    from += operation->table->PushBytes(push->elements);
    to += size_t{push->elements} * operation->table->layout.parameter_bytes;
    Enqueue(push);
  }
}

void Journal::AddEndStep(TableState* table, Operation* operation, bool await) {
  if (table->ssp) table->clock = std::max(table->clock, table->seen) + 1;
  for (const auto& lane : table->lanes) {
    Entry* entry = nullptr;
    for (uint32_t p = 0; p < table->parts.size(); ++p) {
      if (table->parts[p].lane != lane.get()) continue;
      if (entry == nullptr) {
        entry = NewEntry(RecordType::kEndStep, table, table->sync ? nullptr : operation);
        entry->step = table->step;
        entry->min_version = table->clock;
        entry->await_after = await;
      }
      entry->parts.push_back(p);
      if (entry->parts.size() == kMaxGroups) {
        EnqueueOn(lane.get(), entry);
        entry = nullptr;
      }
    }
    if (entry != nullptr) EnqueueOn(lane.get(), entry);
    // Drops accepted end-steps whose commit is known by now.
    for (Entry* ended = lane->ended.front(); ended != nullptr;) {
      Entry* next = EntryQueue::Next(ended);
      Prune(ended);
      if (ended->parts.empty()) {
        lane->ended.Remove(ended);
        Free(ended);
      }
      ended = next;
    }
  }
  ++table->step;
  norms_dirty_ |= table->clipped || table->trust;
}

void Journal::WaitForCommit(Operation* operation, uint32_t first, uint32_t count,
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

// ---- queues -------------------------------------------------------------------------------------

void Journal::Touch(Stream* stream) {
  if (stream->dirty) return;
  stream->dirty = true;
  dirty_.push_back(stream);
}

void Journal::NoteTimer(int64_t at) { timer_ = std::min(timer_, at); }

void Journal::EnqueueOn(TableLane* lane, Entry* entry) {
  // The new lane may have to post others first.
  if (entry->awaited_from != nullptr && !rdma::planted_bugs().hold_last_buffer) StopAwaiting(entry);
  Entry* before = nullptr;
  // New entries go to the end; returned ones go near the front.
  if (lane->queue.back() != nullptr && lane->queue.back()->order > entry->order) {
    before = lane->queue.front();
    while (before->order < entry->order) before = EntryQueue::Next(before);
  }
  lane->queue.InsertBefore(before, entry);
  // The previous lane may have had direct access to device memory that this one lacks.
  if (entry->block != nullptr) entry->device = StagingFor(*entry->block);
  entry->state = Entry::State::kQueued;
  entry->stream = lane->stream;
  Touch(lane->stream);
  lanes_->Want(lane->stream);
}

Entry* Journal::NewRest(const Entry& entry) {
  Entry* rest = NewEntry(entry.type, entry.table, entry.operation);
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

Entry* Journal::NewGroup(const Entry& entry, size_t group) {
  Entry* one = NewRest(entry);
  one->revision = entry.revision;
  one->parts.push_back(entry.parts[group]);
  one->sequences.push_back(entry.sequences[group]);
  one->counts.push_back(entry.counts[group]);
  one->firsts.push_back(entry.firsts[group]);
  return one;
}

Entry* Journal::SplitOff(Entry* entry, absl::FunctionRef<bool(const PartState&)> same) {
  const auto stays = [&](size_t i) { return same(entry->table->parts[entry->parts[i]]); };
  size_t i = 0;
  while (i < entry->parts.size() && stays(i)) ++i;
  if (i == entry->parts.size()) return nullptr;
  Entry* rest = NewRest(*entry);
  entry->KeepGroups(stays, rest);
  return rest;
}

void Journal::Enqueue(Entry* entry) {
  TableState* table = entry->table;
  if (entry->parts.empty()) return EnqueueOn(table->parts[entry->part].lane, entry);
  // A record whose parts are now on several lanes is divided into one for each.
  while (entry != nullptr) {
    TableLane* lane = table->parts[entry->parts[0]].lane;
    Entry* rest = SplitOff(entry, [lane](const PartState& part) { return part.lane == lane; });
    EnqueueOn(lane, entry);
    entry = rest;
  }
}

void Journal::EnqueuePull(Entry* entry, bool front) {
  TableState* table = entry->table;
  if (entry->parts.empty()) {
    return EnqueuePullOn(table->parts[entry->part].stream, entry, front);
  }
  while (entry != nullptr) {
    Stream* stream = table->parts[entry->parts[0]].stream;
    Entry* rest =
        SplitOff(entry, [stream](const PartState& part) { return part.stream == stream; });
    EnqueuePullOn(stream, entry, front);
    entry = rest;
  }
}

void Journal::EnqueuePullOn(Stream* stream, Entry* entry, bool front) {
  // A queued record holds no buffer: the records in front of it are posted first, and may need it.
  if (entry->awaited_from != nullptr && !rdma::planted_bugs().hold_last_buffer) StopAwaiting(entry);
  GiveStaging(entry);
  if (entry->block != nullptr) entry->device = StagingFor(*entry->block);
  entry->state = Entry::State::kQueued;
  entry->stream = stream;
  if (front) {
    stream->pulls.PushFront(entry);
  } else {
    stream->pulls.PushBack(entry);
  }
  Touch(stream);
  lanes_->Want(stream);
}

void Journal::AddAwait(TableState* table, uint64_t version, Stream* stream,
                       const std::vector<uint32_t>& parts) {
  if (parts.empty()) return;
  Entry* entry = NewEntry(RecordType::kAwait, table, nullptr);
  entry->min_version = version;
  entry->parts.assign(parts.begin(), parts.end());
  entry->stream = stream;
  EnqueuePull(entry, true);
}

void Journal::AddAwaits(TableState* table, uint64_t version) {
  for (const auto& lane : table->lanes) {
    std::vector<uint32_t> parts;
    for (uint32_t p = 0; p < table->parts.size(); ++p) {
      const PartState& part = table->parts[p];
      if (part.lane != lane.get() || part.lost || part.committed >= version) continue;
      parts.push_back(p);
      if (parts.size() == kMaxGroups) {
        AddAwait(table, version, lane->stream, parts);
        parts.clear();
      }
    }
    AddAwait(table, version, lane->stream, parts);
  }
}

void Journal::Unqueue(Entry* entry) {
  Stream* stream = entry->stream;
  const bool pull = IsPull(entry->type);
  switch (entry->state) {
    case Entry::State::kQueued:
      if (pull) {
        stream->pulls.Remove(entry);
      } else if (IsNorms(*entry)) {
        stream->norms.Remove(entry);
      } else {
        entry->table->LaneOn(stream)->queue.Remove(entry);
      }
      break;
    case Entry::State::kDelayed:
      stream->delayed.Remove(entry);
      break;
    case Entry::State::kPosted:
      stream->posted.Remove(entry);
      EndRange(&entry->range);
      if (entry->type == RecordType::kAwait || entry->type == RecordType::kNorms) {
        --stream->awaits_out;
      } else if (pull) {
        --stream->pulls_out;
      } else if (entry->type != RecordType::kTotals) {
        --entry->table->LaneOn(stream)->outstanding;
        CountOut(*entry, -1);
      }
      break;
    case Entry::State::kEnded:
      entry->table->LaneOn(stream)->ended.Remove(entry);
      break;
    case Entry::State::kKept:
      KeptOf(*entry)->Remove(entry);
      break;
    case Entry::State::kHeld:
    case Entry::State::kAnswered:
    case Entry::State::kCopying:
    case Entry::State::kFree:
      break;
  }
  entry->state = Entry::State::kHeld;
}

// ---- the view -----------------------------------------------------------------------------------

TableState* Journal::FindTable(uint32_t id) {
  if (last_table_ != nullptr && last_table_->id() == id) return last_table_;
  const auto it = tables_.find(id);
  if (it != tables_.end()) {
    if (it->second->dropped) return nullptr;
    return last_table_ = it->second.get();
  }
  const v1::Table* info = session_->FindTable(id);
  const auto& partitions = session_->view().partitions();
  if (info == nullptr || partitions.empty()) return nullptr;
  auto table = std::make_unique<TableState>();
  table->Init(*info, static_cast<uint32_t>(partitions.size()));
  Route(table.get());
  // No other view may arrive, so partitions lost in this one must be known from the first call on.
  if (!planted_bugs().learn_losses_late) MarkLost(table.get());
  last_table_ = table.get();
  tables_[id] = std::move(table);
  Spread(*last_table_);
  return last_table_;
}

// Moves queued records to the current lanes of their parts. Posted ones move when their lane is
// dead.
void Journal::Reroute(TableState* table, std::vector<Entry*> more) {
  std::vector<Entry*> moving = std::move(more), pulls;
  for (const auto& lane : table->lanes) {
    while (Entry* entry = lane->queue.front()) {
      lane->queue.Remove(entry);
      moving.push_back(entry);
    }
  }
  for (const auto& stream : lanes_->streams()) {
    for (EntryQueue* queue : {&stream->pulls, &stream->norms, &stream->delayed}) {
      for (Entry* entry = queue->front(); entry != nullptr;) {
        Entry* next = EntryQueue::Next(entry);
        if (entry->table == table) {
          queue->Remove(entry);
          entry->state = Entry::State::kHeld;
          entry->backoff.Reset();  // no server has refused it there
          pulls.push_back(entry);
        }
        entry = next;
      }
    }
  }
  std::sort(moving.begin(), moving.end(),
            [](const Entry* a, const Entry* b) { return a->order < b->order; });
  for (Entry* entry : moving) Enqueue(entry);
  for (Entry* entry : pulls) {
    if (IsNorms(*entry)) {
      ReturnNorms(entry);
    } else {
      EnqueuePull(entry, entry->type == RecordType::kAwait);
    }
  }
}

// Whether its parts are elsewhere now.
bool Journal::FollowView(TableState* table) {
  if (table->dropped) return false;
  const v1::Table* info = session_->FindTable(table->id());
  if (info == nullptr) {
    DropTable(table, absl::NotFoundError("table '" + table->name() + "' was dropped"));
    return false;
  }
  table->info = *info;
  const bool moved = Route(table);
  if (moved) FollowMoved(table);
  MarkLost(table);
  return moved;
}

void Journal::OnView(const ViewDifference& what) {
  now_ = clock_->NowNanos();
  bool moved = false;
  if (any_dropped_) ForgetDropped();
  if (what.all || what.placement) {
    for (const auto& [id, table] : tables_) moved |= FollowView(table.get());
  } else {
    for (const uint32_t id : what.tables) {
      const auto it = tables_.find(id);
      if (it != tables_.end()) moved |= FollowView(it->second.get());
    }
  }
  if (moved) LeaveOldLanes();
  FollowNormTables(what);
  norms_dirty_ = true;
  // Epochs have changed: records that waited for them may be posted.
  for (const auto& stream : lanes_->streams()) Touch(stream.get());
}

}  // namespace verbena::client
