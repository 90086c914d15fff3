#include "worker/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace verbena::worker {

uint64_t CountNotFinite(absl::Span<const float> numbers) {
  return static_cast<uint64_t>(
      std::count_if(numbers.begin(), numbers.end(), [](float x) { return !std::isfinite(x); }));
}

std::optional<double> AreaUnderCurve(absl::Span<const float> scores,
                                     absl::Span<const float> labels) {
  if (CountNotFinite(scores) > 0) return std::nullopt;
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  // Counted in half pairs, so that ties stay integers.
  double half_pairs = 0;
  uint64_t negatives = 0;
  uint64_t positives = 0;
  for (size_t i = 0; i < order.size();) {
    uint64_t tied_positives = 0;
    uint64_t tied_negatives = 0;
    size_t j = i;
    for (; j < order.size() && scores[order[j]] == scores[order[i]]; ++j) {
      ++(labels[order[j]] > 0.5f ? tied_positives : tied_negatives);
    }
    half_pairs +=
        static_cast<double>(tied_positives) * static_cast<double>(2 * negatives + tied_negatives);
    negatives += tied_negatives;
    positives += tied_positives;
    i = j;
  }
  if (positives == 0 || negatives == 0) return std::nullopt;
  return half_pairs / 2 / static_cast<double>(positives) / static_cast<double>(negatives);
}

std::optional<double> Accuracy(absl::Span<const float> probabilities,
                               absl::Span<const float> labels) {
  if (labels.empty()) return std::nullopt;
  uint64_t right = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    right += (probabilities[i] > 0.5f) == (labels[i] > 0.5f);
  }
  return static_cast<double>(right) / static_cast<double>(labels.size());
}

}  // namespace verbena::worker
