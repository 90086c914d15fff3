#include "shard/table/embedding_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/table_spec.h"
#include "shard/kernel/fused_pass.h"
#include "shard/table/initializer.h"
#include "shard/table/row_lookahead.h"

namespace verbena::shard {
namespace {

absl::Status CheckEmbedding(const v1::Table& table) {
  if (const absl::Status s = CheckServable(table); !s.ok()) return s;
  const v1::TableSpec& spec = table.spec();
  if (spec.dim() < 1 || spec.dim() > kMaxRowElements) {
    return absl::InvalidArgumentError(absl::StrCat("table ", table.id(), " \"", spec.name(),
                                                   "\": dim is ", spec.dim(), "; allowed: 1..",
                                                   kMaxRowElements));
  }
  if (ParameterType(spec) != ElementType::kF32 || GradientType(spec) != ElementType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat("table ", table.id(), " \"", spec.name(), "\": dtype ", spec.dtype(),
                     " with gradient_dtype ", spec.gradient_dtype(), " is not served with rows"));
  }
  return CheckTableOptimizer(spec);
}

uint32_t StateOf(const Optimizer& optimizer, uint32_t dim) {
  return static_cast<uint32_t>(optimizer.state_arrays()) * (optimizer.row_wise() ? 1 : dim);
}

float* Floats(std::byte* data) { return reinterpret_cast<float*>(data); }

}  // namespace

absl::StatusOr<std::unique_ptr<EmbeddingTable>> EmbeddingTable::Create(const v1::Table& table,
                                                                       uint32_t partitions,
                                                                       BufferPool* pool,
                                                                       JobAccount* account) {
  if (const absl::Status s = CheckEmbedding(table); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(table.spec().optimizer());
  if (!optimizer.ok()) return optimizer.status();
  return std::unique_ptr<EmbeddingTable>(
      new EmbeddingTable(table, partitions, pool, account, *std::move(optimizer)));
}

EmbeddingTable::EmbeddingTable(const v1::Table& table, uint32_t partitions, BufferPool* pool,
                               JobAccount* account, std::unique_ptr<Optimizer> optimizer)
    : SlicedTable(table, partitions, account),
      dim_(table.spec().dim()),
      optimizer_(std::move(optimizer)),
      pool_(pool),
      shape_(dim_, StateOf(*optimizer_, dim_), optimizer_->counts_applies()),
      content_bytes_(sizeof(uint32_t) + (dim_ + shape_.state) * sizeof(float)),
      arena_(shape_.few_bytes(), shape_.many_bytes(), pool, account),
      admission_(table.spec().admission(), partitions, pool, account),
      memos_(kMemos) {}

void EmbeddingTable::Release(uint32_t slice, bool gone) {
  slices_[slice] = {};
  admission_.Forget(slice);
  arena_.Trim();
  set_state(slice, gone ? SliceState::kGone : SliceState::kAbsent);
}

absl::Status EmbeddingTable::Acquire(absl::Span<const Placement> placement) {
  for (uint32_t p = 0; p < placement.size(); ++p) {
    const uint32_t index = Claim(p, placement[p]);
    if (index == kNone || ready(index)) continue;
    slices_.resize(slices());
    slices_[index].rows = std::make_unique<RowStore>(shape_, &spec().initializer(), &arena_);
    set_state(index, SliceState::kReady);
  }
  return absl::OkStatus();
}

uint64_t EmbeddingTable::row_count() const {
  uint64_t rows = 0;
  for (const Slice& s : slices_) rows += s.rows != nullptr ? s.rows->size() : 0;
  return rows;
}

uint64_t EmbeddingTable::parameter_bytes() const { return row_count() * row_bytes(); }

EmbeddingTable::Admitted EmbeddingTable::Admit(uint32_t slice, absl::Span<const uint64_t> keys,
                                               absl::Span<const float> rows) {
  if (admission_.always()) return {keys, rows, {}};
  found_.resize(keys.size());
  slices_[slice].rows->Find(keys, found_.data());
  admitted_keys_.clear();
  admitted_rows_.clear();
  refused_keys_.clear();
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool admitted =
        found_[i] != RowStore::kNone || admission_.Admits(slice, slices_[slice].version, keys[i]);
    if (!admitted) {
      if (refused_keys_.empty()) {
        admitted_keys_.assign(keys.begin(), keys.begin() + i);
        admitted_rows_.assign(rows.begin(), rows.begin() + i * dim_);
      }
      refused_keys_.push_back(keys[i]);
    } else if (!refused_keys_.empty()) {
      admitted_keys_.push_back(keys[i]);
      const auto row = rows.subspan(i * dim_, dim_);
      admitted_rows_.insert(admitted_rows_.end(), row.begin(), row.end());
    }
  }
  if (refused_keys_.empty()) return {keys, rows, {}};
  return {admitted_keys_, admitted_rows_, refused_keys_};
}

void EmbeddingTable::BeginApply(uint32_t slice) { applying_ = &slices_[slice]; }

