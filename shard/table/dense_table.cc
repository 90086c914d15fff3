#include "shard/table/dense_table.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/table_limits.h"
#include "shard/codec/codec.h"
#include "shard/failpoints.h"
#include "shard/kernel/convert.h"
#include "shard/table/initializer.h"

namespace verbena::shard {
namespace {

float* Floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data); }
uint16_t* Halves(const Buffer& buffer) { return reinterpret_cast<uint16_t*>(buffer.data); }

size_t RoundUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

absl::Status CheckDense(const v1::Table& table) {
  if (const absl::Status s = CheckServable(table); !s.ok()) return s;
  const v1::TableSpec& spec = table.spec();
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("table ", table.id(), " \"", spec.name(), "\": ", why...));
  };
  if (spec.chunk_bytes() < 64 || spec.chunk_bytes() % 64 != 0) {
    return refuse("chunk_bytes is ", spec.chunk_bytes(), "; allowed: a positive multiple of 64");
  }
  uint64_t elements = spec.shape_size() == 0 ? 0 : 1;
  for (const uint64_t n : spec.shape()) {
    if (n == 0 || __builtin_mul_overflow(elements, n, &elements)) elements = 0;
  }
  if (!v1::DType_IsValid(spec.dtype()) || spec.dtype() == v1::DTYPE_UNSPECIFIED) {
    return refuse("dtype ", spec.dtype(), " is not served");
  }
  if (!v1::DType_IsValid(spec.gradient_dtype()) || spec.gradient_dtype() == v1::DTYPE_F16) {
    return refuse("gradient_dtype ", spec.gradient_dtype(), " is not served");
  }
  const uint64_t chunk_elements = LayoutOf(spec).chunk_elements;
  const uint64_t chunks = elements / chunk_elements + (elements % chunk_elements == 0 ? 0 : 1);
  if (chunks == 0 || chunks > kMostTableChunks) {
    return refuse("it has ", chunks, " chunks; allowed: 1..", kMostTableChunks);
  }
  return CheckTableOptimizer(spec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseTable>> DenseTable::Create(const v1::Table& table,
                                                               uint32_t partitions,
                                                               BufferPool* pool,
                                                               JobAccount* account) {
  if (const absl::Status s = CheckDense(table); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(table.spec().optimizer());
  if (!optimizer.ok()) return optimizer.status();
  return std::unique_ptr<DenseTable>(
      new DenseTable(table, partitions, pool, account, *std::move(optimizer)));
}

DenseTable::DenseTable(const v1::Table& table, uint32_t partitions, BufferPool* pool,
                       JobAccount* account, std::unique_ptr<Optimizer> optimizer)
    : PartitionedTable(table, partitions, account, std::move(optimizer)),
      layout_(LayoutOf(table.spec())),
      pool_(pool),
      type_(ParameterType(table.spec())),
      pull_type_(PullType(table.spec())),
      local_chunk_(layout_.chunks(), kNone) {
  const uint64_t largest = std::min<uint64_t>(layout_.elements, layout_.chunk_elements);
  parameter_buffer_bytes_ = RoundUp(largest * layout_.parameter_bytes);
  array_bytes_ = RoundUp(largest * sizeof(float));
}

uint64_t DenseTable::MemoryOfChunk(const v1::TableSpec& spec) {
  const DenseLayout layout = LayoutOf(spec);
  const absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(spec.optimizer());
  if (!optimizer.ok()) return 0;
  const uint64_t elements = std::min<uint64_t>(layout.elements, layout.chunk_elements);
  const size_t arrays =
      (*optimizer)->state_arrays() + (ParameterType(spec) != ElementType::kF32 ? 1 : 0);
  return RoundUp(elements * layout.parameter_bytes) + RoundUp(elements * sizeof(float)) * arrays;
}

DenseTable::~DenseTable() {
  for (Chunk& c : chunks_) FreeChunk(&c);
}

void DenseTable::FreeChunk(Chunk* chunk) {
  if (chunk->parameters == BufferPool::kNone) return;
  ForgetEncoded(chunk);
  pool_->DropParameters(chunk->parameters);
  if (chunk->state != BufferPool::kNone) pool_->DropParameters(chunk->state);
  chunk->parameters = chunk->state = BufferPool::kNone;
}

bool DenseTable::AllocateChunk(uint32_t id, uint32_t slice) {
  Chunk c;
  c.id = id;
  c.elements = layout_.elements_of(id);
  c.slice = slice;
  c.parameters = pool_->NewParameters(parameter_buffer_bytes_, account());
  if (c.parameters == BufferPool::kNone) return false;
  if (StateArrays() > 0) {
    c.state = pool_->NewParameters(array_bytes_ * StateArrays(), account());
    if (c.state == BufferPool::kNone) {
      pool_->DropParameters(c.parameters);
      return false;
    }
  }
  c.uninitialised = initialises() && !IsZero(spec().initializer());
  local_chunk_[id] = static_cast<uint32_t>(chunks_.size());
  slices_[slice].chunks.push_back(local_chunk_[id]);
  chunks_.push_back(c);
  return true;
}

void DenseTable::Release(uint32_t slice, bool gone) {
  LocalPartition& s = slices_[slice];
  for (const uint32_t index : s.chunks) {
    local_chunk_[chunks_[index].id] = kNone;
    FreeChunk(&chunks_[index]);
  }
  s.chunks.clear();
  s.min_version = UINT64_MAX;
  s.at_min = 0;
  set_state(slice, gone ? LocalPartitionState::kGone : LocalPartitionState::kAbsent);
}

// A job may be above its limit after that was lowered: then nothing new fits, and existing memory
// stays.
bool DenseTable::MayAcquire() const {
  return missing_bytes_ == 0 || pool_->MayFit(missing_bytes_, account());
}

// Chunks are counted before any is allocated: a table that does not fit would otherwise fill the
// memory of all, to give it back at once.
uint64_t DenseTable::BytesToAcquire(absl::Span<const Placement> placement, bool copies) const {
  const uint64_t bytes = parameter_buffer_bytes_ + array_bytes_ * StateArrays();
  uint64_t wanted = 0;
  for (uint32_t id = 0; id < layout_.chunks(); ++id) {
    const uint32_t partition = partition_of(id);
    const Placement& at = placement[partition];
    if (local_chunk_[id] != kNone || !at.ours || at.lost || at.copy != copies) continue;
    const uint32_t index = slice_of(partition);
    if (index == kNone || !gone(index)) wanted += bytes;
  }
  return wanted;
}

absl::Status DenseTable::NoMemory() const {
  std::string whose;
  if (pool_->refused_by_job()) {
    whose = absl::StrCat(" within the memory limit of job \"", spec().job(), "\", whose share of ",
                         "this server is ", account()->job().limit(), " bytes");
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("table ", id(), " \"", spec().name(), "\": no memory", whose, " for its ",
                   layout_.elements * layout_.parameter_bytes, " bytes of parameters and ",
                   layout_.elements * sizeof(float) * StateArrays(), " of optimizer state",
                   has_master() ? " and master copies" : ""));
}

// Primaries come first: without replicas only redundancy is missing.
absl::Status DenseTable::Acquire(absl::Span<const Placement> placement) {
  lacks_copies_ = false;
  if (VERBENA_FAILPOINT(shard, all_or_nothing)) {
    std::vector<Placement> alike(placement.begin(), placement.end());
    for (Placement& p : alike) p.copy = false;
    return AcquirePart(alike, false, &missing_bytes_) ? absl::OkStatus() : NoMemory();
  }
  if (!AcquirePart(placement, /*copies=*/false, &missing_bytes_)) return NoMemory();
  uint64_t missing = 0;
  lacks_copies_ = !AcquirePart(placement, /*copies=*/true, &missing);
  return absl::OkStatus();
}

bool DenseTable::AcquirePart(absl::Span<const Placement> placement, bool copies,
                             uint64_t* missing) {
  const auto first_new = static_cast<uint32_t>(chunks_.size());
  *missing = BytesToAcquire(placement, copies);
  bool enough = *missing == 0 || pool_->MayFit(*missing, account());
  std::vector<uint32_t> wanted;
  for (uint32_t id = 0; id < layout_.chunks(); ++id) {
    if (placement[partition_of(id)].copy != copies) continue;
    const uint32_t index = Claim(partition_of(id), placement[partition_of(id)]);
    if (index == kNone || local_chunk_[id] != kNone) continue;
    slices_.resize(slices());
    if (!ready(index)) wanted.push_back(index);
    set_state(index, LocalPartitionState::kReady);
    enough = enough && AllocateChunk(id, index);
    if (!enough) break;
  }
  if (!enough) {
    for (const uint32_t index : wanted) {
      Release(index, /*gone=*/false);
      set_state(index, LocalPartitionState::kStarved);
    }
    chunks_.resize(first_new);
    return false;
  }
  for (uint32_t i = first_new; i < chunks(); ++i) {
    LocalPartition& s = slices_[chunks_[i].slice];
    s.min_version = 0;
    s.at_min = static_cast<uint32_t>(s.chunks.size());
  }
  return true;
}

void DenseTable::MakeInitial(uint32_t index) const {
  const Chunk& c = chunks_[index];
  if (!c.uninitialised || !resident(index)) return;
  c.uninitialised = false;
  Initialize(spec().initializer(), layout_.first_element(c.id), Weights(c), c.elements);
  if (!has_master()) return;
  Round(BestIsa(), type_, Weights(c), Halves(pool_->buffer(c.parameters)), c.elements);
}

void DenseTable::SetVersions(uint32_t slice, uint64_t version) {
  if (version == 0) optimizer().Restart(slice);
  for (const uint32_t index : slices_[slice].chunks) chunks_[index].version = version;
  FindLeast(&slices_[slice]);
}

uint64_t DenseTable::parameter_bytes() const {
  uint64_t chunks = 0;
  for (const LocalPartition& s : slices_) chunks += s.chunks.size();
  return chunks * (parameter_buffer_bytes_ + (has_master() ? array_bytes_ : 0));
}

float* DenseTable::State(const Chunk& chunk) const {
  return chunk.state == BufferPool::kNone ? nullptr : Floats(pool_->buffer(chunk.state));
}

float* DenseTable::Weights(const Chunk& chunk) const {
  if (!has_master()) return Floats(pool_->buffer(chunk.parameters));
  return State(chunk) + state_arrays() * (array_bytes_ / sizeof(float));
}

ChunkView DenseTable::Pin(uint32_t index) {
  MakeInitial(index);
  const Chunk& c = chunks_[index];
  return {pool_->buffer(c.parameters), c.elements * layout_.parameter_bytes, c.version,
          pool_->Pin(c.parameters)};
}

// A copy, so that applies need not wait: they write the state in place.
bool DenseTable::PinState(const Chunk& c, uint8_t array, ChunkView* view) {
  const auto bytes = static_cast<uint32_t>(c.elements * sizeof(float));
  const Buffer buffer = pool_->TakeScratch(bytes, account());
  if (buffer.data == nullptr) return false;
  std::memcpy(buffer.data, StateArray(c, array), bytes);
  *view = {buffer, bytes, c.version, pool_->PinScratch(buffer)};
  return true;
}

bool DenseTable::PinToPull(uint32_t index, uint8_t array, ChunkView* view) {
  MakeInitial(index);
  if (array != 0) return PinState(chunks_[index], array, view);
  if (pull_type_ == type_) {
    *view = Pin(index);
    return true;
  }
  Chunk& c = chunks_[index];
  const auto bytes = static_cast<uint32_t>(PayloadBytes(pull_type_, c.elements));
  if (!pool_->PinAgain(c.encoded, account())) {
    const Buffer buffer = pool_->TakeToKeep(bytes, account());
    if (buffer.data == nullptr) return false;
    codec::Encode(BestIsa(), pull_type_, Floats(pool_->buffer(c.parameters)), nullptr, buffer.data,
                  c.elements);
    ForgetEncoded(&c);
    c.encoded = pool_->PinToKeep(buffer);
  }
  *view = {pool_->pinned_buffer(c.encoded), bytes, c.version, c.encoded};
  return true;
}

// On each change of the parameters, not of the version: versions restart with a job's next run.
void DenseTable::ForgetEncoded(Chunk* chunk) {
  pool_->Forget(chunk->encoded);
  chunk->encoded = kNoPin;
}

ApplyScalars DenseTable::ScalarsOf(const Chunk& chunk, const Optimizer& optimizer,
                                   const StepScale& scale) {
  ApplyScalars scalars = optimizer.Prepare(chunk.applies + 1);
  scalars.gradient_scale = scale.gradient;
  scalars.trust = scale.trust;
  return scalars;
}

double DenseTable::SquaredGradient(uint32_t index, absl::Span<const Source> sources,
                                   float divisor) const {
  if (Assigns(Effective(sources))) return 0;  // no gradient is applied
  return shard::SquaredGradient(BestIsa(), sources, divisor, chunks_[index].elements);
}

TrustParts DenseTable::MeasureTrust(uint32_t index, absl::Span<const Source> sources, float divisor,
                                    float gradient_scale) {
  if (Assigns(Effective(sources))) return {};  // no gradient is applied
  MakeInitial(index);
  const Chunk& c = chunks_[index];
  const Optimizer& with = *optimizer().At(c.slice, c.version);
  return shard::MeasureTrust(BestIsa(), with, ScalarsOf(c, with, {gradient_scale, 1}), sources,
                             divisor, Weights(c), State(c), array_bytes_ / sizeof(float),
                             c.elements);
}

bool DenseTable::Apply(uint32_t index, absl::Span<const Source> all, float divisor,
                       const StepScale& scale, bool force, OptimizerPointer with) {
  Chunk& c = chunks_[index];
  if (with == nullptr) with = optimizer().At(c.slice, c.version);
  const absl::Span<const Source> sources = Effective(all);
  const bool content = !sources.empty() || !with->ignores_zero();
  ChunkSpares spares;
  if (watch_ != nullptr && !watch_->BeforeChange(index, content, force, &spares)) return false;
  if (content) {
    MakeInitial(index);
    if (!FindWritable(c, force, &spares)) return false;
    if (spares.state != BufferPool::kNone) {
      std::memcpy(pool_->buffer(spares.state).data, State(c), array_bytes_ * StateArrays());
      pool_->Swap(c.state, spares.state);
      c.state = spares.state;
    }
    ForgetEncoded(&c);
    const uint32_t target = spares.parameters;
    const Buffer& to = pool_->buffer(target);
    if (Assigns(sources)) {
      WriteAssigned(c, sources.back(), *with, scale, to);
    } else {
      float* const weights = Weights(c);
      const RoundedCopy rounded = has_master() ? RoundedCopy{Halves(to), type_} : RoundedCopy{};
      float* const out = has_master() ? weights : Floats(to);
      ReduceAndApply(BestIsa(), *with, ScalarsOf(c, *with, scale), sources, divisor, weights, out,
                     State(c), array_bytes_ / sizeof(float), c.elements, rounded);
    }
    if (target != c.parameters) {
      pool_->Swap(c.parameters, target);
      c.parameters = target;
    }
  }
  c.applies = AppliesAfter(c.applies, sources);
  Advance(&c);
  if (watch_ != nullptr) watch_->Changed(index);
  return true;
}

void DenseTable::WriteAssigned(const Chunk& c, const Source& source, const Optimizer& with,
                               const StepScale& scale, const Buffer& to) {
  // The master copy is the parameters, too.
  if (source.array != 0 && source.array <= state_arrays()) {
    Accumulate(BestIsa(), {&source, 1}, StateArray(c, source.array), c.elements);
    const Buffer& from = pool_->buffer(c.parameters);
    if (to.data != from.data) std::memcpy(to.data, from.data, parameter_buffer_bytes_);
    return;
  }
  float* const out = has_master() ? Weights(c) : Floats(to);
  Accumulate(BestIsa(), {&source, 1}, out, c.elements);
  FollowAssigned(BestIsa(), with, ScalarsOf(c, with, scale), out, State(c),
                 array_bytes_ / sizeof(float), c.elements);
  if (has_master()) Round(BestIsa(), type_, out, Halves(to), c.elements);
}

bool DenseTable::FindWritable(const Chunk& c, bool force, ChunkSpares* to) {
  bool lent = false;
  if (c.state != BufferPool::kNone && to->state == BufferPool::kNone && pool_->pinned(c.state)) {
    // A save that was given up has not let go of it yet.
    if (!force) return false;
    to->state = pool_->Lend(c.state);
    lent = to->state != BufferPool::kNone;
  }
  if (to->parameters == BufferPool::kNone) {
    // The primary sends a record again that its replica has no memory for.
    to->parameters = pool_->WritableFor(c.parameters, force, /*retried=*/pool_->ForCopies());
    if (to->parameters == BufferPool::kNone && lent) {
      pool_->DropParameters(std::exchange(to->state, BufferPool::kNone));
    }
  }
  return to->parameters != BufferPool::kNone;
}

void DenseTable::Advance(Chunk* chunk) {
  LocalPartition& s = slices_[chunk->slice];
  const bool was_least = chunk->version == s.min_version;
  ++chunk->version;
  if (was_least && --s.at_min == 0) FindLeast(&s);
}

void DenseTable::FindLeast(LocalPartition* slice) {
  slice->min_version = UINT64_MAX;
  slice->at_min = 0;
  for (const uint32_t index : slice->chunks) {
    const uint64_t version = chunks_[index].version;
    if (version < slice->min_version) {
      slice->min_version = version;
      slice->at_min = 0;
    }
    if (version == slice->min_version) ++slice->at_min;
  }
}

uint32_t DenseTable::ContentBytes() const {
  return static_cast<uint32_t>(parameter_buffer_bytes_ + array_bytes_ * StateArrays());
}

void DenseTable::ReadContent(uint32_t index, std::byte* to) const {
  MakeInitial(index);
  const Chunk& c = chunks_[index];
  std::memcpy(to, pool_->buffer(c.parameters).data, parameter_buffer_bytes_);
  const size_t state = array_bytes_ * StateArrays();
  if (state > 0) std::memcpy(to + parameter_buffer_bytes_, State(c), state);
}

uint64_t DenseTable::Digest(uint32_t index) const {
  MakeInitial(index);
  const Chunk& c = chunks_[index];
  // The bytes behind the elements of the short last chunk are undefined.
  uint64_t digest = XXH3_64bits(pool_->buffer(c.parameters).data, c.elements * ElementBytes(type_));
  const auto* state = reinterpret_cast<const std::byte*>(State(c));
  for (size_t i = 0; i < StateArrays(); ++i, state += array_bytes_) {
    digest = XXH3_64bits_withSeed(state, c.elements * sizeof(float), digest);
  }
  return digest;
}

void DenseTable::WriteContent(uint32_t index, const std::byte* from) {
  Chunk& c = chunks_[index];
  c.uninitialised = false;  // all of it is written
  ForgetEncoded(&c);
  const uint32_t target = pool_->WritableFor(c.parameters, /*force=*/true);
  std::memcpy(pool_->buffer(target).data, from, parameter_buffer_bytes_);
  if (target != c.parameters) {
    pool_->Swap(c.parameters, target);
    c.parameters = target;
  }
  const size_t state = array_bytes_ * StateArrays();
  if (state > 0) std::memcpy(State(c), from + parameter_buffer_bytes_, state);
}

void DenseTable::WriteElements(uint32_t index, uint32_t first, absl::Span<const float> floats,
                               absl::Span<const uint16_t> halves, ElementType type) {
  MakeInitial(index);
  Chunk& c = chunks_[index];
  ForgetEncoded(&c);
  float* const weights = Weights(c) + first;
  if (type == ElementType::kF32) {
    std::copy(floats.begin(), floats.end(), weights);
  } else {
    Widen(BestIsa(), type, halves.data(), weights, halves.size());
  }
  if (!has_master()) return;
  Round(BestIsa(), type_, weights, Halves(pool_->buffer(c.parameters)) + first,
        floats.size() + halves.size());
}

void DenseTable::WriteState(uint32_t index, uint32_t first, size_t array,
                            absl::Span<const float> values) {
  MakeInitial(index);
  float* const to = State(chunks_[index]) + array * (array_bytes_ / sizeof(float)) + first;
  std::copy(values.begin(), values.end(), to);
}

void DenseTable::SetVersion(uint32_t index, uint64_t version, uint64_t applies) {
  Chunk& c = chunks_[index];
  c.version = version;
  c.applies = applies;
  FindLeast(&slices_[c.slice]);
}

}  // namespace verbena::shard
