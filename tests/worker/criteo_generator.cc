#include "tests/worker/criteo_generator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <numbers>

#include "worker/models/logistic.h"
#include "worker/train/random.h"

namespace verbena::worker {
namespace {

// Categories of field f: kCategories[f % 8]. Few enough for tens of thousands of rows to show the
// effect of each.
constexpr uint32_t kCategories[] = {6, 5, 6, 4, 3, 8, 4, 12};
// Fields 0 and 1, and 2 and 3, have effects as pairs.
constexpr bool IsPaired(uint32_t field) { return field < 4; }
constexpr double kEffect = 0.25;  // standard deviations
constexpr double kPairedFactor = 0.9;
constexpr double kSlope = 0.1;
constexpr double kBias = -1.1;
constexpr double kMissing = 0.05;  // share of each field

double Normal(Random* random) {
  const double radius = std::sqrt(-2 * std::log(1 - random->Uniform()));
  return radius * std::cos(2 * std::numbers::pi * random->Uniform());
}

}  // namespace

CriteoGenerator::CriteoGenerator(uint64_t seed) : seed_(Mix(seed + 1)) {
  Random random(seed_);
  for (uint32_t f = 0; f < kCriteoCategories; ++f) {
    Field& field = fields_[f];
    field.categories = kCategories[f % 8];
    for (uint32_t c = 0; c < field.categories; ++c) {
      field.effects.push_back(kEffect * Normal(&random));
      if (IsPaired(f)) {
        field.paired.push_back({kPairedFactor * Normal(&random), kPairedFactor * Normal(&random)});
      }
    }
  }
  for (double& slope : slopes_) slope = kSlope * Normal(&random);
}

void CriteoGenerator::MakeRow(uint64_t number, CriteoRows* out) const {
  Random random(Mix(seed_ ^ Mix(number + 1)));
  double log_odds = kBias;
  std::string line;
  char digits[32];
  for (const double slope : slopes_) {
    line += '\t';
    // Counts with a long tail, as clicks have.
    const auto count = static_cast<int64_t>(std::exp(1 + 1.5 * Normal(&random)));
    if (random.Uniform() < kMissing) continue;
    log_odds += slope * std::log1p(static_cast<double>(count));
    std::snprintf(digits, sizeof digits, "%lld", static_cast<long long>(count));
    line += digits;
  }
  std::array<double, 2> other = {0, 0};
  for (uint32_t f = 0; f < kCriteoCategories; ++f) {
    const Field& field = fields_[f];
    line += '\t';
    // The first categories are common, the last rare.
    const double u = random.Uniform();
    const auto category = static_cast<uint32_t>(field.categories * u * std::sqrt(u));
    const bool missing = random.Uniform() < kMissing;
    std::array<double, 2> pair = {0, 0};
    if (!missing) {
      log_odds += field.effects[category];
      if (IsPaired(f)) pair = field.paired[category];
      const auto name = static_cast<uint32_t>(Mix(seed_ + (uint64_t{f} << 32) + category) >> 32);
      std::snprintf(digits, sizeof digits, "%08x", name);
      line += digits;
    }
    if (f % 2 == 1) log_odds += other[0] * pair[0] + other[1] * pair[1];
    other = pair;
  }
  const double probability = Sigmoid(log_odds);
  const bool clicked = random.Uniform() < probability;
  out->probabilities.push_back(static_cast<float>(probability));
  out->labels.push_back(clicked ? 1.0f : 0.0f);
  out->text += clicked ? '1' : '0';
  out->text += line;
  out->text += '\n';
}

CriteoRows CriteoGenerator::Make(uint64_t first, uint64_t rows) const {
  CriteoRows out;
  for (uint64_t i = 0; i < rows; ++i) MakeRow(first + i, &out);
  return out;
}

double BayesAuc(const std::vector<float>& probabilities) {
  // Over pairs i != j, weighted by the chance p_i (1 - p_j) that i is positive and j negative.
  std::vector<float> sorted = probabilities;
  std::sort(sorted.begin(), sorted.end());
  double won = 0;
  double negatives = 0;  // expected number below
  double positives = 0;
  double own = 0;  // the part of pairs i = j in the product of the sums
  for (size_t i = 0; i < sorted.size();) {
    double tied_positives = 0;
    double tied_negatives = 0;
    double tied_own = 0;
    size_t j = i;
    for (; j < sorted.size() && sorted[j] == sorted[i]; ++j) {
      const double p = sorted[j];
      tied_positives += p;
      tied_negatives += 1 - p;
      tied_own += p * (1 - p);
    }
    won += tied_positives * negatives + (tied_positives * tied_negatives - tied_own) / 2;
    positives += tied_positives;
    negatives += tied_negatives;
    own += tied_own;
    i = j;
  }
  return won / (positives * negatives - own);
}

}  // namespace verbena::worker
