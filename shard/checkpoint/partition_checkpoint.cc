#include "shard/checkpoint/partition_checkpoint.h"

#include <utility>

namespace verbena::shard {

PartitionCheckpoint::PartitionCheckpoint(const PartitionCheckpointRequest& request,
                                         uint64_t memory_bytes, BufferPool* pool,
                                         CheckpointCounters* counters)
    : request_(request), pool_(*pool), counters_(*counters), budget_(memory_bytes, counters) {
  ++counters_.saves;
}

PartitionCheckpoint::~PartitionCheckpoint() {
  End(/*committed=*/false);
  for (const auto& [id, out] : out_) out.table->Release(out.held);
}

CheckpointParts PartitionCheckpoint::parts() {
  return {request_.id, request_.piece_bytes, &pool_, &budget_, &counters_};
}

void PartitionCheckpoint::Start() {
  for (const auto& table : tables_) table->Start();
}

void PartitionCheckpoint::Add(std::unique_ptr<TableCheckpoint> table) {
  by_id_[table->table()] = table.get();
  tables_.push_back(std::move(table));
}

bool PartitionCheckpoint::PartitionCheckpoints(uint32_t table) const {
  return by_id_.contains(table);
}

bool PartitionCheckpoint::Take(CheckpointPiece* piece) {
  if (ended_) return false;
  for (size_t i = 0; i < tables_.size(); ++i) {
    TableCheckpoint& table = *tables_[turn_];
    turn_ = (turn_ + 1) % tables_.size();
    *piece = {};
    HeldPiece held;
    if (!table.Take(piece, &held)) continue;
    piece->id = ++last_piece_;
    if (piece->kind != CheckpointPiece::Kind::kEnd) out_[piece->id] = {&table, held};
    ++counters_.pieces;
    counters_.bytes += piece->bytes();
    taken_bytes_ += piece->bytes();
    return true;
  }
  return false;
}

bool PartitionCheckpoint::Release(uint64_t piece) {
  const auto it = out_.find(piece);
  if (it == out_.end()) return false;
  it->second.table->Release(it->second.held);
  out_.erase(it);
  return true;
}

void PartitionCheckpoint::Abort(uint32_t table, Why why) {
  const auto it = by_id_.find(table);
  if (it == by_id_.end()) return;
  TableCheckpoint* saved = it->second;
  for (uint32_t slice = 0; slice < saved->slices().size(); ++slice) {
    const absl::Status status = why(slice, saved->slices()[slice]);
    if (!status.ok() && saved->Abort(slice)) status_.Update(status);
  }
}

void PartitionCheckpoint::Leave(uint32_t table) {
  const auto it = by_id_.find(table);
  if (it != by_id_.end()) it->second->Leave();
}

void PartitionCheckpoint::End(bool committed) {
  if (std::exchange(ended_, true)) return;
  absl::Status why = absl::CancelledError("the save has ended");
  for (const auto& t : tables_) {
    t->End(committed);
    Abort(t->table(), [&](uint32_t, const TableCheckpoint::LocalPartition&) { return why; });
  }
  ++(committed ? counters_.committed : counters_.aborted);
}

CheckpointProgress PartitionCheckpoint::progress() const {
  CheckpointProgress p;
  p.status = status_;
  p.out = static_cast<uint32_t>(out_.size());
  p.taken_bytes = taken_bytes_;
  p.memory_bytes = budget_.used();
  p.memory_limit = budget_.limit();
  for (const auto& table : tables_) {
    for (const TableCheckpoint::LocalPartition& s : table->slices()) {
      p.slices += s.state != TableCheckpoint::State::kNone;
      p.waiting += s.state == TableCheckpoint::State::kWaiting;
      p.ended += s.state == TableCheckpoint::State::kEnded;
      p.aborted += s.state == TableCheckpoint::State::kAborted;
    }
  }
  return p;
}

}  // namespace verbena::shard
