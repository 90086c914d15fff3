#include "shard/replica/log.h"

#include <algorithm>
#include <utility>

#include "shard/failpoints.h"

namespace verbena::shard {
namespace {

bool HasRows(ReplicaKind k) { return k == ReplicaKind::kRows || k == ReplicaKind::kRowStates; }

}  // namespace

ReplicaLog::~ReplicaLog() {
  for (Partition& p : partitions_) {
    for (Entry& e : p.entries) Free(&e.data, e.accumulator);
  }
  for (Retired& r : retired_) Free(&r);
}

ReplicaLog::Entry* ReplicaLog::Find(uint32_t partition, uint64_t sequence) {
  Partition& p = partitions_[partition];
  const uint64_t first = p.next - p.entries.size();
  if (sequence < first || sequence >= p.next) return nullptr;
  return &p.entries[sequence - first];
}

void ReplicaLog::Free(Buffer* data, bool accumulator) {
  if (data->data == nullptr) return;
  if (accumulator) {
    pool_.ReturnAccumulator(*data);
  } else {
    pool_.ReturnScratch(*data);
  }
  *data = {};
}

void ReplicaLog::Leave(uint32_t partition) {
  Partition& p = partitions_[partition];
  for (uint64_t s = std::max(p.acked, p.released) + 1; s <= p.sent; ++s) {
    Find(partition, s)->left = p.copy;
    p.leaving = true;
  }
}

void ReplicaLog::Discard(uint32_t partition, uint64_t sequence, Entry* entry) {
  Partition& p = partitions_[partition];
  LogRoom::Remove(&p.room, entry->catches_up, entry->bytes);
  if (entry->left.server == 0 || entry->data.data == nullptr) {
    Free(&entry->data, entry->accumulator);
    room_.Free(entry->catches_up, entry->bytes);
  } else {
    retired_.push_back({entry->left, partition, sequence, entry->data, entry->accumulator,
                        entry->catches_up, entry->bytes});
    entry->data = {};
  }
  room_.CheckCrowded(&p.room);
}

// ---- replicas of partitions ---------------------------------------------------------------------

void ReplicaLog::Lead(uint32_t partition, uint64_t epoch, uint64_t sequence) {
  Partition& p = partitions_[partition];
  p.epoch = epoch;
  for (Entry& e : p.entries) e.group.epoch = epoch;
  if (p.leads) return;
  p.leads = true;
  p.next = sequence + 1;
  p.sent = p.acked = p.released = sequence;
}

void ReplicaLog::Clear(uint32_t partition, ReplyStatus why) {
  Partition& p = partitions_[partition];
  Leave(partition);
  uint64_t sequence = p.next - p.entries.size();
  for (Entry& e : p.entries) {
    waiting_.Finish(&e.waiters, why);
    Discard(partition, sequence++, &e);
  }
  room_.Open();
  rooms_.Forget(partition);
  const bool dirty = p.dirty;
  p = Partition();
  p.dirty = dirty;
}

bool ReplicaLog::SetCopy(uint32_t partition, const CopyId& copy, uint64_t since, bool learner,
                         uint32_t last_table) {
  Partition& p = partitions_[partition];
  if (copy == p.copy && since == p.since) return false;
  // The previous replica is not waited for any more, and new entries are applied at once. Records
  // in flight to it may still be read when they are applied here.
  Leave(partition);
  rooms_.Forget(partition);
  p.copy = {};
  p.room.learning = false;
  p.required = false;
  Advance(partition, p.next - 1);
  p.copy = copy;
  p.since = since;
  p.differs = false;
  p.held_reads.clear();
  p.notes = {};
  p.cursor = Cursor();
  p.room.learning = copy.server != 0 && learner;
  if (copy.server == 0) return true;
  p.sent = p.acked = p.released = p.next - 1;
  p.cursor.last_table = last_table;
  p.cursor.complete = !learner;
  p.cursor.begun_as_learner = learner;
  p.cursor.begin = p.cursor.appended = p.next;
  Append begin;
  begin.partition = partition;
  begin.header.kind = ReplicaKind::kBegin;
  begin.header.flags = learner ? kReplicaLearner : 0;
  Add(std::move(begin));
  if (!learner) Require(&p);
  return true;
}

// Entries added from now on do not count before the replica has them.
void ReplicaLog::Require(Partition* partition) {
  partition->required = !VERBENA_FAILPOINT(shard, acknowledge_early);
}

bool ReplicaLog::MayCopy(uint32_t partition) const {
  const Partition& p = partitions_[partition];
  // Entries go in order: an older one that is left, is in front.
  return p.entries.empty() || p.next - p.entries.size() >= p.cursor.begin;
}

void ReplicaLog::Complete(uint32_t partition) {
  Partition& p = partitions_[partition];
  Append complete;
  complete.partition = partition;
  complete.header.kind = ReplicaKind::kComplete;
  p.cursor.end = Add(std::move(complete));
  p.cursor.complete = true;
  p.room.learning = false;
  Require(&p);
  room_.CheckCrowded(&p.room);
}

bool ReplicaLog::Replicated(uint32_t partition, uint32_t table) const {
  const Cursor& c = partitions_[partition].cursor;
  return c.complete || table > c.last_table || table < c.table || c.slices.contains(table);
}

bool ReplicaLog::Replicated(uint32_t partition, uint32_t table, uint32_t chunk) const {
  const Cursor& c = partitions_[partition].cursor;
  // The cursor stands at the next id when it has passed the last table: that one may be made later.
  const bool passed = table > c.last_table && !VERBENA_FAILPOINT(shard, skip_next_table);
  return Replicated(partition, table) &&
         (c.complete || passed || table != c.table || chunk < c.chunk);
}

// ---- applies ------------------------------------------------------------------------------------

uint64_t ReplicaLog::Add(Append append) {
  Partition& p = partitions_[append.partition];
  Entry e;
  e.table = append.table;
  e.header = append.header;
  e.header.since = p.since;
  e.data = append.data;
  e.borrowed = append.borrowed;
  e.accumulator = append.accumulator;
  e.owner = append.owner;
  e.local = append.local;
  e.required = p.required;
  e.waits = append.waits;
  e.applied = append.owner == nullptr;
  e.group.partition = append.partition;
  e.group.index = append.index;
  e.group.epoch = p.epoch;
  e.group.sequence = p.next++;
  e.group.count = append.header.count;
  // Decided here, where the records sent before this one are known.
  const bool to_come =
      p.cursor.sends(append.table) ||
      (VERBENA_FAILPOINT(shard, rows_never_come) && append.table > p.cursor.last_table &&
       p.cursor.begun_as_learner) ||
      (VERBENA_FAILPOINT(shard, forget_proved) && p.cursor.proved && !p.cursor.complete);
  if (append.header.kind == ReplicaKind::kRows && to_come) e.header.flags |= kReplicaToCome;
  if (HasRows(append.header.kind)) {
    rooms_.Logged(append.partition, append.table, e.group.sequence);
  }
  p.unapplied += e.applied ? 0 : 1;
  const bool appended = p.copy.server != 0;
  e.acked = !appended;
  if (appended) {
    e.bytes = static_cast<uint32_t>(sizeof(Entry)) + append.header.total_bytes;
    e.catches_up = catching_up_;
    room_.Add(&p.room, e.catches_up, e.bytes);
  }
  p.entries.push_back(std::move(e));
  if ((p.required || append.waits) && append.header.worker != 0) {
    waiting_.Add(&p.entries.back().waiters);
  }
  if (appended) {
    MarkUnsent(append.partition);
  } else {
    p.sent = p.acked = p.next - 1;
  }
  return p.next - 1;
}

void ReplicaLog::Applied(uint32_t partition, uint64_t sequence) {
  if (Entry* e = Find(partition, sequence)) {
    SetApplied(partition, e);
    if (!e->required || e->acked) waiting_.Finish(&e->waiters, ReplyStatus::kOk);
  }
  Pop(partition);
}

void ReplicaLog::SetApplied(uint32_t partition, Entry* entry) {
  if (!std::exchange(entry->applied, true)) --partitions_[partition].unapplied;
}

bool ReplicaLog::AllApplied(uint32_t partition, uint32_t table) const {
  const Partition& p = partitions_[partition];
  if (p.unapplied == 0) return true;
  return std::none_of(p.entries.begin(), p.entries.end(),
                      [&](const Entry& e) { return e.table == table && !e.applied; });
}

bool ReplicaLog::AllApplied(uint32_t partition, uint32_t table, uint32_t chunk) const {
  const Partition& p = partitions_[partition];
  if (p.unapplied == 0) return true;
  return std::none_of(p.entries.begin(), p.entries.end(), [&](const Entry& e) {
    return e.table == table && e.group.index == chunk && !e.applied;
  });
}

void ReplicaLog::Disown(uint32_t table, uint32_t partition) {
  for (Entry& e : partitions_[partition].entries) {
    if (e.table != table || e.owner == nullptr) continue;
    e.owner = nullptr;
    SetApplied(partition, &e);
  }
  rooms_.ForgetTable(partition, table);
  Pop(partition);
}

void ReplicaLog::Advance(uint32_t partition, uint64_t sequence) {
  Partition& p = partitions_[partition];
  while (p.acked < sequence) {
    Entry* e = Find(partition, ++p.acked);
    e->acked = true;
    // It may add entries, and end some; this one stays until it is applied.
    if (e->required && !e->applied) e->owner->Replicated(e->local, p.acked);
  }
  p.sent = std::max(p.sent, p.acked);
  rooms_.Answered(partition, p.acked);
  Pop(partition);
}

void ReplicaLog::Pop(uint32_t partition) {
  Partition& p = partitions_[partition];
  while (!p.entries.empty() && p.entries.front().acked && p.entries.front().applied) {
    Entry e = std::move(p.entries.front());
    Discard(partition, p.next - p.entries.size(), &e);
    p.entries.pop_front();
    waiting_.Finish(&e.waiters, ReplyStatus::kOk);
  }
}

void ReplicaLog::Abandon(uint32_t table, uint32_t partition, ReplyStatus why) {
  if (VERBENA_FAILPOINT(shard, forget_unapplied)) return;
  FailWaiters(table, partition, why);
  Disown(table, partition);
  Partition& p = partitions_[partition];
  p.differs = p.copy.server != 0;
  // The replica has an apply that is not here: after a failover reads would show it.
  if (p.differs && p.required) p.held_reads[table] = UINT64_MAX;
}

void ReplicaLog::HoldReads(uint32_t table, uint32_t partition) {
  Partition& p = partitions_[partition];
  absl::erase_if(p.held_reads, [&](const auto& held) { return held.second <= p.acked; });
  uint64_t sequence = p.next - p.entries.size();
  for (const Entry& e : p.entries) {
    const bool ahead = e.table == table && e.required && !e.acked && !e.applied;
    if (ahead) p.held_reads[table] = std::max(p.held_reads[table], sequence);
    ++sequence;
  }
}

bool ReplicaLog::MayRead(uint32_t partition, uint32_t table) const {
  const Partition& p = partitions_[partition];
  const auto held = p.held_reads.find(table);
  return held == p.held_reads.end() || held->second <= p.acked ||
         VERBENA_FAILPOINT(shard, read_unacknowledged);
}

// ---- notes --------------------------------------------------------------------------------------

void ReplicaLog::Note(uint32_t partition, uint32_t table, const ReplicaHeader& header) {
  partitions_[partition].notes.Put(table, header);
  noted_.insert(partition);
  AddNotes(partition);
}

void ReplicaLog::AddNotes(uint32_t partition) {
  Partition& p = partitions_[partition];
  if (p.notes.empty()) return;
  // No request waits for these.
  const ReplicaWaiters::Asker asker = waiting_.Suspend();
  const bool catching_up = std::exchange(catching_up_, false);
  while (!p.notes.empty() && (!room_.Full(p.room) || VERBENA_FAILPOINT(shard, unbounded_log) ||
                              VERBENA_FAILPOINT(shard, unbounded_notes))) {
    const ReplicaNotes::Note note = p.notes.Take();
    Append appended;
    appended.table = note.table;
    appended.partition = partition;
    appended.header = note.header;
    Add(std::move(appended));
  }
  if (p.notes.empty()) noted_.erase(partition);
  catching_up_ = catching_up;
  waiting_.Resume(asker);
}

void ReplicaLog::AddNotes() {
  const std::vector<uint32_t> noted(noted_.begin(), noted_.end());
  for (const uint32_t partition : noted) {
    // Its replica has changed since.
    if (partitions_[partition].notes.empty()) noted_.erase(partition);
    AddNotes(partition);
  }
}

void ReplicaLog::ForgetNotes(uint32_t table) {
  for (const uint32_t partition : noted_) partitions_[partition].notes.ForgetTable(table);
}

// ---- room ---------------------------------------------------------------------------------------

bool ReplicaLog::HasRoom(uint32_t partition) {
  Partition& p = partitions_[partition];
  if (p.copy.server == 0) return true;
  AddNotes(partition);
  if (VERBENA_FAILPOINT(shard, unbounded_log) || room_.HasRoom(&p.room)) return true;
  ++sink_.counters.replica_log_waits;
  return false;
}

void ReplicaLog::NewConfiguration(size_t learners) {
  room_.NewConfiguration(learners);
  for (Partition& p : partitions_) p.room.crowded = false;
}

// ---- waiters ------------------------------------------------------------------------------------

bool ReplicaLog::Join(uint32_t table, uint32_t partition, uint64_t worker,
                      uint64_t worker_sequence) {
  for (Entry& e : partitions_[partition].entries) {
    if (e.table != table || e.header.worker != worker ||
        e.header.worker_sequence != worker_sequence || !(e.required || e.waits) ||
        (e.applied && !e.required)) {
      continue;
    }
    waiting_.Add(&e.waiters);
    return true;
  }
  return false;
}

void ReplicaLog::FailWaiters(uint32_t table, uint32_t partition, ReplyStatus why) {
  for (Entry& e : partitions_[partition].entries) {
    if (e.table == table) waiting_.Finish(&e.waiters, why);
  }
}

// ---- the link to replicas -----------------------------------------------------------------------

void ReplicaLog::MarkUnsent(uint32_t partition) {
  Partition& p = partitions_[partition];
  if (p.dirty) return;
  p.dirty = true;
  unsent_.push_back(partition);
}

bool ReplicaLog::Take(std::vector<ReplicaRecord>* records, size_t most) {
  const size_t before = records->size();
  size_t done = 0;
  for (; done < unsent_.size() && records->size() - before < most; ++done) {
    Partition& p = partitions_[unsent_[done]];
    while (p.sent + 1 < p.next && records->size() - before < most) {
      const Entry& e = *Find(unsent_[done], ++p.sent);
      p.released = std::min(p.released, p.sent - 1);
      records->push_back({p.copy, e.table, e.group, e.header, e.data});
      if (e.borrowed != nullptr) records->back().data.data = const_cast<std::byte*>(e.borrowed);
    }
    if (p.sent + 1 < p.next) break;
    p.dirty = false;
  }
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<ptrdiff_t>(done));
  return records->size() > before;
}

