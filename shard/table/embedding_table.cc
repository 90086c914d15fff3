#include "shard/table/embedding_table.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/row_applies.h"
#include "shard/codec/codec.h"
#include "shard/failpoints.h"
#include "shard/kernel/convert.h"
#include "shard/kernel/fused_pass.h"
#include "shard/kernel/gradient.h"
#include "shard/table/row_lookahead.h"
#include "shard/table/row_reader.h"

namespace verbena::shard {
namespace {

absl::Status CheckEmbedding(const v1::Table& table, const ColdIo* cold) {
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
  if (HotBytes(spec) > 0 && (cold == nullptr || !cold->has_store())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "table ", table.id(), " \"", spec.name(), "\": cold_tier.hot_bytes is ", HotBytes(spec),
        ", but this server has no directory for cold rows (verbenad --cold-dir)"));
  }
  return CheckTableOptimizer(spec);
}

// Frames for the rows of two records, whatever the share: half of them may be named by an
// operation.
uint32_t LeastFrames(const v1::TableSpec& spec) {
  return 2 * std::max<uint32_t>(spec.chunk_bytes() / (spec.dim() * sizeof(float)), 1);
}

uint32_t StateOf(const Optimizer& optimizer, uint32_t dim) {
  return static_cast<uint32_t>(optimizer.state_arrays()) * (optimizer.row_wise() ? 1 : dim);
}

float* Floats(std::byte* data) { return reinterpret_cast<float*>(data); }

}  // namespace

