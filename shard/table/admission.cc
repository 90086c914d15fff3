#include "shard/table/admission.h"

#include <algorithm>
#include <cstring>

#include "shard/table/row_index.h"

namespace verbena::shard {
namespace {

constexpr uint32_t kMost = UINT8_MAX;

size_t SketchBytes(const v1::Admission& spec, uint32_t partitions) {
  constexpr uint64_t kLine = 64;
  const uint64_t share = spec.sketch_bytes() / std::max(partitions, 1u) / kLine * kLine;
  return std::max(share, kLine);
}

// A share of 2^64, at least 1.
uint64_t Below(double probability) {
  if (!(probability > 0x1p-64)) return 1;
  return probability < 1 ? static_cast<uint64_t>(probability * 0x1p64) : UINT64_MAX;
}

}  // namespace

Admission::Admission(const v1::Admission& spec, uint32_t partitions, BufferPool* pool,
                     JobAccount* account)
    : min_count_(spec.kind() == v1::Admission::MIN_COUNT ? spec.min_count() : 0),
      below_(spec.kind() == v1::Admission::PROBABILITY ? Below(spec.probability()) : 0),
      seed_(RowIndex::Hash(spec.seed() + 0x9e3779b97f4a7c15u)),
      sketch_bytes_(SketchBytes(spec, partitions)),
      pool_(pool),
      account_(account) {}

Admission::~Admission() {
  for (uint32_t s = 0; s < sketches_.size(); ++s) Forget(s);
}

Admission::Places Admission::PlacesOf(const Sketch& sketch, uint64_t key) const {
  const uint64_t hash = RowIndex::Hash(key ^ 0x2545f4914f6cdd1du);
  const uint64_t line = (hash >> 32) * (sketch_bytes_ / kLineBytes) >> 32;
  Places places = {reinterpret_cast<uint8_t*>(sketch.counters.data) + line * kLineBytes, {}};
  // A quarter of the line each, so that they are four.
  for (uint32_t i = 0; i < 4; ++i) {
    places.at[i] = i * 16 + (static_cast<uint32_t>(hash >> (4 * i)) & 15);
  }
  return places;
}

uint32_t Admission::CountOf(const Sketch& sketch, uint64_t key) const {
  const Places places = PlacesOf(sketch, key);
  uint32_t least = kMost;
  for (const uint32_t at : places.at) least = std::min<uint32_t>(least, places.line[at]);
  return least;
}

bool Admission::Admits(uint32_t slice, uint64_t version, uint64_t key) const {
  if (below_ > 0) return RowIndex::Hash(RowIndex::Hash(key ^ seed_) + version) < below_;
  if (min_count_ == 0) return true;
  if (slice >= sketches_.size() || sketches_[slice].counters.data == nullptr) return false;
  return CountOf(sketches_[slice], key) + 1 >= min_count_;
}

void Admission::Count(uint32_t slice, absl::Span<const uint64_t> refused) {
  if (min_count_ == 0 || refused.empty()) return;
  if (slice >= sketches_.size()) sketches_.resize(slice + 1);
  Sketch& sketch = sketches_[slice];
  if (sketch.counters.data == nullptr) {
    sketch.counters = pool_->Allocate(sketch_bytes_, account_);
    if (sketch.counters.data == nullptr) return;
    std::memset(sketch.counters.data, 0, sketch_bytes_);
  }
  for (const uint64_t key : refused) {
    const Places places = PlacesOf(sketch, key);
    for (const uint32_t at : places.at) {
      places.line[at] = static_cast<uint8_t>(std::min<uint32_t>(places.line[at] + 1, kMost));
    }
  }
  // Behind all of them: in which order they came does not matter.
  sketch.counted += refused.size();
  if (sketch.counted * 8 < sketch_bytes_ * min_count_) return;
  auto* const counters = reinterpret_cast<uint8_t*>(sketch.counters.data);
  for (size_t i = 0; i < sketch_bytes_; ++i) counters[i] /= 2;
  sketch.counted /= 2;
}

void Admission::Forget(uint32_t slice) {
  if (slice >= sketches_.size()) return;
  if (sketches_[slice].counters.data != nullptr) pool_->Free(sketches_[slice].counters);
  sketches_[slice] = {};
}

}  // namespace verbena::shard
