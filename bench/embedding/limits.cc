#include "bench/embedding/limits.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "shard/kernel/prefetch.h"

namespace verbena::bench {
namespace {

constexpr size_t kAhead = 12;  // keys from one step to the next
// Rows that a line of our index has on average.
constexpr double kRowsOfLine = 8.7;

void PrefetchRow(const float* row, size_t width) {
  for (size_t d = 0; d < width; d += 16) shard::PrefetchToWrite(row + d);
  shard::PrefetchToWrite(row + width - 1);
}

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
  return x ^ (x >> 32);
}

}  // namespace

TwoMisses::TwoMisses(uint64_t rows, RowArray* array)
    : array_(array),
      count_(static_cast<uint64_t>(static_cast<double>(rows) / kRowsOfLine) + 1),
      pages_(count_ * sizeof(Line)) {
  std::memset(pages_.data(), 0, count_ * sizeof(Line));
}

template <typename Use>
void TwoMisses::Each(absl::Span<const uint64_t> numbers, Use use) const {
  const auto* const lines = reinterpret_cast<const Line*>(pages_.data());
  const size_t n = numbers.size();
  const auto line = [&](size_t i) { return lines + ((Mix(numbers[i]) >> 32) * count_ >> 32); };
  const auto row = [&](size_t i) {  // all offsets are zero, which is known when they were read
    return array_->rows + (numbers[i] + line(i)->offset[numbers[i] % 16]) * array_->width;
  };
  for (size_t i = 0; i < n + 2 * kAhead; ++i) {
    if (i < n) shard::PrefetchToRead(line(i));
    if (i >= kAhead && i - kAhead < n) PrefetchRow(row(i - kAhead), array_->width);
    if (i >= 2 * kAhead) use(i - 2 * kAhead, row(i - 2 * kAhead));
  }
}

void TwoMisses::Lookup(absl::Span<const uint64_t> numbers, size_t dim, float* out) const {
  Each(numbers,
       [&](size_t i, const float* row) { std::memcpy(out + i * dim, row, dim * sizeof(float)); });
}

void TwoMisses::Push(absl::Span<const uint64_t> numbers, size_t dim, const float* gradients) {
  Each(numbers, [&](size_t i, float* row) {
    const float* const gradient = gradients + i * dim;
    for (size_t d = 0; d < dim; ++d) row[d] += gradient[d];
    row[dim] += 1;
  });
}

HashMap::HashMap(absl::Span<const uint64_t> keys, RowArray* array) : array_(array) {
  index_.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) index_.emplace(keys[i], static_cast<uint32_t>(i));
}

template <typename Use>
void HashMap::Each(absl::Span<const uint64_t> keys, Use use) const {
  const size_t n = keys.size();
  uint64_t rows[kAhead];
  for (size_t i = 0; i < n + 2 * kAhead; ++i) {
    if (i >= 2 * kAhead) use(i - 2 * kAhead, array_->rows + rows[i % kAhead] * array_->width);
    if (i >= kAhead && i - kAhead < n) {
      const uint64_t row = index_.find(keys[i - kAhead])->second;
      rows[i % kAhead] = row;
      PrefetchRow(array_->rows + row * array_->width, array_->width);
    }
    if (i < n) index_.prefetch(keys[i]);
  }
}

void HashMap::Lookup(absl::Span<const uint64_t> keys, size_t dim, float* out) const {
  Each(keys,
       [&](size_t i, const float* row) { std::memcpy(out + i * dim, row, dim * sizeof(float)); });
}

void HashMap::Push(absl::Span<const uint64_t> keys, size_t dim, const float* gradients,
                   float rate) {
  Each(keys, [&](size_t i, float* row) {
    const float* const gradient = gradients + i * dim;
    float sum = 0;
    for (size_t d = 0; d < dim; ++d) sum += gradient[d] * gradient[d];
    row[dim] += sum / static_cast<float>(dim);
    const float step = rate / (std::sqrt(row[dim]) + 1e-8f);
    for (size_t d = 0; d < dim; ++d) row[d] -= step * gradient[d];
  });
}

}  // namespace verbena::bench
