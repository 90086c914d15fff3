#include "shard/checkpoint/table_checkpoint.h"

#include <utility>

namespace verbena::shard {

void TableCheckpoint::AddLocalPartition(uint32_t slice, uint32_t partition, uint64_t epoch,
                                        std::vector<SavedPrefix> prefix) {
  if (slice >= slices_.size()) slices_.resize(slice + 1);
  LocalPartition& s = slices_[slice];
  s.state = State::kWaiting;
  s.partition = partition;
  s.epoch = epoch;
  s.prefix = std::move(prefix);
}

void TableCheckpoint::Fill(uint32_t slice, uint64_t items, CheckpointPiece* piece) {
  LocalPartition& s = slices_[slice];
  piece->table = table_;
  piece->partition = s.partition;
  piece->epoch = s.epoch;
  piece->pieces = s.pieces++;
  s.items += items;
}

void TableCheckpoint::ContentTaken(uint32_t slice) {
  slices_[slice].state = State::kTaken;
  taken_.push_back(slice);
}

bool TableCheckpoint::Take(CheckpointPiece* piece, HeldPiece* held) {
  if (TakeContent(piece, held)) return true;
  while (!taken_.empty()) {
    const uint32_t slice = taken_.front();
    taken_.pop_front();
    LocalPartition& s = slices_[slice];
    if (s.state != State::kTaken) continue;
    s.state = State::kEnded;
    piece->kind = CheckpointPiece::Kind::kEnd;
    Fill(slice, 0, piece);
    piece->version = s.version;
    piece->applies = s.applies;
    piece->incremental = s.incremental;
    piece->items = s.items;
    piece->prefix = std::move(s.prefix);
    piece->optimizer = std::move(s.optimizer);
    piece->optimizer_changes = s.optimizer_changes;
    return true;
  }
  return false;
}

bool TableCheckpoint::Abort(uint32_t slice) {
  if (slice >= slices_.size()) return false;
  State& state = slices_[slice].state;
  if (state == State::kNone || state == State::kEnded || state == State::kAborted) return false;
  state = State::kAborted;
  Drop(slice);
  return true;
}

}  // namespace verbena::shard
