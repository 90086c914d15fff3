// Made-up examples for tests: seeded, the same everywhere.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_TESTS_WORKER_SYNTHETIC_H_
#define VERBENA_TESTS_WORKER_SYNTHETIC_H_

#include <string>

#include "worker/data/libsvm_reader.h"
#include "worker/train/random.h"

namespace verbena::worker {

// Sparse rows whose label follows the sign of a fixed combination, with some noise.
inline KeyedExamples SyntheticExamples(size_t rows, uint32_t features, uint64_t seed) {
  KeyedExamples examples;
  examples.features = features;
  Random random(seed);
  for (size_t row = 0; row < rows; ++row) {
    double score = 0.6 * (2 * random.Uniform() - 1);
    for (uint32_t index = 0; index < features; ++index) {
      if (random.Below(3) != 0) continue;
      const double value = 2 * random.Uniform() - 0.5;
      score += index % 2 == 0 ? value : -value;
      examples.keys.push_back(index);
      examples.values.push_back(static_cast<float>(value));
    }
    examples.row_begin.push_back(examples.keys.size());
    examples.labels.push_back(score > 0 ? 1.0f : 0.0f);
  }
  return examples;
}

// Words that a context of a few bytes predicts well.
inline std::string SyntheticText(size_t bytes, uint64_t seed) {
  static constexpr const char* kWords[] = {"push ", "pull ", "shard ", "lane ", "slot ", "epoch "};
  std::string text;
  Random random(seed);
  while (text.size() < bytes) text += kWords[random.Below(6)];
  text.resize(bytes);
  return text;
}

}  // namespace verbena::worker

#endif  // VERBENA_TESTS_WORKER_SYNTHETIC_H_
