#include "shard/table/table_optimizer.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "proto/spec/optimizer_values.h"

namespace verbena::shard {
namespace {

// The rank of an entry into which changes were merged: the first one.
constexpr int32_t kMerged = std::numeric_limits<int32_t>::min();

bool SameName(const NamedValue& a, const NamedValue& b) {
  return std::memcmp(a.name, b.name, sizeof(a.name)) == 0;
}

// The values of `over` replace those of *values.
void Merge(const std::vector<NamedValue>& over, std::vector<NamedValue>* values) {
  for (const NamedValue& v : over) {
    const auto it = std::find_if(values->begin(), values->end(),
                                 [&](const NamedValue& x) { return SameName(x, v); });
    if (it == values->end()) {
      values->push_back(v);
    } else {
      it->value = v.value;
    }
  }
}

bool Same(const std::vector<NamedValue>& a, const std::vector<NamedValue>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(NamedValue)) == 0);
}

void Append(const OptimizerChange& change, uint64_t changes, std::vector<std::byte>* out) {
  const OptimizerChangeHeader header = {
      change.from, change.worker, change.sequence,
      changes,     change.rank,   static_cast<uint32_t>(change.values.size())};
  const size_t at = out->size();
  const size_t bytes = change.values.size() * sizeof(NamedValue);
  out->resize(at + sizeof(header) + bytes);
  std::memcpy(out->data() + at, &header, sizeof(header));
  if (bytes > 0) std::memcpy(out->data() + at + sizeof(header), change.values.data(), bytes);
}

}  // namespace

TableOptimizer::TableOptimizer(const v1::Optimizer& spec, std::unique_ptr<Optimizer> initial)
    : spec_(spec), initial_(std::move(initial)), changeable_(ChangeableValues(spec)) {}

TableOptimizer::Entries* TableOptimizer::Of(uint32_t slice) {
  if (slice >= slices_.size()) slices_.resize(slice + 1);
  return &slices_[slice];
}

const TableOptimizer::Entries* TableOptimizer::Find(uint32_t slice) const {
  return slice < slices_.size() && !slices_[slice].empty() ? &slices_[slice] : nullptr;
}

size_t TableOptimizer::EndOf(const Entries& entries, uint64_t step) {
  size_t end = entries.size();
  while (end > 0 && entries[end - 1].change.rank != kMerged &&
         entries[end - 1].change.from > step) {
    --end;
  }
  return end;
}

std::vector<NamedValue> TableOptimizer::ValuesOf(const Entries& entries, size_t end) {
  std::vector<NamedValue> values;
  for (size_t i = 0; i < end; ++i) Merge(entries[i].change.values, &values);
  return values;
}

OptimizerPointer TableOptimizer::Make(const std::vector<NamedValue>& values) {
  if (made_ != nullptr && Same(values, made_of_)) return made_;
  v1::Optimizer spec = spec_;
  ChangeOptimizer(values, &spec);
  absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(spec);
  // Check() allows each value, and each is allowed whatever the others are.
  made_ = optimizer.ok() ? OptimizerPointer(*std::move(optimizer)) : initial_;
  made_of_ = values;
  return made_;
}

const OptimizerPointer& TableOptimizer::At(uint32_t slice, uint64_t step) {
  if (Find(slice) == nullptr) return initial_;
  Entries& entries = slices_[slice];
  const size_t end = EndOf(entries, step);
  if (end == 0) return initial_;
  OptimizerPointer& made = entries[end - 1].made;
  if (made == nullptr) made = Make(ValuesOf(entries, end));
  return made;
}

v1::Optimizer TableOptimizer::SpecAt(uint32_t slice, uint64_t step, uint64_t* changes) const {
  *changes = 0;
  v1::Optimizer spec = spec_;
  const Entries* entries = Find(slice);
  if (entries == nullptr) return spec;
  const size_t end = EndOf(*entries, step);
  for (size_t i = 0; i < end; ++i) *changes += (*entries)[i].changes;
  if (end > 0) ChangeOptimizer(ValuesOf(*entries, end), &spec);
  return spec;
}

uint64_t TableOptimizer::LastFrom(uint32_t slice) const {
  const Entries* entries = Find(slice);
  return entries == nullptr ? 0 : entries->back().change.from;
}

absl::Status TableOptimizer::Check(absl::Span<const NamedValue> values) const {
  std::vector<const v1::OptimizerValue*> allowed;
  for (const v1::OptimizerValue& v : changeable_) allowed.push_back(&v);
  return CheckOptimizerValues(allowed, values);
}

uint64_t TableOptimizer::AfterWorkers(uint32_t slice, absl::Span<const NamedValue> values,
                                      uint64_t step) const {
  const Entries* entries = Find(slice);
  if (entries == nullptr) return step;
  for (const Entry& e : *entries) {
    if (e.change.rank < 0 || e.change.from < step) continue;
    const auto& set = e.change.values;
    const bool one_of_them = std::any_of(values.begin(), values.end(), [&](const NamedValue& v) {
      return std::any_of(set.begin(), set.end(),
                         [&](const NamedValue& x) { return SameName(x, v); });
    });
    if (one_of_them) step = e.change.from + 1;
  }
  return step;
}

