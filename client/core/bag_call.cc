#include "client/core/bag_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "proto/wire/routing.h"

namespace verbena::client {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

size_t EndOf(const BagKeys& bags, size_t bag) {
  return bag + 1 < bags.offsets.size() ? bags.offsets[bag + 1] : bags.keys.size();
}

}  // namespace

void BagCall::Build(const BagKeys& bags, uint32_t table, uint32_t partitions, const Limits& limits,
                    KeyScratch* scratch) {
  bags_ = static_cast<uint32_t>(bags.offsets.size());
  most_bags_ = limits.bags;
  uses_.clear();
  ranges_.clear();
  blocks_.clear();
  parts_.clear();
  part_bags_.clear();
  part_sums_.clear();
  numbers_.assign(bags_, kNone);
  SetDivisors(bags);
  for (size_t first = 0; first < bags_;) {
    size_t end = first + 1;
    while (end < bags_ && end - first < limits.bags &&
           EndOf(bags, end) - bags.offsets[first] <= limits.keys) {
      ++end;
    }
    AddBlock(bags, first, end, table, partitions, scratch);
    first = end;
  }
}

// Like KeyPlan::Build(): sorts by partition first, so that the rest fits a near cache.
void BagCall::AddBlock(const BagKeys& bags, size_t first_bag, size_t end_bag, uint32_t table,
                       uint32_t partitions, KeyScratch* scratch) {
  const size_t begin = bags.offsets[first_bag];
  const absl::Span<const uint64_t> keys =
      bags.keys.subspan(begin, EndOf(bags, end_bag - 1) - begin);
  if (keys.empty()) return;
  bag_of_.resize(keys.size());
  for (size_t bag = first_bag; bag < end_bag; ++bag) {
    std::fill(bag_of_.begin() + static_cast<std::ptrdiff_t>(bags.offsets[bag] - begin),
              bag_of_.begin() + static_cast<std::ptrdiff_t>(EndOf(bags, bag) - begin),
              static_cast<uint32_t>(bag));
  }
  SortByPartition(keys, table, partitions, scratch);
  size_t from = 0;
  for (uint32_t p = 0; p < partitions; ++p) {
    const size_t end = scratch->cursors[p];
    if (end == from) continue;
    ranges_.push_back({p, static_cast<uint32_t>(uses_.size()), static_cast<uint32_t>(end - from)});
    for (; from < end; ++from) {
      const KeyScratch::Item& item = scratch->items[from];
      const size_t position = item.position;
      const float weight = bags.weights.empty() ? 1.0f : bags.weights[begin + position];
      uses_.push_back({item.key, {bag_of_[position], weight}});
    }
  }
  blocks_.push_back(ranges_.size());
}

// The mean is the sum divided by the sum of the weights, and sqrt-n divides by the root of the sum
// of their squares, as in TensorFlow's embedding_lookup_sparse(). Without weights the mean equals
// that of torch.nn.EmbeddingBag.
void BagCall::SetDivisors(const BagKeys& bags) {
  divisors_.clear();
  if (bags.mode == BagMode::kSum) return;
  for (size_t bag = 0; bag < bags_; ++bag) {
    double sum = 0;
    for (size_t i = bags.offsets[bag]; i < EndOf(bags, bag); ++i) {
      const double weight = bags.weights.empty() ? 1.0 : double{bags.weights[i]};
      sum += bags.mode == BagMode::kMean ? weight : weight * weight;
    }
    if (bags.mode == BagMode::kSqrtN) sum = std::sqrt(sum);
    divisors_.push_back(static_cast<float>(sum));
  }
}

absl::Span<const KeyPlan::Range> BagCall::block(size_t index) const {
  const size_t first = index == 0 ? 0 : blocks_[index - 1];
  return absl::MakeConstSpan(ranges_).subspan(first, blocks_[index] - first);
}

uint32_t BagCall::MostBags(uint32_t keys) const { return std::min(keys, most_bags_); }

template <typename Each>
void BagCall::Number(absl::Span<const uint32_t> firsts, absl::Span<const uint32_t> counts,
                     Each each) {
  listed_.clear();
  for (size_t i = 0; i < firsts.size(); ++i) {
    for (uint32_t u = firsts[i]; u < firsts[i] + counts[i]; ++u) {
      uint32_t& number = numbers_[uses_[u].use.bag];
      if (number == kNone) {
        number = static_cast<uint32_t>(listed_.size());
        listed_.push_back(uses_[u].use.bag);
      }
      each(uses_[u], number);
    }
  }
  for (const uint32_t bag : listed_) numbers_[bag] = kNone;
}

uint32_t BagCall::Pack(absl::Span<const uint32_t> firsts, absl::Span<const uint32_t> counts,
                       std::byte* to) {
  uint64_t keys = 0;
  for (const uint32_t count : counts) keys += count;
  std::byte* key = to;
  std::byte* use = to + KeyBytes(keys);
  Number(firsts, counts, [&](const Use& from, uint32_t number) {
    const BagUse in_record = {number, from.use.weight};
    std::memcpy(key, &from.key, sizeof(from.key));
    std::memcpy(use, &in_record, sizeof(in_record));
    key += sizeof(from.key);
    use += sizeof(in_record);
  });
  std::memset(key, 0, static_cast<size_t>(to + KeyBytes(keys) - key));
  return static_cast<uint32_t>(listed_.size());
}

void BagCall::Add(absl::Span<const uint32_t> firsts, absl::Span<const uint32_t> counts,
                  const float* sums, uint32_t dim) {
  Number(firsts, counts, [](const Use&, uint32_t) {});
  parts_.push_back(
      {firsts[0], static_cast<uint32_t>(listed_.size()), part_bags_.size(), part_sums_.size()});
  part_bags_.insert(part_bags_.end(), listed_.begin(), listed_.end());
  part_sums_.insert(part_sums_.end(), sums, sums + listed_.size() * dim);
}

void BagCall::Finish(float* to, uint32_t dim) {
  std::fill_n(to, size_t{bags_} * dim, 0.0f);
  std::sort(parts_.begin(), parts_.end(),
            [](const Part& a, const Part& b) { return a.first < b.first; });
  for (const Part& part : parts_) {
    const float* from = part_sums_.data() + part.sums;
    for (uint32_t i = 0; i < part.bags; ++i, from += dim) {
      float* const sum = to + size_t{part_bags_[part.listed + i]} * dim;
      for (uint32_t d = 0; d < dim; ++d) sum[d] += from[d];
    }
  }
  for (size_t bag = 0; bag < divisors_.size(); ++bag) {
    float* const sum = to + bag * dim;
    // The bag has no keys, or its weights cancel out.
    if (divisors_[bag] == 0) {
      std::fill_n(sum, dim, 0.0f);
      continue;
    }
    for (uint32_t d = 0; d < dim; ++d) sum[d] /= divisors_[bag];
  }
}

}  // namespace verbena::client
