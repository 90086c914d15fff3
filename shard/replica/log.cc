#include "shard/replica/log.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shard/failpoints.h"

namespace verbena::shard {

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

void ReplicaLog::Discard(uint32_t partition, uint64_t sequence, Entry* entry) {
  Partition& p = partitions_[partition];
  LogRoom::Remove(&p.room, entry->catches_up, entry->bytes);
  std::vector<CopyId> readers = p.copies.Readers(sequence);
  if (readers.empty() || entry->data.data == nullptr) {
    Free(&entry->data, entry->accumulator);
    room_.Free(entry->catches_up, entry->bytes);
  } else {
    retired_.push_back({std::move(readers), partition, sequence, entry->data, entry->accumulator,
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
  p.committed = p.settled = sequence;
}

void ReplicaLog::Clear(uint32_t partition, ReplyStatus why) {
  Partition& p = partitions_[partition];
  p.copies.LeaveAll();
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

ReplicaLog::NewCopies ReplicaLog::SetCopies(uint32_t partition,
                                            absl::Span<const CopySet::CopyOf> copies,
                                            uint32_t last_table) {
  Partition& p = partitions_[partition];
  // Those that leave are not waited for any more. Records in flight to them may still be read when
  // they are applied here.
  const std::vector<CopyId> gone = p.copies.Keep(copies);
  for (const CopyId& copy : gone) rooms_.Forget(partition, copy);
  if (!gone.empty()) {
    p.room.learning = p.copies.learning();
    Quieten(partition, false);
    if (!p.copies.AnyDiffers()) {
      absl::erase_if(p.held_reads, [](const auto& held) { return held.second == UINT64_MAX; });
    }
    if (p.copies.empty()) {
      p.held_reads.clear();
      p.notes = {};
    }
    Advance(partition);
  }
  NewCopies added;
  const uint64_t sequence = p.next - 1;
  for (const CopySet::CopyOf& copy : copies) {
    if (p.copies.Find(copy.id) != nullptr) continue;
    (copy.learner ? added.learner : copy.kept ? added.kept : added.follower) = true;
    BeginCopy(partition, copy, sequence, last_table);
  }
  if (added.kept) p.resumes = p.next - 1;
  return added;
}

void ReplicaLog::BeginCopy(uint32_t partition, const CopySet::CopyOf& copy, uint64_t sequence,
                           uint32_t last_table) {
  Partition& p = partitions_[partition];
  p.copies.Add(copy, p.next, last_table);
  if (copy.learner) {
    p.notes.PassLearner();
    p.room.learning = true;
  }
  Append begin;
  begin.partition = partition;
  begin.header.kind = ReplicaKind::kBegin;
  begin.header.flags = copy.learner ? kReplicaLearner : copy.kept ? kReplicaResume : 0;
  begin.header.version = copy.kept ? sequence : 0;
  begin.header.applies = copy.kept ? copy.last_epoch : 0;
  begin.header.total_bytes = copy.tail_bytes;
  begin.data = copy.tail;
  Add(std::move(begin));
  if (!copy.learner) p.copies.Require(copy.id);
}

void ReplicaLog::Expect(uint32_t partition, uint64_t bytes) {
  Entry* const begin = Find(partition, cursor(partition).begin);
  begin->header.learner_kib = static_cast<uint32_t>(std::min<uint64_t>(bytes >> 10, UINT32_MAX));
}

bool ReplicaLog::MayCopy(uint32_t partition) {
  Partition& p = partitions_[partition];
  CopySet::Cursor& c = p.copies.cursor();
  for (uint64_t s = p.next - p.entries.size(); !c.may_copy && s < c.begin; ++s) {
    if (!Find(partition, s)->applied) return false;
  }
  c.may_copy = true;
  return true;
}

void ReplicaLog::Complete(uint32_t partition) {
  Partition& p = partitions_[partition];
  Append complete;
  complete.partition = partition;
  complete.header.kind = ReplicaKind::kComplete;
  complete.for_learner = true;
  p.copies.CompleteLearner(Add(std::move(complete)));
  p.room.learning = false;
  room_.CheckCrowded(&p.room);
}

bool ReplicaLog::Replicated(uint32_t partition, uint32_t table) const {
  const Partition& p = partitions_[partition];
  return p.copies.required() || p.copies.cursor().Covers(table);
}

bool ReplicaLog::Replicated(uint32_t partition, uint32_t table, uint32_t chunk) const {
  const Partition& p = partitions_[partition];
  return p.copies.required() || p.copies.cursor().Covers(table, chunk);
}

// ---- applies ------------------------------------------------------------------------------------

uint64_t ReplicaLog::Add(Append append) {
  Partition& p = partitions_[append.partition];
  const CopySet::Cursor& cursor = p.copies.cursor();
  Entry e;
  e.table = append.table;
  e.header = append.header;
  e.data = append.data;
  e.borrowed = append.borrowed;
  e.accumulator = append.accumulator;
  e.owner = append.owner;
  e.local = append.local;
  e.required = p.copies.required();
  e.waits = append.waits;
  e.applied = append.owner == nullptr;
  e.group.partition = append.partition;
  e.group.index = append.index;
  e.group.epoch = p.epoch;
  e.group.sequence = p.next++;
  e.group.count = append.header.count;
  // Decided here, where the records sent before this one are known.
  e.learner = cursor.begin;
  e.for_learner = append.for_learner;
  e.not_for_learner = p.copies.learning() && LearnerLacks(p, append);
  // The progress of workers came with the table, before its chunks.
  e.settles_learner = e.not_for_learner && !append.pass_learner && append.header.worker != 0 &&
                      cursor.Covers(append.table);
  const bool to_come =
      cursor.sends(append.table) ||
      (VERBENA_FAILPOINT(shard, rows_never_come) && append.table > cursor.last_table &&
       cursor.begun_as_learner) ||
      (VERBENA_FAILPOINT(shard, forget_proved) && cursor.proved && !cursor.complete);
  e.rows_to_come = append.header.kind == ReplicaKind::kRows && to_come;
  const ReplicaKind kind = append.header.kind;
  if (kind == ReplicaKind::kRows || kind == ReplicaKind::kRowStates) {
    rooms_.Logged(append.partition, append.table, e.group.sequence);
  }
  p.unapplied += e.applied ? 0 : 1;
  const bool appended = !p.copies.empty();
  if (appended) {
    e.bytes = static_cast<uint32_t>(sizeof(Entry)) + append.header.total_bytes;
    e.catches_up = catching_up_;
    room_.Add(&p.room, e.catches_up, e.bytes);
  }
  p.entries.push_back(std::move(e));
  if ((p.copies.required() || append.waits) && append.header.worker != 0) {
    waiting_.Add(&p.entries.back().waiters);
  }
  if (appended) MarkUnsent(append.partition);
  // While others are being committed, this one comes after them.
  if (!p.copies.required() && p.committed + 2 == p.next) p.committed = p.next - 1;
  return p.next - 1;
}

bool ReplicaLog::LearnerLacks(const Partition& p, const Append& append) {
  if (append.for_learner) return false;
  if (append.pass_learner) return true;
  switch (append.header.kind) {
    case ReplicaKind::kBegin:
      return false;
    case ReplicaKind::kDense:
    case ReplicaKind::kChunk:
      return !p.copies.cursor().Covers(append.table, append.local);
    default:
      return !p.copies.cursor().Covers(append.table);
  }
}

void ReplicaLog::Applied(uint32_t partition, uint64_t sequence) {
  if (Entry* e = Find(partition, sequence)) {
    SetApplied(partition, e);
    if (!e->required || sequence <= partitions_[partition].committed) {
      waiting_.Finish(&e->waiters, ReplyStatus::kOk);
    }
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

void ReplicaLog::Advance(uint32_t partition) {
  Partition& p = partitions_[partition];
  while (p.committed < std::min(p.copies.committed(), p.next - 1)) {
    const uint64_t sequence = ++p.committed;
    Entry* const e = Find(partition, sequence);
    if (e == nullptr || !e->required) continue;
    if (e->applied) {
      waiting_.Finish(&e->waiters, ReplyStatus::kOk);
    } else {
      // It may add entries, and end some; this one stays until it is applied.
      e->owner->Replicated(e->local, sequence);
    }
  }
  for (const CopySet::Copy& copy : p.copies) rooms_.Answered(partition, copy.id, copy.acked);
  Pop(partition);
}

void ReplicaLog::Pop(uint32_t partition) {
  Partition& p = partitions_[partition];
  const uint64_t done = std::min(p.copies.acknowledged(), p.committed);
  while (!p.entries.empty() && p.next - p.entries.size() <= done && p.entries.front().applied) {
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
  p.copies.AllDiffer();
  // Followers have an apply that is not here: after a failover reads would show it.
  if (p.copies.required()) p.held_reads[table] = UINT64_MAX;
}

void ReplicaLog::HoldReads(uint32_t table, uint32_t partition) {
  Partition& p = partitions_[partition];
  absl::erase_if(p.held_reads, [&](const auto& held) { return held.second <= p.committed; });
  uint64_t sequence = p.next - p.entries.size();
  for (const Entry& e : p.entries) {
    const bool ahead = e.table == table && e.required && sequence > p.committed && !e.applied;
    if (ahead) p.held_reads[table] = std::max(p.held_reads[table], sequence);
    ++sequence;
  }
}

bool ReplicaLog::MayRead(uint32_t partition, uint32_t table) const {
  const Partition& p = partitions_[partition];
  const auto held = p.held_reads.find(table);
  const bool known = held == p.held_reads.end() || held->second <= p.committed;
  const bool leaves = p.sealed && !VERBENA_FAILPOINT(shard, old_place_answers);
  return (known && p.copies.committed() >= p.resumes && !leaves) ||
         VERBENA_FAILPOINT(shard, read_unacknowledged);
}

// ---- notes --------------------------------------------------------------------------------------

void ReplicaLog::Note(uint32_t partition, uint32_t table, const ReplicaHeader& header) {
  Partition& p = partitions_[partition];
  p.notes.Put(table, header, p.copies.learning() && !p.copies.cursor().Covers(table));
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
    appended.pass_learner = note.pass_learner;
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
  if (p.sealed || p.quiet) return false;
  if (p.copies.empty()) return true;
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

ReplicaRecord ReplicaLog::RecordFor(const CopySet::Copy& copy, const Entry& entry) {
  ReplicaRecord record = {copy.id, entry.table, entry.group, entry.header, entry.data};
  if (entry.borrowed != nullptr) record.data.data = const_cast<std::byte*>(entry.borrowed);
  record.header.since = copy.since;
  const bool learner = entry.learner != 0 && copy.begin == entry.learner;
  const bool meant = entry.header.kind == ReplicaKind::kBegin ? copy.begin == entry.group.sequence
                     : learner                                ? !entry.not_for_learner
                                                              : !entry.for_learner;
  if (!meant) {
    const bool settles = learner && entry.settles_learner;
    record.header = {};
    record.header.kind = settles ? ReplicaKind::kSettle : ReplicaKind::kNothing;
    record.header.since = copy.since;
    record.group.index = record.group.count = 0;
    record.data = {};
    if (settles) {
      record.header.generation = entry.header.generation;
      record.header.worker = entry.header.worker;
      record.header.worker_sequence = entry.header.worker_sequence;
      record.header.worker_clock = entry.header.worker_clock;
    } else {
      record.table = 0;
    }
  } else if (learner && entry.rows_to_come) {
    record.header.flags |= kReplicaToCome;
  }
  return record;
}

bool ReplicaLog::Take(std::vector<ReplicaRecord>* records, size_t most) {
  const size_t before = records->size();
  size_t done = 0;
  for (; done < unsent_.size() && records->size() - before < most; ++done) {
    Partition& p = partitions_[unsent_[done]];
    bool more = false;
    for (const CopySet::Copy& copy : p.copies) {
      while (copy.sent + 1 < p.next && records->size() - before < most) {
        const uint64_t sequence = p.copies.HandOver(copy.id);
        records->push_back(RecordFor(copy, *Find(unsent_[done], sequence)));
      }
      more |= copy.sent + 1 < p.next;
    }
    if (more) break;
    p.dirty = false;
  }
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<ptrdiff_t>(done));
  return records->size() > before;
}

void ReplicaLog::Released(const CopyId& from, uint32_t partition, uint64_t sequence) {
  if (partition >= partitions_.size()) return;
  std::erase_if(retired_, [&](Retired& r) {
    if (r.partition != partition || r.sequence > sequence) return false;
    return FreeFor(from, &r);
  });
  partitions_[partition].copies.Released(from, sequence);
}

bool ReplicaLog::FreeFor(const CopyId& copy, Retired* retired) {
  if (std::erase(retired->copies, copy) == 0 || !retired->copies.empty()) return false;
  Free(retired);
  return true;
}

void ReplicaLog::Answered(const CopyId& from, uint32_t partition, uint64_t sequence) {
  if (partition >= partitions_.size()) return;
  Partition& p = partitions_[partition];
  if (p.leads && p.copies.Answered(from, sequence)) Advance(partition);
}

void ReplicaLog::ForgetCopy(const CopyId& copy) {
  std::erase_if(retired_, [&](Retired& r) { return FreeFor(copy, &r); });
  for (Partition& p : partitions_) p.copies.Released(copy, UINT64_MAX);
}

void ReplicaLog::Rewind(uint32_t partition, const CopyId& id) {
  Partition& p = partitions_[partition];
  if (p.leads && p.copies.Rewind(id)) MarkUnsent(partition);
}

}  // namespace verbena::shard