absl::StatusOr<std::unique_ptr<EmbeddingTable>> EmbeddingTable::Create(const v1::Table& table,
                                                                       uint32_t partitions,
                                                                       BufferPool* pool,
                                                                       JobAccount* account,
                                                                       ColdIo* cold) {
  if (const absl::Status s = CheckEmbedding(table, cold); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(table.spec().optimizer());
  if (!optimizer.ok()) return optimizer.status();
  return std::unique_ptr<EmbeddingTable>(
      new EmbeddingTable(table, partitions, pool, account, cold, *std::move(optimizer)));
}

EmbeddingTable::EmbeddingTable(const v1::Table& table, uint32_t partitions, BufferPool* pool,
                               JobAccount* account, ColdIo* cold,
                               std::unique_ptr<Optimizer> optimizer)
    : PartitionedTable(table, partitions, account, std::move(optimizer)),
      dim_(table.spec().dim()),
      pool_(pool),
      push_type_(PushType(table.spec())),
      pull_type_(PullType(table.spec())),
      shape_(dim_, StateOf(this->optimizer().initial(), dim_),
             this->optimizer().initial().counts_applies(),
             KindOf(table.spec().eviction()) != v1::Eviction::NEVER, RowType(table.spec()),
             HotBytes(table.spec()) > 0),
      content_bytes_(sizeof(uint32_t) * (shape_.stamps ? 2 : 1) + shape_.content_bytes()),
      arena_(shape_.few_bytes(), shape_.many_bytes(), pool, account),
      hot_(shape_.tiered
               ? std::make_unique<HotRows>(shape_.content_bytes(), LeastFrames(table.spec()),
                                           HotBytes(table.spec()), cold, pool, account)
               : nullptr),
      admission_(table.spec().admission(), partitions, pool, account),
      eviction_(table.spec().eviction(), partitions, shape_.content_bytes()),
      memos_(kMemos) {}

void EmbeddingTable::Release(uint32_t slice, bool gone) {
  Unprepare(slice);
  slices_[slice] = {};
  admission_.Forget(slice);
  arena_.Trim();
  set_state(slice, gone ? LocalPartitionState::kGone : LocalPartitionState::kAbsent);
  SetShare();
}

absl::Status EmbeddingTable::Acquire(absl::Span<const Placement> placement) {
  for (uint32_t p = 0; p < placement.size(); ++p) {
    const uint32_t index = Claim(p, placement[p]);
    if (index == kNone || ready(index)) continue;
    slices_.resize(slices());
    slices_[index].rows =
        std::make_unique<RowStore>(shape_, &spec().initializer(), &arena_, hot_.get());
    set_state(index, LocalPartitionState::kReady);
  }
  SetShare();
  return absl::OkStatus();
}

uint64_t EmbeddingTable::row_count() const {
  uint64_t rows = 0;
  for (const LocalPartition& s : slices_) rows += s.rows != nullptr ? s.rows->live() : 0;
  return rows;
}

uint64_t EmbeddingTable::parameter_bytes() const { return row_count() * shape_.parameters; }

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

ApplyStamp EmbeddingTable::Stamp(uint32_t slice, absl::Span<const uint32_t> named,
                                 uint64_t appended, Eviction::Waiting waiting) {
  if (!evicts()) return {};
  LocalPartition& s = slices_[slice];
  const uint64_t apply = s.applies + appended + 1;
  // Decided for an apply that was refused since: another one may name other rows.
  const bool again =
      s.sweep == apply && eviction_.by_number() && !VERBENA_FAILPOINT(shard, keep_refused_sweep);
  if (s.sweep <= s.applies || again) {
    s.keep = eviction_.Decide(*s.rows, named, waiting, apply, seconds_, &s.last_sweep);
    s.sweep = s.keep.keep_from > 0 ? apply : std::min(s.sweep, s.applies);
  }
  ApplyStamp stamp = s.sweep == apply ? s.keep : ApplyStamp();
  stamp.seconds = seconds_;
  return stamp;
}

bool EmbeddingTable::Prepare(uint32_t slice, const ApplyStamp& stamp) {
  if (watch_ == nullptr || stamp.keep_from == 0) return true;
  const RowStore& rows = *slices_[slice].rows;
  found_.clear();
  for (uint32_t row = 0; row < rows.size(); ++row) {
    rows.PrefetchStamp(row);
    if (Eviction::Goes(stamp, rows.stamp(row), rows.key(row))) found_.push_back(row);
  }
  // They need not be in memory, but rows that the apply names have to stay there.
  return watch_->BeforeChange(slice, found_);
}

void EmbeddingTable::BeginApply(uint32_t slice, const ApplyStamp& stamp, OptimizerPointer with) {
  applying_ = &slices_[slice];
  if (with == nullptr) with = optimizer().At(slice, applying_->version);
  if (with != with_) {
    memos_.assign(kMemos, {});
    with_ = std::move(with);
  }
  stamp_ = stamp;
  named_.clear();
  const uint32_t by = eviction_.Rebase(applying_->applies + 1);
  if (by == 0) return;
  RowStore& rows = *applying_->rows;
  for (uint32_t row = 0; row < rows.size(); ++row) {
    const uint32_t was = rows.stamp(row);
    if (was > 0 && !rows.is_free(row)) rows.SetStamp(row, was > by ? was - by : 1);
  }
}

const ApplyScalars& EmbeddingTable::ScalarsFor(uint64_t t) {
  const uint64_t step = applying_->applies + 1;
  Memo& m = memos_[t % kMemos];
  if (m.t != t || m.step != step) m = {step, t, with_->Prepare(step, t)};
  return m.scalars;
}

void EmbeddingTable::ApplyRow(uint32_t row, absl::Span<const Source> all, float divisor) {
  RowStore& rows = *applying_->rows;
  const absl::Span<const Source> sources = Effective(all);
  const bool assigns = Assigns(sources);
  if (assigns) {
    rows.SetParameters(row, sources.front().floats());
    // Bias corrections of a new row start with its first gradient.
    if (rows.applies(row) == 0) rows.SetApplies(row, kAppliesOfNewState);
    wide_.resize(dim_);
    FollowAssigned(BestIsa(), *with_, ScalarsFor(NextApply(rows.applies(row))),
                   rows.Widened(row, wide_.data()), rows.state(row), dim_, dim_);
  } else if (shape_.narrow()) {
    ApplyNarrow(row, sources, divisor);
  } else {
    float* parameters = rows.parameters(row);
    ReduceAndApply(BestIsa(), *with_, ScalarsFor(NextApply(rows.applies(row))), sources, divisor,
                   parameters, parameters, rows.state(row), dim_, dim_);
  }
  if (!assigns) rows.CountApply(row);
  rows.SetDirty(row);
  if (shape_.stamps) {
    rows.SetStamp(row, eviction_.Stamp(rows.stamp(row), rows.key(row), applying_->applies + 1,
                                       stamp_.seconds));
  }
  if (applying_->changed != nullptr) applying_->changed->Mark(row);
  if (stamp_.keep_from > 0) named_.push_back(row);
}

void EmbeddingTable::ApplyNarrow(uint32_t row, absl::Span<const Source> sources, float divisor) {
  RowStore& rows = *applying_->rows;
  wide_.resize(dim_);
  const float* from = rows.Widened(row, wide_.data());
  const bool by_chance = spec().stochastic_rounding();
  const RoundedCopy nearest = {by_chance ? nullptr : rows.half_data(row), shape_.type};
  ReduceAndApply(BestIsa(), *with_, ScalarsFor(NextApply(rows.applies(row))), sources, divisor,
                 from, wide_.data(), rows.state(row), dim_, dim_, nearest);
  if (!by_chance) return;
  const uint64_t seed = RowIndex::Hash(rows.key(row) + RowIndex::Hash(applying_->applies + 1));
  RoundByChance(BestIsa(), shape_.type, seed, wide_.data(), rows.half_data(row), dim_);
}

uint32_t EmbeddingTable::Sweep(LocalPartition* slice) {
  RowStore& rows = *slice->rows;
  named_rows_.assign(rows.size(), false);
  for (const uint32_t row : named_) named_rows_[row] = !VERBENA_FAILPOINT(shard, evict_named);
  uint32_t dropped = 0;
  for (uint32_t row = 0; row < rows.size(); ++row) {
    rows.PrefetchStamp(row);
    const uint32_t stamp = rows.stamp(row);
    if (stamp == RowStore::kFreeStamp) continue;
    if (named_rows_[row] || !Eviction::Goes(stamp_, stamp, rows.key(row))) {
      rows.SetStamp(row, eviction_.Aged(stamp_, stamp));
      continue;
    }
    if (rows.applies(row) > 0) {
      if (slice->changed != nullptr) slice->changed->Drop(rows.key(row));
      ++dropped;
    }
    rows.Drop(row);
  }
  return dropped;
}

uint32_t EmbeddingTable::EndApply() {
  const uint32_t dropped = evicts() && stamp_.keep_from > 0 ? Sweep(applying_) : 0;
  ++applying_->applies;
  ++applying_->version;
  const auto slice = static_cast<uint32_t>(applying_ - slices_.data());
  Unprepare(slice);
  if (watch_ != nullptr) watch_->Changed(slice);
  return dropped;
}

void EmbeddingTable::ReadRow(uint32_t slice, uint32_t row, const std::byte* from, uint64_t* key,
                             std::byte* content) const {
  const RowStore& rows = *slices_[slice].rows;
  *key = rows.key(row);
  const uint32_t applies = rows.applies(row);
  std::memcpy(content, &applies, sizeof(applies));
  size_t header = sizeof(applies);
  if (shape_.stamps) {
    const uint32_t stamp = rows.stamp(row);
    std::memcpy(content + header, &stamp, sizeof(stamp));
    header += sizeof(stamp);
  }
  std::memcpy(content + header, from, content_bytes_ - header);
}

uint64_t EmbeddingTable::Digest(uint32_t slice, uint32_t row, const std::byte* from) const {
  const RowStore& rows = *slices_[slice].rows;
  const struct {
    uint64_t key;
    uint32_t applies, stamp;
  } header = {rows.key(row), rows.applies(row), shape_.stamps ? rows.stamp(row) : 0};
  const uint64_t seed = XXH3_64bits(&header, sizeof(header));
  // Between parameters of 16 bits and the state there may be a gap, with anything in it.
  const uint64_t digest = XXH3_64bits_withSeed(from, dim_ * ElementBytes(shape_.type), seed);
  if (shape_.state == 0) return digest;
  return XXH3_64bits_withSeed(from + shape_.parameters, shape_.state * sizeof(float), digest);
}

bool EmbeddingTable::WriteRow(uint32_t slice, uint32_t row, const std::byte* content) {
  RowStore& rows = *slices_[slice].rows;
  if (!rows.MakePlace(row)) return false;
  uint32_t applies = 0;
  std::memcpy(&applies, content, sizeof(applies));
  rows.SetApplies(row, applies);
  size_t header = sizeof(applies);
  if (shape_.stamps) {
    uint32_t stamp = 0;
    std::memcpy(&stamp, content + header, sizeof(stamp));
    rows.SetStamp(row, std::min(stamp, RowStore::kFreeStamp - 1));
    header += sizeof(stamp);
  }
  std::memcpy(rows.content(row), content + header, content_bytes_ - header);
  return true;
}

bool EmbeddingTable::LoadRow(uint32_t slice, uint32_t row, uint32_t applies,
                             const float* parameters, absl::Span<const float* const> state,
                             uint64_t after) {
  RowStore& rows = *slices_[slice].rows;
  if (applies > 0 && !rows.MakePlace(row)) return false;
  rows.SetApplies(row, applies);
  if (shape_.stamps) {
    // Before those of the next apply. One that is only known to have gone is the first to go.
    const uint64_t last =
        VERBENA_FAILPOINT(shard, restore_as_next) ? after + 1 : std::max<uint64_t>(after, 1);
    rows.SetStamp(row, applies == 0 ? 0 : eviction_.Stamp(0, rows.key(row), last, seconds_));
  }
  if (applies == 0) {
    rows.MakeFresh(row);
    return true;
  }
  rows.SetParameters(row, parameters);
  float* to = rows.state(row);
  for (const float* array : state) to = std::copy_n(array, state_width(), to);
  return true;
}

// Wherever rows are.
template <typename Visit>
bool EmbeddingTable::ForTieredRows(absl::Span<const Group> groups, absl::Span<const uint64_t> keys,
                                   Visit visit) const {
  size_t at = 0;
  float wide[kMaxRowElements];
  std::vector<uint32_t> rows, there;
  for (const Group& group : groups) {
    const RowStore& store = *slices_[slice_of(group.partition)].rows;
    rows.resize(group.count);
    store.Find(keys.subspan(at, group.count), rows.data());
    there.clear();
    for (const uint32_t row : rows) {
      if (row != RowStore::kNone) there.push_back(row);
    }
    RowReader reader(store, there);
    for (const uint32_t row : rows) {
      if (row == RowStore::kNone) {
        store.Initial(keys[at], wide);
        visit(at++, wide);
        continue;
      }
      const std::byte* const content = reader.Next();
      if (content == nullptr) return false;
      visit(at++, store.WidenedContent(content, wide));
    }
  }
  return true;
}

template <typename Visit>
bool EmbeddingTable::ForRows(absl::Span<const Group> groups, absl::Span<const uint64_t> keys,
                             Visit visit) const {
  if (hot_ != nullptr) return ForTieredRows(groups, keys, visit);
  RowLookahead ahead;
  size_t first = 0;
  for (const Group& group : groups) {
    ahead.Add(slices_[slice_of(group.partition)].rows.get(), keys.subspan(first, group.count));
    first += group.count;
  }
  size_t at = 0;
  float wide[kMaxRowElements];
  for (const Group& group : groups) {
    const RowStore& rows = *slices_[slice_of(group.partition)].rows;
    for (uint32_t i = 0; i < group.count; ++i) {
      const RowStore::Probe& probe = ahead.Next();
      const std::byte* const content = rows.FinishContent(probe);
      if (content != nullptr) {
        visit(at++, rows.WidenedContent(content, wide));
      } else {
        rows.Initial(probe.key, wide);
        visit(at++, wide);
      }
    }
  }
  return true;
}

bool EmbeddingTable::Gather(absl::Span<const Group> groups, absl::Span<const uint64_t> keys,
                            ChunkView* view) {
  const size_t each = RowBytes(pull_type_, dim_);
  const size_t bytes = keys.size() * each;
  const Buffer buffer = pool_->TakeScratch(bytes, account());
  if (buffer.data == nullptr) return false;
  std::byte* out = buffer.data;
  bool all = false;
  if (pull_type_ == ElementType::kF32) {
    all = ForRows(groups, keys, [&](size_t, const float* row) {
      std::memcpy(out, row, each);
      out += each;
    });
  } else {
    all = ForRows(groups, keys, [&](size_t, const float* row) {
      codec::EncodeRow(BestIsa(), pull_type_, row, out, dim_);
      out += each;
    });
  }
  if (!all) {
    pool_->ReturnScratch(buffer);
    return false;
  }
  *view = {buffer, static_cast<uint32_t>(bytes), 0, pool_->PinScratch(buffer)};
  return true;
}

bool EmbeddingTable::Pool(absl::Span<const Group> groups, absl::Span<const uint64_t> keys,
                          const Bags& bags, ChunkView* view) {
  const size_t bytes = bags.count * row_bytes();
  const Buffer buffer = pool_->TakeScratch(bytes, account());
  if (buffer.data == nullptr) return false;
  float* const sums = Floats(buffer.data);
  std::memset(sums, 0, bytes);
  const bool all = ForRows(groups, keys, [&](size_t i, const float* row) {
    const BagUse& use = bags.uses[i];
    float* const sum = sums + size_t{use.bag} * dim_;
    AddScaledBlock(BestIsa(), sum, use.weight, row, sum, dim_);
  });
  if (!all) {
    pool_->ReturnScratch(buffer);
    return false;
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
  float wide[kMaxRowElements];
  RowReader reader(rows, found_);
  for (size_t i = 0; i < found_.size(); ++i, out += row_bytes()) {
    const std::byte* const content = reader.Next();
    if (content == nullptr) {
      pool_->ReturnScratch(buffer);
      return false;
    }
    std::memcpy(out, rows.WidenedContent(content, wide), row_bytes());
  }
  *view = {buffer, static_cast<uint32_t>(bytes), slices_[slice].version, pool_->PinScratch(buffer)};
  return true;
}

}  // namespace verbena::shard
