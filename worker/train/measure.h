// Measures a binary classifier on any number of test examples, in bounded memory.
//
// **Thread safety**: one thread per object.
#ifndef VERBENA_WORKER_TRAIN_MEASURE_H_
#define VERBENA_WORKER_TRAIN_MEASURE_H_

#include <cstdint>
#include <cstdio>
#include <vector>

#include "absl/types/span.h"
#include "worker/models/model.h"

namespace verbena::worker {

class ClassifierMeasure {
 public:
  // The AUC of up to so many examples is exact. That of more is of probabilities rounded to 13 bits
  // and an exponent, of which two that become equal count as a tie.
  static constexpr uint64_t kExactExamples = 4'000'000;

  explicit ClassifierMeasure(uint64_t exact_examples = kExactExamples) : exact_(exact_examples) {}

  // Adds as many probabilities as labels; labels are 0 or 1.
  void Add(absl::Span<const float> probabilities, absl::Span<const float> labels);
  // Without AUC and accuracy where a probability was not finite.
  Quality Result() const;

 private:
  // By rounded probability: how many examples of each label.
  struct Bucket {
    uint64_t examples[2] = {0, 0};
  };

  void Count(float probability, bool positive);

  const uint64_t exact_;
  Quality quality_;
  uint64_t right_ = 0;
  std::vector<float> probabilities_, labels_;
  std::vector<Bucket> buckets_;  // none: exact
};

// One a line, with digits that name each float exactly, so that ties in the file are ties here.
// `file` may be null.
void WritePredictions(absl::Span<const float> probabilities, std::FILE* file);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_MEASURE_H_
