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

}  // namespace

TableOptimizer::TableOptimizer(const v1::Optimizer& spec, std::unique_ptr<Optimizer> initial)
    : spec_(spec), initial_(std::move(initial)), changeable_(ChangeableValues(spec)) {}

TableOptimizer::Slice* TableOptimizer::Of(uint32_t slice) {
  if (slice >= slices_.size()) slices_.resize(slice + 1);
  return &slices_[slice];
}

const TableOptimizer::Entries* TableOptimizer::Find(uint32_t slice) const {
  const bool any = slice < slices_.size() && !slices_[slice].entries.empty();
  return any ? &slices_[slice].entries : nullptr;
}

size_t TableOptimizer::EndOf(const Entries& entries, uint64_t step) {
  size_t end = entries.size();
  while (end > 0 && entries[end - 1].rank != kMerged && entries[end - 1].from > step) --end;
  return end;
}

std::vector<NamedValue> TableOptimizer::ValuesOf(const Entries& entries, size_t end) {
  std::vector<NamedValue> values;
  for (size_t i = 0; i < end; ++i) Merge(entries[i].values, &values);
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
  Entries& entries = slices_[slice].entries;
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
  return entries == nullptr ? 0 : entries->back().from;
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
    if (e.rank < 0 || e.from < step) continue;
    const auto& set = e.values;
    const bool one_of_them = std::any_of(values.begin(), values.end(), [&](const NamedValue& v) {
      return std::any_of(set.begin(), set.end(),
                         [&](const NamedValue& x) { return SameName(x, v); });
    });
    if (one_of_them) step = e.from + 1;
  }
  return step;
}

void TableOptimizer::MergeBefore(uint64_t step, Entries* entries) {
  size_t end = 0;
  while (end < entries->size() &&
         ((*entries)[end].rank == kMerged || (*entries)[end].from < step)) {
    ++end;
  }
  if (end == 0 || (end == 1 && entries->front().rank == kMerged)) return;
  Entry merged = std::move(entries->front());
  for (size_t i = 1; i < end; ++i) {
    Entry& entry = (*entries)[i];
    Merge(entry.values, &merged.values);
    merged.from = std::max(merged.from, entry.from);
    merged.changes += entry.changes;
    merged.made = std::move(entry.made);
  }
  merged.rank = kMerged;
  entries->erase(entries->begin() + 1, entries->begin() + static_cast<ptrdiff_t>(end));
  entries->front() = std::move(merged);
}

void TableOptimizer::Insert(uint32_t slice, Entry entry, uint64_t least) {
  Entries& entries = Of(slice)->entries;
  const auto key = [](const Entry& e) { return std::pair(e.rank == kMerged ? 0 : e.from, e.rank); };
  auto at = std::lower_bound(entries.begin(), entries.end(), entry,
                             [&](const Entry& a, const Entry& b) { return key(a) < key(b); });
  if (at != entries.end() && key(*at) == key(entry)) {
    Merge(entry.values, &at->values);
    at->changes += entry.changes;
  } else {
    at = entries.insert(at, std::move(entry));
  }
  for (; at != entries.end(); ++at) at->made = nullptr;
  MergeBefore(least, &entries);
}

uint64_t TableOptimizer::Add(uint32_t slice, const OptimizerChange& change, uint64_t least,
                             bool* added) {
  *added = true;
  if (change.client != 0) {
    Last& last = Of(slice)->last[change.client];
    *added = change.number > last.number;
    if (!*added) return last.from;
    last = {change.number, change.from};
  }
  Insert(slice, {change.from, change.rank, change.values, 1, nullptr}, least);
  return change.from;
}

void TableOptimizer::Restart(uint32_t slice) {
  if (Find(slice) == nullptr) return;
  Entries& entries = slices_[slice].entries;
  MergeBefore(std::numeric_limits<uint64_t>::max(), &entries);
  entries.front().from = 0;
}

void TableOptimizer::Forget(uint32_t slice) {
  if (slice < slices_.size()) slices_[slice] = {};
}

void TableOptimizer::ForgetClients(absl::FunctionRef<bool(uint64_t client)> gone) {
  for (Slice& slice : slices_) {
    std::erase_if(slice.last, [&](const auto& last) { return gone(last.first); });
  }
}

// ---- replicas -----------------------------------------------------------------------------------

void TableOptimizer::Append(const Entry& entry, const OptimizerChange& of,
                            std::vector<std::byte>* out) {
  const OptimizerChangeHeader header = {entry.from, of.client,
                                        of.number,  entry.changes,
                                        entry.rank, static_cast<uint32_t>(entry.values.size())};
  const size_t at = out->size();
  const size_t bytes = entry.values.size() * sizeof(NamedValue);
  out->resize(at + sizeof(header) + bytes);
  std::memcpy(out->data() + at, &header, sizeof(header));
  if (bytes > 0) std::memcpy(out->data() + at + sizeof(header), entry.values.data(), bytes);
}

uint32_t TableOptimizer::Count(uint32_t slice) const {
  if (slice >= slices_.size()) return 0;
  return static_cast<uint32_t>(slices_[slice].entries.size() + slices_[slice].last.size());
}

std::vector<std::byte> TableOptimizer::Encode(uint32_t slice) const {
  std::vector<std::byte> out;
  if (slice >= slices_.size()) return out;
  for (const Entry& entry : slices_[slice].entries) Append(entry, {}, &out);
  for (const auto& [client, last] : slices_[slice].last) {
    OptimizerChange of;
    of.client = client;
    of.number = last.number;
    Append({last.from, -1, {}, 0, nullptr}, of, &out);
  }
  return out;
}

std::vector<std::byte> TableOptimizer::Encode(const OptimizerChange& change) {
  std::vector<std::byte> out;
  Append({change.from, change.rank, change.values, 1, nullptr}, change, &out);
  return out;
}

bool TableOptimizer::AddEncoded(uint32_t slice, uint32_t count, absl::Span<const std::byte> data,
                                uint64_t least) {
  std::vector<Entry> entries;
  std::vector<std::pair<uint64_t, Last>> clients;
  for (uint32_t i = 0; i < count; ++i) {
    OptimizerChangeHeader header;
    if (data.size() < sizeof(header)) return false;
    std::memcpy(&header, data.data(), sizeof(header));
    data.remove_prefix(sizeof(header));
    const size_t bytes = header.count * sizeof(NamedValue);
    if (header.count > kMaxNamedValues || data.size() < bytes) return false;
    if (header.worker != 0) clients.push_back({header.worker, {header.sequence, header.from}});
    if (header.count == 0 && header.worker != 0) continue;
    Entry entry = {header.from, header.rank, {}, header.changes, nullptr};
    entry.values.resize(header.count);
    if (bytes > 0) std::memcpy(entry.values.data(), data.data(), bytes);
    data.remove_prefix(bytes);
    if (!Check(entry.values).ok()) return false;  // also without values
    entries.push_back(std::move(entry));
  }
  if (!data.empty()) return false;
  for (Entry& entry : entries) Insert(slice, std::move(entry), least);
  for (const auto& [client, last] : clients) Of(slice)->last[client] = last;
  return true;
}

uint64_t TableOptimizer::Digest(uint32_t slice) const {
  const Entries* entries = Find(slice);
  if (entries == nullptr) return 0;
  // Not the clients: views, by which those are forgotten that have left, come at different times.
  std::vector<std::byte> all;
  for (const Entry& entry : *entries) Append(entry, {}, &all);
  return XXH3_64bits(all.data(), all.size());
}

}  // namespace verbena::shard
