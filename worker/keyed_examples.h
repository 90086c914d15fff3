// Examples for binary classification whose features are keys of embedding rows.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_KEYED_EXAMPLES_H_
#define VERBENA_WORKER_KEYED_EXAMPLES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/libsvm_reader.h"

namespace verbena::worker {

struct KeyedExamples {
  std::vector<float> labels;  // 0 or 1
  std::vector<uint64_t> row_begin = {0};
  std::vector<uint64_t> keys;
  std::vector<float> values;  // of each key; none: all are 1
  // 1: an example's keys form one bag. More: every example has one key a field, in order.
  uint32_t fields = 1;
  // Numbers beside the keys, as many for each example.
  uint32_t input_width = 0;
  std::vector<float> inputs;

  size_t rows() const { return labels.size(); }
};

// The key is the feature's index, counted from zero.
KeyedExamples KeyedFromSparse(const SparseExamples& examples);

// Moves the last `share` of the rows out of *examples.
KeyedExamples HoldOut(double share, KeyedExamples* examples);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_KEYED_EXAMPLES_H_
