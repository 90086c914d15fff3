// Ends: operations that end before their records, dead lanes, and freed memory.
#include <algorithm>
#include <utility>

#include "client/core/errors.h"
#include "client/core/journal.h"
#include "rdma/sim/sim_network.h"

namespace verbena::client {

// ---- operations ---------------------------------------------------------------------------------

void Journal::End(Operation* operation, absl::Status status) {
  if (!operation->live) return;
  operations_->End(operation, std::move(status));
  for (Entry* entry = operation->entries.front(); entry != nullptr;) {
    Entry* next = EntryList::Next(entry);
    entry->follow = nullptr;  // those pulls end too
    EndEntry(entry);
    entry = next;
  }
  if (operation->ends_step && !closed_ && !operation->table->dropped) {
    // Its pulls would have shown the commit of the step; now an await must request it.
    AddAwaits(operation->table, operation->step + 1);
  }
}

// Invariant 3.
void Journal::EndEntry(Entry* entry) {
  using State = Entry::State;
  const bool queued = entry->state == State::kQueued || entry->state == State::kDelayed;
  switch (entry->type) {
    case RecordType::kPushRows:
      // The server reads a copy of the caller's memory.
      if (!queued) return Detach(entry);
      [[fallthrough]];
    case RecordType::kPush:
      if (entry->state == State::kKept) return MakeEmpty(entry);
      // The server reads a copy here too.
      if (entry->state == State::kPosted && entry->device != nullptr) return Detach(entry);
      if (!queued) return;  // posted: until its reply, or its lane's end
      Unqueue(entry);
      if (entry->copy == Entry::Copy::kRunning) entry = LeaveToCopy(entry);
      if (entry->numbered && !closed_) {
        MakeEmpty(entry);
        return Enqueue(entry);
      }
      Uncount(entry);
      return Free(entry);
    case RecordType::kPull:
      if (queued || entry->state == State::kHeld) {
        Unqueue(entry);
        return Free(entry);
      }
      if (entry->state == State::kCopying) {
        if (entry->device->Cancel(entry->index)) Free(entry);
        return;
      }
      // The server writes to staging, not to the caller's memory.
      if (entry->staging != nullptr) ReleaseBuffer(entry);
      return;
    case RecordType::kEndStep:
      // sync, ssp: the step must end even if the caller does not wait for it, or other workers wait
      // forever.
      if (queued && !entry->numbered && !entry->table->sync && !entry->table->ssp) {
        Unqueue(entry);
        return Free(entry);
      }
      return Detach(entry);
    case RecordType::kLookup:
    case RecordType::kLookupBags:
    case RecordType::kIntent:
    case RecordType::kScan:
      if (!queued) return Detach(entry);  // the server writes to staging, which the entry keeps
      Unqueue(entry);
      return Free(entry);
    case RecordType::kAwait:
    case RecordType::kNorms:
    case RecordType::kTotals:
    case RecordType::kReplicate:  // between servers
    case RecordType::kBeacon:
      return;
  }
}

// A sync push that will not be sent: the end-step of its step is counted without it.
void Journal::Uncount(Entry* entry) {
  TableState* table = entry->table;
  if (!table->sync || entry->type != RecordType::kPush) return;
  PartState& part = table->parts[entry->part];
  uint32_t& pushed = part.pushed[entry->step & 1];
  if (entry->numbered && part.committed <= entry->step && pushed > 0) --pushed;
  entry->numbered = false;
  if (table->chunk_pushed[entry->chunk] == entry->step + 1) table->chunk_pushed[entry->chunk] = 0;
}

bool Journal::Over(const Entry& entry) {
  if (entry.operation != nullptr) return !entry.operation->live;
  return entry.type == RecordType::kPush && entry.elements > 0;  // it was detached
}

// A posted push whose buffer is released. The server may wait for it (sync: for its contribution;
// async: for its sequence), so it is resent without elements. That settles it, and it contributes
// zero.
void Journal::MakeEmpty(Entry* entry) {
  StopAwaiting(entry);
  Detach(entry);
  GiveStaging(entry);
  entry->device = nullptr;
  entry->data = nullptr;
  entry->elements = 0;
}

void Journal::EndAll(const absl::Status& status) {
  closed_ = true;
  norm_groups_.clear();
  while (Operation* operation = operations_->first_live()) End(operation, status);
  for (const auto& [id, table] : tables_) DropQueued(table.get());
}

void Journal::DropQueued(TableState* table) {
  for (uint32_t p = 0; p < table->parts.size(); ++p) DropKept(table, p);
  for (const auto& lane : table->lanes) {
    for (EntryQueue* queue : {&lane->queue, &lane->ended}) {
      while (Entry* entry = queue->front()) {
        queue->Remove(entry);
        Free(entry);
      }
    }
    for (EntryQueue* queue : {&lane->stream->pulls, &lane->stream->norms, &lane->stream->delayed}) {
      for (Entry* entry = queue->front(); entry != nullptr;) {
        Entry* next = EntryQueue::Next(entry);
        if (entry->table == table) {
          queue->Remove(entry);
          Free(entry);
        }
        entry = next;
      }
    }
  }
}

void Journal::DropTable(TableState* table, const absl::Status& status) {
  if (table->dropped) return;
  table->dropped = true;
  dropped_.push_back(table->id());
  if (last_table_ == table) last_table_ = nullptr;
  for (Operation* operation = operations_->first_live(); operation != nullptr;) {
    Operation* next = Operations::next_live(operation);
    if (operation->table == table) End(operation, status);
    operation = next;
  }
  DropQueued(table);
  table->residual.reset();  // it is as large as the table
  norms_dirty_ = true;
}

bool Journal::Refers(const TableState& table) const {
  bool refers = table.entries > 0;
  for (const auto& group : norm_groups_) {
    refers |= group->active != nullptr && group->active->Find(&table) != nullptr;
  }
  if (refers) return true;
  operations_->ForEach([&](const Operation& operation) {
    const bool used = operation.live || operation.buffers > 0 || !operation.entries.empty();
    refers |= used && operation.table == &table;
  });
  return refers;
}

// Otherwise a long-lived client would keep all dropped tables and check their lanes in every turn.
void Journal::ForgetDropped() {
  std::vector<uint32_t> kept;
  for (const uint32_t id : std::exchange(dropped_, {})) {
    const auto it = tables_.find(id);
    TableState* table = it->second.get();
    if (Refers(*table)) {
      kept.push_back(id);
      continue;
    }
    for (const auto& lane : table->lanes) std::erase(lane->stream->table_lanes, lane.get());
    for (const auto& group : norm_groups_) std::erase(group->tables, table);
    tables_.erase(it);
  }
  dropped_ = std::move(kept);
  // The first group has all clipped tables; the others have one table each.
  for (size_t i = norm_groups_.size(); i-- > 1;) {
    if (!norm_groups_[i]->tables.empty()) continue;
    norm_groups_.erase(norm_groups_.begin() + static_cast<ptrdiff_t>(i));
  }
}

bool Journal::Touches(const Operation& operation, uint32_t part) const {
  const auto waits = [&](const std::vector<Waiter>& waiters) {
    return std::any_of(waiters.begin(), waiters.end(), [&](const Waiter& waiter) {
      return waiter.operation.operation == &operation && waiter.operation.live();
    });
  };
  if (operation.commits > 0 &&
      (waits(operation.table->waiters) || waits(operation.table->parts[part].waiters))) {
    return true;
  }
  for (const Entry* entry = operation.entries.front(); entry != nullptr;
       entry = entry->operation_links.next) {
    if (entry->parts.empty()
            ? entry->part == part
            : std::find(entry->parts.begin(), entry->parts.end(), part) != entry->parts.end()) {
      return true;
    }
  }
  return false;
}

void Journal::LosePart(TableState* table, uint32_t part) {
  if (!std::exchange(table->parts[part].lost, true)) ++table->lost_parts;
  norms_dirty_ = true;
  for (Operation* operation = operations_->first_live(); operation != nullptr;) {
    Operation* next = Operations::next_live(operation);
    if (operation->table == table && Touches(*operation, part)) {
      End(operation, DataLossStatus(*session_, *table, part));
    }
    operation = next;
  }
  DropKept(table, part);
}

void Journal::MarkLost(TableState* table) {
  const auto& lost = table->info.lost_partitions();
  if (lost.empty() && table->lost_parts == 0) return;
  for (uint32_t p = 0; p < table->parts.size(); ++p) {
    PartState& part = table->parts[p];
    if (std::find(lost.begin(), lost.end(), part.partition) != lost.end()) {
      LosePart(table, p);
    } else if (std::exchange(part.lost, false)) {
      --table->lost_parts;  // it was reset
    }
  }
}

absl::Status Journal::CheckLost(const TableState& table, uint32_t first_chunk,
                                uint32_t chunks) const {
  const uint32_t count = std::min<uint32_t>(chunks, static_cast<uint32_t>(table.parts.size()));
  for (uint32_t c = first_chunk; c < first_chunk + count; ++c) {
    const uint32_t part = table.PartOf(c);
    if (table.parts[part].lost) return DataLossStatus(*session_, table, part);
  }
  return absl::OkStatus();
}

// ---- lanes --------------------------------------------------------------------------------------

void Journal::OnLaneDead(Stream* stream) {
  now_ = clock_->NowNanos();
  LeaveRail(stream);
  while (Entry* entry = stream->posted.back()) {
    Unqueue(entry);
    Lost(entry);
  }
  for (TableLane* lane : stream->table_lanes) {
    lane->reordering = false;
    while (Entry* entry = lane->ended.front()) {
      lane->ended.Remove(entry);
      entry->state = Entry::State::kHeld;
      Lost(entry);
    }
  }
  DropCopies(stream);
  stream->wanted = false;
  const bool queued = !stream->pulls.empty() || !stream->norms.empty() ||
                      std::any_of(stream->table_lanes.begin(), stream->table_lanes.end(),
                                  [](const TableLane* lane) { return !lane->queue.empty(); });
  // A rail is reopened even without waiting records: others carry its partitions meanwhile.
  const bool rail = stream->peer->rails.size() > 1;
  if ((queued || rail) && !closed_) lanes_->Want(stream);
}

// A posted record whose lane is dead: it is posted again at the current location of its partition,
// unless it is no longer needed.
void Journal::Lost(Entry* entry) {
  const bool over = Over(*entry);
  if (closed_ || entry->table->dropped) return Free(entry);
  switch (entry->type) {
    case RecordType::kPushRows:
      GiveStaging(entry);
      [[fallthrough]];
    case RecordType::kPush:
      // Other records may be posted before it.
      GiveStaging(entry);
      if (over) MakeEmpty(entry);
      return Enqueue(entry);
    case RecordType::kPull:
      return over ? Free(entry) : EnqueuePull(entry, true);
    case RecordType::kEndStep:
      if (entry->table->sync) Prune(entry);
      return entry->parts.empty() ? Free(entry) : Enqueue(entry);
    case RecordType::kAwait:
      Prune(entry);
      return entry->parts.empty() ? Free(entry) : EnqueuePull(entry, true);
    case RecordType::kNorms:
    case RecordType::kTotals:
      return ReturnNorms(entry);
    case RecordType::kLookup:
    case RecordType::kLookupBags:
    case RecordType::kIntent:
    case RecordType::kScan:
      if (entry->operation == nullptr) return Free(entry);
      GiveStaging(entry);
      return EnqueuePull(entry, true);
    case RecordType::kReplicate:  // between servers
    case RecordType::kBeacon:
      return;
  }
}

void Journal::OnLaneRefused(Stream* stream, const absl::Status& status) {
  const absl::Status error(
      status.code(), DescribeServer(*session_, *stream) + ": " + std::string(status.message()));
  for (Operation* operation = operations_->first_live(); operation != nullptr;) {
    Operation* next = Operations::next_live(operation);
    bool uses = false;
    for (const Entry* entry = operation->entries.front(); entry != nullptr;
         entry = entry->operation_links.next) {
      uses |= entry->stream == stream;
    }
    if (uses) End(operation, error);
    operation = next;
  }
}

// ---- memory -------------------------------------------------------------------------------------

void Journal::ReleaseBlock(uint64_t block_id) {
  lanes_->memory().ReleaseBlock(block_id);
  for (Operation* operation = operations_->first_live(); operation != nullptr;) {
    Operation* next = Operations::next_live(operation);
    for (const auto& block : operation->blocks) {
      if (block != nullptr && block->id() == block_id) {
        End(operation, absl::CancelledError("the region was destroyed"));
        break;
      }
    }
    operation = next;
  }
  for (const auto& stream : lanes_->streams()) {
    if (stream->lane == nullptr) continue;
    bool used = false;
    for (const Entry* entry = stream->posted.front(); entry != nullptr;
         entry = entry->queue_links.next) {
      used |= entry->holds_buffer && entry->block->id() == block_id;
    }
    // Failpoint: the memory is freed while the lane may still use it.
    if (used && !rdma::planted_bugs().release_buffer_at_deadline) {
      lanes_->Close(stream.get(), absl::CancelledError("a region it used was destroyed"));
    } else if (!used && stream->open()) {
      stream->lane->Forget(block_id);
    }
  }
}

bool Journal::InUse(uint64_t block_id) const {
  if (rdma::planted_bugs().release_buffer_at_deadline) return false;
  for (const auto& stream : lanes_->streams()) {
    for (const Entry* entry = stream->posted.front(); entry != nullptr;
         entry = entry->queue_links.next) {
      if (entry->holds_buffer && entry->block->id() == block_id) return true;
    }
  }
  return CopiesUse(block_id) || lanes_->memory().InUse(block_id);
}

// ---- timers -------------------------------------------------------------------------------------

bool Journal::RunTimers(int64_t now) {
  now_ = now;
  bool worked = RunDevices(now);
  while (Operation* operation = operations_->first_deadline()) {
    if (operation->deadline_ns > now) break;
    End(operation, WithNormHint(*operation, DeadlineStatus(*session_, *operation, now)));
    worked = true;
  }
  if (timer_ > now) return worked;
  timer_ = kNever;
  for (const auto& stream : lanes_->streams()) {
    for (Entry* entry = stream->delayed.front(); entry != nullptr;) {
      Entry* next = EntryQueue::Next(entry);
      if (entry->retry_at <= now) {
        stream->delayed.Remove(entry);
        if (IsNorms(*entry)) {
          EnqueueNorms(entry);
        } else {
          EnqueuePull(entry, entry->type == RecordType::kAwait);
        }
      } else {
        NoteTimer(entry->retry_at);
      }
      entry = next;
    }
    Touch(stream.get());  // pumping records the times of table lanes that still wait
  }
  return true;
}

int64_t Journal::NextTimerNanos() const {
  int64_t next = timer_;
  if (const Operation* first = operations_->first_deadline()) {
    next = std::min(next, first->deadline_ns);
  }
  for (const auto& device : devices_) next = std::min(next, device->NextTimerNanos());
  if (!dirty_.empty() || norms_dirty_ || moves_dirty_) next = 0;
  return next;
}

}  // namespace verbena::client