const ApplyScalars& EmbeddingTable::ScalarsFor(uint64_t t) {
  const uint64_t step = applying_->applies + 1;
  Memo& m = memos_[t % kMemos];
  if (m.t != t || m.step != step) m = {step, t, optimizer_->Prepare(step, t)};
  return m.scalars;
}

void EmbeddingTable::ApplyRow(uint32_t row, absl::Span<const Source> sources, float divisor) {
  RowStore& rows = *applying_->rows;
  float* parameters = rows.parameters(row);
  ReduceAndApply(BestIsa(), *optimizer_, ScalarsFor(uint64_t{rows.applies(row)} + 1), sources,
                 divisor, parameters, parameters, rows.state(row), dim_, dim_);
  rows.CountApply(row);
  if (applying_->changed != nullptr) applying_->changed->Mark(row);
}

void EmbeddingTable::EndApply() {
  ++applying_->applies;
  ++applying_->version;
  if (watch_ != nullptr) watch_->Changed(static_cast<uint32_t>(applying_ - slices_.data()));
}

void EmbeddingTable::ReadRow(uint32_t slice, uint32_t row, uint64_t* key,
                             std::byte* content) const {
  const RowStore& rows = *slices_[slice].rows;
  *key = rows.key(row);
  const uint32_t applies = rows.applies(row);
  std::memcpy(content, &applies, sizeof(applies));
  std::memcpy(content + sizeof(applies), rows.parameters(row), content_bytes_ - sizeof(applies));
}

void EmbeddingTable::WriteRow(uint32_t slice, uint32_t row, const std::byte* content) {
  RowStore& rows = *slices_[slice].rows;
  uint32_t applies = 0;
  std::memcpy(&applies, content, sizeof(applies));
  rows.SetApplies(row, applies);
  std::memcpy(rows.parameters(row), content + sizeof(applies), content_bytes_ - sizeof(applies));
}

void EmbeddingTable::LoadRow(uint32_t slice, uint32_t row, uint32_t applies,
                             const float* parameters, absl::Span<const float* const> state) {
  RowStore& rows = *slices_[slice].rows;
  rows.SetApplies(row, applies);
  std::copy_n(parameters, dim_, rows.parameters(row));
  float* to = rows.state(row);
  for (const float* array : state) to = std::copy_n(array, state_width(), to);
}

bool EmbeddingTable::Gather(absl::Span<const Group> groups, absl::Span<const uint64_t> keys,
                            ChunkView* view) {
  const size_t bytes = keys.size() * row_bytes();
  const Buffer buffer = pool_->TakeScratch(bytes, account());
  if (buffer.data == nullptr) return false;
  float* out = Floats(buffer.data);
  RowLookahead ahead;
  size_t first = 0;
  for (const Group& group : groups) {
    ahead.Add(slices_[slice_of(group.partition)].rows.get(), keys.subspan(first, group.count));
    first += group.count;
  }
  for (const Group& group : groups) {
    const RowStore& rows = *slices_[slice_of(group.partition)].rows;
    for (uint32_t i = 0; i < group.count; ++i, out += dim_) {
      const RowStore::Probe& probe = ahead.Next();
      const uint32_t row = rows.Finish(probe);
      if (row == RowStore::kNone) {
        InitializeRow(spec().initializer(), probe.key, out, dim_);
      } else {
        std::memcpy(out, rows.parameters(row), row_bytes());
      }
    }
  }
  *view = {buffer, static_cast<uint32_t>(bytes), 0, pool_->PinScratch(buffer)};
  return true;
}

bool EmbeddingTable::Scan(uint32_t slice, uint64_t cursor, uint32_t count, ChunkView* view,
                          uint64_t* next, uint32_t* found) {
  const RowStore& rows = *slices_[slice].rows;
  const uint64_t most = std::min<uint64_t>(count, kMaxRowsBytes / row_bytes());
  found_.clear();
  uint64_t at = cursor;
  for (; at < rows.size() && found_.size() < most; ++at) {
    const auto row = static_cast<uint32_t>(at);
    if (rows.applies(row) > 0) found_.push_back(row);
  }
  *next = at;
  *found = static_cast<uint32_t>(found_.size());
  *view = {};
  if (found_.empty()) return true;
  const size_t key_bytes = KeyBytes(found_.size());
  const size_t bytes = key_bytes + found_.size() * row_bytes();
  const Buffer buffer = pool_->TakeScratch(bytes, account());
  if (buffer.data == nullptr) return false;
  std::byte* key = buffer.data;
  for (const uint32_t row : found_) {
    const uint64_t value = rows.key(row);
    std::memcpy(key, &value, sizeof(value));
    key += sizeof(value);
  }
  std::memset(key, 0, static_cast<size_t>(buffer.data + key_bytes - key));
  std::byte* out = buffer.data + key_bytes;
  for (const uint32_t row : found_) {
    std::memcpy(out, rows.parameters(row), row_bytes());
    out += row_bytes();
  }
  *view = {buffer, static_cast<uint32_t>(bytes), slices_[slice].version, pool_->PinScratch(buffer)};
  return true;
}

}  // namespace verbena::shard
