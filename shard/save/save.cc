#include "shard/save/save.h"

#include <utility>

namespace verbena::shard {

Save::Save(const SaveRequest& request, uint64_t memory_bytes, BufferPool* pool,
           SaveCounters* counters)
    : request_(request), pool_(*pool), counters_(*counters), budget_(memory_bytes, counters) {
  ++counters_.saves;
}

Save::~Save() {
  End(/*committed=*/false);
  for (const auto& [id, out] : out_) out.table->Release(out.held);
}

SaveParts Save::parts() {
  return {request_.id, request_.piece_bytes, &pool_, &budget_, &counters_};
}

void Save::Start() {
  for (const auto& table : tables_) table->Start();
}

void Save::Add(std::unique_ptr<TableSave> table) {
  by_id_[table->table()] = table.get();
  tables_.push_back(std::move(table));
}

bool Save::Saves(uint32_t table) const { return by_id_.contains(table); }

bool Save::Take(SavePiece* piece) {
  if (ended_) return false;
  for (size_t i = 0; i < tables_.size(); ++i) {
    TableSave& table = *tables_[turn_];
    turn_ = (turn_ + 1) % tables_.size();
    *piece = {};
    HeldPiece held;
    if (!table.Take(piece, &held)) continue;
    piece->id = ++last_piece_;
    if (piece->kind != SavePiece::Kind::kSlice) out_[piece->id] = {&table, held};
    ++counters_.pieces;
    counters_.bytes += piece->bytes();
    taken_bytes_ += piece->bytes();
    return true;
  }
  return false;
}

bool Save::Release(uint64_t piece) {
  const auto it = out_.find(piece);
  if (it == out_.end()) return false;
  it->second.table->Release(it->second.held);
  out_.erase(it);
  return true;
}

void Save::Abort(uint32_t table, Why why) {
  const auto it = by_id_.find(table);
  if (it == by_id_.end()) return;
  TableSave* saved = it->second;
  for (uint32_t slice = 0; slice < saved->slices().size(); ++slice) {
    const absl::Status status = why(slice, saved->slices()[slice]);
    if (!status.ok() && saved->Abort(slice)) status_.Update(status);
  }
}

void Save::Leave(uint32_t table) {
  const auto it = by_id_.find(table);
  if (it != by_id_.end()) it->second->Leave();
}

void Save::End(bool committed) {
  if (std::exchange(ended_, true)) return;
  absl::Status why = absl::CancelledError("the save has ended");
  for (const auto& t : tables_) {
    t->End(committed);
    Abort(t->table(), [&](uint32_t, const TableSave::Slice&) { return why; });
  }
  ++(committed ? counters_.committed : counters_.aborted);
}

SaveProgress Save::progress() const {
  SaveProgress p;
  p.status = status_;
  p.out = static_cast<uint32_t>(out_.size());
  p.taken_bytes = taken_bytes_;
  p.memory_bytes = budget_.used();
  p.memory_limit = budget_.limit();
  for (const auto& table : tables_) {
    for (const TableSave::Slice& s : table->slices()) {
      p.slices += s.state != TableSave::State::kNone;
      p.waiting += s.state == TableSave::State::kWaiting;
      p.ended += s.state == TableSave::State::kEnded;
      p.aborted += s.state == TableSave::State::kAborted;
    }
  }
  return p;
}

}  // namespace verbena::shard
