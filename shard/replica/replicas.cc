#include "shard/replica/replicas.h"

#include <algorithm>

#include "proto/protocol_version.h"
#include "shard/engine_core.h"
#include "shard/failpoints.h"

namespace verbena::shard {

void Replicas::FollowView(const v1::ClusterView& view, const ViewDifference& what,
                          const std::vector<uint32_t>& followed) {
  restarted_.clear();
  if (what.all) {
    for (auto& [id, state] : core_.tables) {
      if (state.table != nullptr) Adopt(&state);
    }
  }
  const bool copies_changed = what.all || what.placement;
  learners_.clear();
  for (const v1::Partition& p : view.partitions()) {
    const uint32_t id = p.id();
    if (!core_.partitions[id].ours) {
      if (!core_.log.leads(id)) continue;
      core_.log.Clear(id, ReplyStatus::kWrongEpoch);
      KeepNumbers(id);
      continue;
    }
    core_.log.Lead(id, p.epoch(), core_.copies.sequence(id));
    const bool promoted = core_.partitions[id].promoted;
    std::vector<uint32_t> announced;
    for (const auto& [table, state] : core_.tables) {
      if (promoted && core_.copies.announced(id, table)) announced.push_back(table);
    }
    const uint64_t last_epoch = core_.copies.record_epoch(id);
    std::vector<CopySet::CopyOf> copies;
    for (const v1::Replica& r : p.followers()) {
      copies.push_back({{r.server(), r.shard()}, r.since(), false, promoted, last_epoch});
      // Programs of earlier versions take no payload there.
      CopySet::CopyOf& copy = copies.back();
      if (promoted && ProtocolInForce(view) >= 11) {
        copy.tail = core_.copies.EncodeTail(id, &copy.tail_bytes);
      }
    }
    core_.copies.Forget(id);
    for (const v1::Replica& r : p.learners()) {
      copies.push_back({{r.server(), r.shard()}, r.since(), true, false});
    }
    if (!p.learners().empty()) learners_.push_back(id);
    const ReplicaLog::NewCopies added = core_.log.SetCopies(id, copies, core_.highest_table);
    if (copies_changed) KeepNumbers(id);
    if (added.learner) {
      core_.log.cursor(id).total_bytes = ContentsOf(id).bytes;
      core_.log.Expect(id, RowMemoryOf(id));
    }
    if (added.kept) ReplicateChanges(id, announced);
    // Followers from the start are all new.
    if (added.follower) {
      AnnounceAll(id);
      ReplicateClocks(id);
    }
  }
  core_.log.NewConfiguration(learners_.size());
  for (const uint32_t id : followed) {
    if (core_.placement.evicting().contains(id) && !copies_changed)
      KeepNumbersOf(core_.tables.at(id));
  }
}

void Replicas::KeepNumbersOf(const TableState& state) {
  for (uint32_t slice = 0; slice < state.table->slices(); ++slice) {
    const uint32_t p = state.table->life(slice).partition;
    if (!core_.partitions[p].ours || !state.table->ready(slice)) continue;
    state.rows.table->SetReuses(slice, !core_.log.copies(p).learning());
  }
}

void Replicas::KeepNumbers(uint32_t partition) {
  for (const uint32_t id : core_.placement.evicting()) {
    const TableState& state = core_.tables.at(id);
    const uint32_t slice = state.table->slice_of(partition);
    if (slice == PartitionedTable::kNone || !state.table->ready(slice)) continue;
    state.rows.table->SetReuses(slice, !core_.log.copies(partition).learning());
  }
}

void Replicas::Announce(const TableState& state, uint32_t slice) {
  const uint32_t p = state.table->life(slice).partition;
  const uint32_t id = state.table->id();
  if (!core_.partitions[p].ours || core_.log.mode(p) == ReplicaLog::Mode::kAlone ||
      !core_.log.Replicated(p, id))
    return;
  // Lost and reset while it was being sent: there is nothing more to send of it.
  CopySet::Cursor& c = core_.log.cursor(p);
  if (c.sends(id)) c.slices.at(id).reset = true;
  core_.log.Note(p, id, core_.records.HeaderFor(ReplicaKind::kFresh, p, state).header);
}

void Replicas::AnnounceAll(uint32_t partition) {
  for (const auto& [id, state] : core_.tables) {
    const uint32_t slice = state.ReadySlice(partition);
    if (slice != PartitionedTable::kNone) Announce(state, slice);
  }
}

void Replicas::ReplicateChanges(uint32_t partition, absl::Span<const uint32_t> announced) {
  for (const auto& [id, state] : core_.tables) {
    const uint32_t slice = state.ReadySlice(partition);
    if (slice == PartitionedTable::kNone) continue;
    if (!std::binary_search(announced.begin(), announced.end(), id)) {
      Announce(state, slice);
    } else if (std::find(restarted_.begin(), restarted_.end(), std::pair(id, partition)) !=
               restarted_.end()) {
      core_.log.Note(partition, id,
                     core_.records.HeaderFor(ReplicaKind::kReset, partition, state).header);
    }
  }
  ReplicateClocks(partition);
}

void Replicas::ReplicateClocks(uint32_t partition) {
  for (const auto& [id, state] : core_.tables) {
    const uint32_t slice = state.ReadySlice(partition);
    if (slice == PartitionedTable::kNone) continue;
    state.consistency->ReplicateClocks(slice);
  }
}

void Replicas::Adopt(TableState* state) {
  for (auto it = state->marks.begin(); it != state->marks.end();) {
    const uint32_t partition = it->first;
    const CopyMarks& marks = it->second;
    if (!core_.partitions[partition].promoted) {
      ++it;
      continue;
    }
    const uint32_t slice = state->table->slice_of(partition);
    if (slice == PartitionedTable::kNone || !state->table->ready(slice)) {
      // The table has nothing there, or it is lost.
    } else if (marks.generation != state->job->members.generation()) {
      state->table->SetVersions(slice, 0);
      restarted_.emplace_back(state->table->id(), partition);
    } else {
      std::vector<WorkerMark> workers;
      for (const auto& [worker, mark] : marks.workers) workers.push_back(mark);
      state->consistency->Adopt(slice, workers);
    }
    it = state->marks.erase(it);
  }
}

void Replicas::AllowMoves(int64_t bytes) { core_.catch_up.Allow(bytes); }

int64_t Replicas::moves_allowed() const { return core_.catch_up.allowed(); }

bool Replicas::moves_held_back() const { return core_.catch_up.held_back(); }

PartitionContents Replicas::ContentsOf(uint32_t partition) const {
  PartitionContents contents;
  for (const auto& [id, state] : core_.tables) {
    const uint32_t slice = state.ReadySlice(partition);
    if (slice == PartitionedTable::kNone) continue;
    if (const DenseTable* dense = state.dense.table.get()) {
      contents.bytes += dense->slice(slice).chunks.size() * uint64_t{dense->ContentBytes()};
    } else {
      const EmbeddingTable& rows = *state.rows.table;
      const uint64_t count = rows.rows_in(slice);
      contents.bytes += count * (sizeof(uint64_t) + uint64_t{rows.content_bytes()});
      contents.rows += count;
    }
  }
  return contents;
}

uint64_t Replicas::RowMemoryOf(uint32_t partition) const {
  uint64_t bytes = 0;
  for (const auto& [id, state] : core_.tables) {
    const EmbeddingTable* const rows = state.rows.table.get();
    const uint32_t slice = rows == nullptr ? PartitionedTable::kNone : rows->slice_of(partition);
    if (slice == PartitionedTable::kNone || !rows->ready(slice)) continue;
    // Nothing idles yet.
    bytes += rows->rows(slice).BytesOf(rows->rows(slice).live()) / 9 * 8;
  }
  return bytes;
}

bool Replicas::Take(std::vector<ReplicaRecord>* records, size_t most) {
  core_.log.AddNotes();
  // There is more to look at, though there may be nothing to send.
  const bool more = core_.catch_up.ReplicateLearners();
  return core_.log.Take(records, most) || more;
}

void Replicas::Answered(const CopyId& from, uint32_t partition, uint64_t sequence,
                        ReplyStatus status) {
  core_.log.Released(from, partition, sequence);
  if (status != ReplyStatus::kOk && status != ReplyStatus::kDuplicate) return;
  core_.log.Answered(from, partition, sequence);
}

void Replicas::Lost(const CopyId& copy) {
  core_.log.ForgetCopy(copy);
  for (uint32_t p = 0; p < core_.partitions.size(); ++p) {
    core_.log.Rewind(p, copy);
  }
}

void Replicas::SetRoom(const CopyId& copy, const CopyRoom& room) {
  core_.log.rooms().Report(copy, room);
}

void Replicas::Resend(const CopyId& copy, uint32_t partition) { core_.log.Rewind(partition, copy); }

bool Replicas::CaughtUp(uint32_t partition) const {
  return partition < core_.partitions.size() && core_.log.copies(partition).CaughtUp();
}

bool Replicas::Learns(const CopyId& copy, uint32_t partition) const {
  return partition < core_.partitions.size() && core_.log.copies(partition).Learns(copy);
}

bool Replicas::Differs(const CopyId& copy, uint32_t partition) const {
  return partition < core_.partitions.size() && core_.log.copies(partition).Differs(copy);
}

bool Replicas::Seal(uint32_t partition, bool between_steps) {
  if (!core_.log.leads(partition)) return true;
  if (VERBENA_FAILPOINT(shard, seal_open_steps)) between_steps = false;
  if (between_steps) core_.log.Close(partition);
  for (const auto& [id, state] : core_.tables) {
    if (!between_steps || state.table == nullptr) continue;
    const uint32_t slice = state.table->slice_of(partition);
    if (slice == PartitionedTable::kNone || !state.table->ready(slice)) continue;
    if (state.consistency->HasOpenStep(slice)) return false;
  }
  core_.log.Seal(partition);
  return true;
}

void Replicas::Unseal(uint32_t partition) { core_.log.Unseal(partition); }

bool Replicas::sealed(uint32_t partition) const {
  return partition < core_.partitions.size() && core_.log.sealed(partition);
}

bool Replicas::Drained(uint32_t partition) const { return core_.log.Drained(partition); }

uint64_t Replicas::Settled(uint32_t partition) const {
  return partition < core_.partitions.size() ? core_.log.Settled(partition) : 0;
}

uint64_t Replicas::SettledForReads(uint32_t partition) const {
  const uint64_t settled = Settled(partition);
  return settled != 0 && core_.log.AppliedIsCommitted(partition) ? settled : 0;
}

std::vector<CopyStatus> Replicas::Status() const {
  std::vector<CopyStatus> status;
  for (uint32_t p = 0; p < core_.partitions.size(); ++p) {
    const PartitionInfo& info = core_.partitions[p];
    if (info.copy) {
      status.push_back({p, {}, core_.copies.learning(p), core_.copies.sequence(p), 0, 0, 0});
    } else if (info.ours) {
      const CopySet& copies = core_.log.copies(p);
      const CopySet::Cursor& c = copies.cursor();
      for (const CopySet::Copy& copy : copies) {
        const bool catches_up = copies.CatchesUp(copy);
        status.push_back({p, copy.id, catches_up, core_.log.last(p), copy.acked,
                          catches_up ? c.copied_bytes : 0, catches_up ? c.total_bytes : 0});
      }
    }
  }
  return status;
}

}  // namespace verbena::shard
