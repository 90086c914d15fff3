#include "worker/train/measure.h"

#include <bit>
#include <cmath>
#include <cstddef>

#include "worker/train/metrics.h"

namespace verbena::worker {
namespace {

// Bits of floats from 0 to 1, as numbers, are in the floats' order.
constexpr int kDroppedBits = 10;
constexpr size_t kBuckets = (std::bit_cast<uint32_t>(1.0f) >> kDroppedBits) + 1;

}  // namespace

void ClassifierMeasure::Count(float probability, bool positive) {
  ++buckets_[std::bit_cast<uint32_t>(probability) >> kDroppedBits].examples[positive ? 1 : 0];
}

void ClassifierMeasure::Add(absl::Span<const float> probabilities, absl::Span<const float> labels) {
  quality_.examples += probabilities.size();
  for (size_t i = 0; i < probabilities.size(); ++i) {
    const float p = probabilities[i];
    if (!std::isfinite(p)) {
      ++quality_.not_finite;
      continue;
    }
    right_ += (p > 0.5f) == (labels[i] > 0.5f) ? 1 : 0;
    if (!buckets_.empty()) {
      Count(p, labels[i] > 0.5f);
      continue;
    }
    probabilities_.push_back(p);
    labels_.push_back(labels[i]);
    if (probabilities_.size() <= exact_) continue;
    buckets_.resize(kBuckets);
    for (size_t k = 0; k < probabilities_.size(); ++k) Count(probabilities_[k], labels_[k] > 0.5f);
    std::vector<float>().swap(probabilities_);
    std::vector<float>().swap(labels_);
  }
}

Quality ClassifierMeasure::Result() const {
  Quality quality = quality_;
  if (quality.not_finite > 0 || quality.examples == 0) return quality;
  quality.accuracy = static_cast<double>(right_) / static_cast<double>(quality.examples);
  if (buckets_.empty()) {
    quality.auc = AreaUnderCurve(probabilities_, labels_);
    return quality;
  }
  double half_pairs = 0;
  uint64_t negatives = 0, positives = 0;
  for (const Bucket& bucket : buckets_) {
    half_pairs += static_cast<double>(bucket.examples[1]) *
                  static_cast<double>(2 * negatives + bucket.examples[0]);
    negatives += bucket.examples[0];
    positives += bucket.examples[1];
  }
  if (positives > 0 && negatives > 0) {
    quality.auc = half_pairs / 2 / static_cast<double>(positives) / static_cast<double>(negatives);
  }
  return quality;
}

void WritePredictions(absl::Span<const float> probabilities, std::FILE* file) {
  if (file == nullptr) return;
  for (const float p : probabilities) std::fprintf(file, "%.9g\n", static_cast<double>(p));
}

}  // namespace verbena::worker
