#include "shard/checkpoint/chunk_checkpoint.h"

#include "shard/failpoints.h"

namespace verbena::shard {

ChunkCheckpoint::ChunkCheckpoint(DenseTable* table, const TableToCheckpoint& what,
                                 const CheckpointParts& parts)
    : TableCheckpoint(table->id(), parts),
      table_(table),
      sync_(table->spec().consistency() == v1::CONSISTENCY_SYNC),
      step_(what.step) {}

ChunkCheckpoint::~ChunkCheckpoint() { Leave(); }

void ChunkCheckpoint::Leave() {
  if (table_ != nullptr) table_->Watch(nullptr);
  table_ = nullptr;
}

void ChunkCheckpoint::Start() {
  records_.resize(table_->chunks());
  untaken_.resize(slices().size());
  for (uint32_t slice = 0; slice < slices().size(); ++slice) {
    if (!has(slice, TableCheckpoint::State::kWaiting)) continue;
    const std::vector<uint32_t>& chunks = table_->slice(slice).chunks;
    untaken_[slice] = static_cast<uint32_t>(chunks.size());
    if (!sync_) Open(slice, *table_, step_);
    for (const uint32_t chunk : chunks) {
      records_[chunk].state = State::kWaiting;
      records_[chunk].slice = slice;
      if (!sync_ || table_->chunk(chunk).version == step_) SetDue(chunk);
    }
  }
  table_->Watch(this);
}

void ChunkCheckpoint::SetDue(uint32_t chunk) {
  Record& r = records_[chunk];
  const DenseTable::Chunk& c = table_->chunk(chunk);
  r.state = State::kDue;
  r.version = c.version;
  r.applies = c.applies;
  due_.push_back(chunk);
  if (sync_ && table_->slice(r.slice).min_version >= step_) {
    Open(r.slice, *table_, step_);
  }
}

void ChunkCheckpoint::Pin(uint32_t chunk) {
  table_->MakeInitial(chunk);
  Record& r = records_[chunk];
  const DenseTable::Chunk& c = table_->chunk(chunk);
  r.parameters = c.parameters;
  r.parameters_pin = parts_.pool->Pin(c.parameters);
  r.optimizer = c.state;
  if (c.state != BufferPool::kNone) r.optimizer_pin = parts_.pool->Pin(c.state);
}

void ChunkCheckpoint::Unpin(Record* record) {
  parts_.pool->Unpin(record->parameters_pin);
  if (record->optimizer != BufferPool::kNone) parts_.pool->Unpin(record->optimizer_pin);
  if (record->kept) parts_.budget->Give(record->bytes);
  *record = {};
}

// ---- applies ------------------------------------------------------------------------------------

bool ChunkCheckpoint::BeforeChange(uint32_t chunk, bool content, bool force, ChunkSpares* spares) {
  if (!content || chunk >= records_.size() || VERBENA_FAILPOINT(shard, checkpoint_what_changes))
    return true;
  Record& r = records_[chunk];
  if (r.state != State::kDue && (r.state != State::kOut || r.kept)) return true;
  if ((force || parts_.budget->Fits(table_->ContentBytes())) && Lend(chunk, spares)) {
    r.bytes = table_->ContentBytes();
    parts_.budget->Take(r.bytes);
    r.kept = true;
    ++parts_.counters->kept_chunks;
    if (r.state == State::kOut) return true;
    Pin(chunk);
    r.state = State::kKept;
    kept_.push_back(chunk);
    return true;
  }
  // It can neither wait nor be kept.
  if (force) return r.state == State::kOut || Abort(r.slice);
  if (!r.waited) {
    r.waited = true;
    ++parts_.counters->waits;
    if (r.state == State::kDue) urgent_.push_back(chunk);
  }
  return false;
}

bool ChunkCheckpoint::Lend(uint32_t chunk, ChunkSpares* spares) {
  const DenseTable::Chunk& c = table_->chunk(chunk);
  spares->parameters = parts_.pool->Lend(c.parameters);
  if (spares->parameters == BufferPool::kNone) return false;
  if (c.state == BufferPool::kNone) return true;
  spares->state = parts_.pool->Lend(c.state);
  if (spares->state != BufferPool::kNone) return true;
  parts_.pool->DropParameters(spares->parameters);
  spares->parameters = BufferPool::kNone;
  return false;
}

void ChunkCheckpoint::Changed(uint32_t chunk) {
  if (chunk >= records_.size() || records_[chunk].state != State::kWaiting) return;
  if (table_->chunk(chunk).version == step_) SetDue(chunk);
}

// ---- pieces -------------------------------------------------------------------------------------

bool ChunkCheckpoint::Next(std::deque<uint32_t>* queue, State state, uint32_t* chunk) {
  while (!queue->empty()) {
    *chunk = queue->front();
    queue->pop_front();
    if (records_[*chunk].state == state) return true;
  }
  return false;
}

bool ChunkCheckpoint::TakeContent(CheckpointPiece* piece, HeldPiece* held) {
  uint32_t chunk = 0;
  // First the chunks that an apply waits for, then those that hold memory.
  if (!Next(&urgent_, State::kDue, &chunk) && !Next(&kept_, State::kKept, &chunk) &&
      !Next(&due_, State::kDue, &chunk)) {
    return false;
  }
  Record& r = records_[chunk];
  if (r.state == State::kDue) Pin(chunk);
  r.state = State::kOut;
  held->chunk = chunk;
  const DenseTable::Chunk& c = table_->chunk(chunk);
  piece->kind = CheckpointPiece::Kind::kChunk;
  Fill(r.slice, 1, piece);
  piece->version = r.version;
  piece->applies = r.applies;
  piece->chunk = c.id;
  piece->first_element = table_->layout().first_element(c.id);
  piece->count = c.elements;
  piece->dtype = table_->parameter_type();
  piece->parameters = {parts_.pool->buffer(r.parameters).data,
                       size_t{c.elements} * table_->layout().parameter_bytes};
  if (r.optimizer != BufferPool::kNone) {
    const auto* array = reinterpret_cast<const float*>(parts_.pool->buffer(r.optimizer).data);
    const size_t stride = table_->array_bytes() / sizeof(float);
    for (size_t i = 0; i < table_->state_arrays(); ++i, array += stride) {
      piece->state.emplace_back(array, c.elements);
    }
    if (table_->has_master()) piece->master = {array, c.elements};
  }
  ++parts_.counters->chunks;
  if (--untaken_[r.slice] == 0) ContentTaken(r.slice);
  return true;
}

void ChunkCheckpoint::Release(const HeldPiece& held) { Unpin(&records_[held.chunk]); }

void ChunkCheckpoint::Drop(uint32_t slice) {
  // It is given up before the table lets go of it.
  for (const uint32_t chunk : table_->slice(slice).chunks) {
    Record& r = records_[chunk];
    if (r.state == State::kNone || r.state == State::kOut) continue;
    if (r.state == State::kKept) {
      Unpin(&r);
    } else {
      r = {};
    }
  }
}

}  // namespace verbena::shard