void TableOptimizer::MergeBefore(uint64_t step, Entries* entries) {
  size_t end = 0;
  while (end < entries->size() &&
         ((*entries)[end].change.rank == kMerged || (*entries)[end].change.from < step)) {
    ++end;
  }
  if (end == 0 || (end == 1 && entries->front().change.rank == kMerged)) return;
  Entry merged = std::move(entries->front());
  for (size_t i = 1; i < end; ++i) {
    Entry& entry = (*entries)[i];
    Merge(entry.change.values, &merged.change.values);
    merged.change.from = std::max(merged.change.from, entry.change.from);
    merged.changes += entry.changes;
    // Known again if its client sends it again: workers do not, after their step is committed.
    if (entry.change.rank < 0) {
      merged.change.worker = entry.change.worker;
      merged.change.sequence = entry.change.sequence;
    }
    merged.made = std::move(entry.made);
  }
  merged.change.rank = kMerged;
  entries->erase(entries->begin() + 1, entries->begin() + static_cast<ptrdiff_t>(end));
  entries->front() = std::move(merged);
}

void TableOptimizer::Insert(uint32_t slice, Entry entry, uint64_t least) {
  Entries& entries = *Of(slice);
  const auto key = [](const Entry& e) {
    const bool merged = e.change.rank == kMerged;
    return std::pair(merged ? 0 : e.change.from, e.change.rank);
  };
  auto at = std::lower_bound(entries.begin(), entries.end(), entry,
                             [&](const Entry& a, const Entry& b) { return key(a) < key(b); });
  if (at != entries.end() && key(*at) == key(entry)) {
    Merge(entry.change.values, &at->change.values);
    at->change.worker = entry.change.worker;
    at->change.sequence = entry.change.sequence;
    at->changes += entry.changes;
  } else {
    at = entries.insert(at, std::move(entry));
  }
  for (; at != entries.end(); ++at) at->made = nullptr;
  MergeBefore(least, &entries);
}

uint64_t TableOptimizer::Add(uint32_t slice, const OptimizerChange& change, uint64_t least,
                             bool* added) {
  *added = false;
  for (const Entry& e : *Of(slice)) {
    const bool alike = change.rank < 0
                           ? e.change.rank < 0
                           : e.change.rank == change.rank && e.change.from == change.from;
    if (alike && e.change.worker == change.worker && e.change.sequence >= change.sequence) {
      return e.change.from;
    }
  }
  *added = true;
  Insert(slice, {change, 1, nullptr}, least);
  return change.from;
}

void TableOptimizer::Restart(uint32_t slice) {
  if (Find(slice) == nullptr) return;
  Entries& entries = slices_[slice];
  MergeBefore(std::numeric_limits<uint64_t>::max(), &entries);
  entries.front().change.from = 0;
}

void TableOptimizer::Forget(uint32_t slice) {
  if (slice < slices_.size()) slices_[slice].clear();
}

// ---- replicas -----------------------------------------------------------------------------------

uint32_t TableOptimizer::Count(uint32_t slice) const {
  const Entries* entries = Find(slice);
  return entries == nullptr ? 0 : static_cast<uint32_t>(entries->size());
}

std::vector<std::byte> TableOptimizer::Encode(uint32_t slice) const {
  std::vector<std::byte> out;
  if (const Entries* entries = Find(slice)) {
    for (const Entry& e : *entries) Append(e.change, e.changes, &out);
  }
  return out;
}

std::vector<std::byte> TableOptimizer::Encode(const OptimizerChange& change) {
  std::vector<std::byte> out;
  Append(change, 1, &out);
  return out;
}

bool TableOptimizer::AddEncoded(uint32_t slice, uint32_t count, absl::Span<const std::byte> data,
                                uint64_t least) {
  std::vector<Entry> entries;
  for (uint32_t i = 0; i < count; ++i) {
    OptimizerChangeHeader header;
    if (data.size() < sizeof(header)) return false;
    std::memcpy(&header, data.data(), sizeof(header));
    data.remove_prefix(sizeof(header));
    if (header.count > kMaxNamedValues || data.size() < header.count * sizeof(NamedValue)) {
      return false;
    }
    Entry entry = {
        {header.from, header.worker, header.sequence, header.rank, {}}, header.changes, nullptr};
    entry.change.values.resize(header.count);
    const size_t bytes = header.count * sizeof(NamedValue);
    if (bytes > 0) std::memcpy(entry.change.values.data(), data.data(), bytes);
    data.remove_prefix(bytes);
    if (!Check(entry.change.values).ok()) return false;
    entries.push_back(std::move(entry));
  }
  if (!data.empty()) return false;
  for (Entry& entry : entries) Insert(slice, std::move(entry), least);
  return true;
}

uint64_t TableOptimizer::Digest(uint32_t slice) const {
  const std::vector<std::byte> all = Encode(slice);
  return all.empty() ? 0 : XXH3_64bits(all.data(), all.size());
}

}  // namespace verbena::shard
