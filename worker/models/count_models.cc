#include "worker/models/count_models.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace verbena::worker {
namespace {

constexpr size_t kBytes = 256;

// Counts of the byte that follows each context of `order` bytes.
class Counts {
 public:
  Counts(size_t order, std::string_view train) {
    size_t contexts = 1;
    for (size_t i = 0; i < order; ++i) contexts *= kBytes;
    totals_.resize(contexts);
    distinct_.resize(contexts);
    size_t context = 0;
    for (size_t i = 0; i < train.size(); ++i) {
      const auto byte = static_cast<uint8_t>(train[i]);
      if (i >= order) {
        uint32_t& count = counts_[context * kBytes + byte];
        distinct_[context] += count == 0;
        ++count;
        ++totals_[context];
      }
      context = (context * kBytes + byte) % contexts;
    }
  }

  double Probability(size_t context, uint8_t byte, double shorter) const {
    const double total = totals_[context];
    if (total == 0) return shorter;
    const double distinct = distinct_[context];
    const auto seen = counts_.find(context * kBytes + byte);
    const double count = seen == counts_.end() ? 0 : seen->second;
    return (count + distinct * shorter) / (total + distinct);
  }

 private:
  absl::flat_hash_map<size_t, uint32_t> counts_;  // by context and byte
  std::vector<uint32_t> totals_, distinct_;       // by context
};

}  // namespace

std::array<double, 3> CountModelBitsPerByte(std::string_view train, std::string_view test) {
  std::array<double, 3> bits = {};
  if (test.empty()) return bits;
  const Counts order0(0, train);
  const Counts order1(1, train);
  const Counts order2(2, train);
  size_t previous = 0;
  size_t before = 0;
  for (size_t i = 0; i < test.size(); ++i) {
    const auto byte = static_cast<uint8_t>(test[i]);
    const double p0 = order0.Probability(0, byte, 1.0 / kBytes);
    const double p1 = i >= 1 ? order1.Probability(previous, byte, p0) : p0;
    const double p2 = i >= 2 ? order2.Probability(before * kBytes + previous, byte, p1) : p1;
    bits[0] -= std::log2(p0);
    bits[1] -= std::log2(p1);
    bits[2] -= std::log2(p2);
    before = previous;
    previous = byte;
  }
  for (double& sum : bits) sum /= static_cast<double>(test.size());
  return bits;
}

}  // namespace verbena::worker