void ReplicaLog::Released(const CopyId& from, uint32_t partition, uint64_t sequence) {
  if (partition >= partitions_.size()) return;
  const auto released = [&](Retired& r) {
    if (r.copy != from || r.partition != partition || r.sequence > sequence) return false;
    Free(&r);
    return true;
  };
  retired_.erase(std::remove_if(retired_.begin(), retired_.end(), released), retired_.end());
  Partition& p = partitions_[partition];
  if (p.copy == from) p.released = std::max(p.released, std::min(sequence, p.sent));
  if (!std::exchange(p.leaving, false)) return;
  uint64_t at = p.next - p.entries.size();
  for (Entry& e : p.entries) {
    if (at++ <= sequence && e.left == from) e.left = {};
    p.leaving |= e.left.server != 0;
  }
}

void ReplicaLog::Answered(const CopyId& from, uint32_t partition, uint64_t sequence) {
  if (partition >= partitions_.size()) return;
  const Partition& p = partitions_[partition];
  // Late: of a copy that was, or of a record that was sent twice.
  if (!p.leads || p.copy != from || sequence > p.sent) return;
  Advance(partition, sequence);
}

void ReplicaLog::ForgetCopy(const CopyId& copy) {
  const auto forgotten = [&](Retired& r) {
    if (r.copy != copy) return false;
    Free(&r);
    return true;
  };
  retired_.erase(std::remove_if(retired_.begin(), retired_.end(), forgotten), retired_.end());
  for (Partition& p : partitions_) {
    if (p.copy == copy) p.released = p.sent;
    for (Entry& e : p.entries) {
      if (e.left == copy) e.left = {};
    }
  }
}

void ReplicaLog::Rewind(uint32_t partition) {
  Partition& p = partitions_[partition];
  if (!p.leads || p.copy.server == 0 || p.sent == p.acked) return;
  p.sent = p.acked;
  MarkUnsent(partition);
}

}  // namespace verbena::shard
