// Examples for binary classification whose features are keys of embedding rows.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_DATA_KEYED_EXAMPLES_H_
#define VERBENA_WORKER_DATA_KEYED_EXAMPLES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

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
  // Where keys are indices: one more than the greatest, at least.
  uint64_t features = 0;

  size_t rows() const { return labels.size(); }
};

// Appends row `row` of `from`, which has the same fields and inputs.
void AppendRow(const KeyedExamples& from, size_t row, KeyedExamples* to);
// Leaves no rows, and the buffers for later ones. The shape becomes that of `like`.
void ClearRows(const KeyedExamples& like, KeyedExamples* examples);

// Memory that the rows take.
uint64_t BytesOf(const KeyedExamples& examples);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_KEYED_EXAMPLES_H_
