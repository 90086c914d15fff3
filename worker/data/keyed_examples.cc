#include "worker/data/keyed_examples.h"

namespace verbena::worker {

void AppendRow(const KeyedExamples& from, size_t row, KeyedExamples* to) {
  const auto begin = static_cast<std::ptrdiff_t>(from.row_begin[row]);
  const auto end = static_cast<std::ptrdiff_t>(from.row_begin[row + 1]);
  to->labels.push_back(from.labels[row]);
  to->keys.insert(to->keys.end(), from.keys.begin() + begin, from.keys.begin() + end);
  if (!from.values.empty()) {
    to->values.insert(to->values.end(), from.values.begin() + begin, from.values.begin() + end);
  }
  const auto inputs = from.inputs.begin() + static_cast<std::ptrdiff_t>(row * from.input_width);
  to->inputs.insert(to->inputs.end(), inputs, inputs + from.input_width);
  to->row_begin.push_back(to->keys.size());
}

void ClearRows(const KeyedExamples& like, KeyedExamples* examples) {
  examples->labels.clear();
  examples->row_begin.assign(1, 0);
  examples->keys.clear();
  examples->values.clear();
  examples->inputs.clear();
  examples->fields = like.fields;
  examples->input_width = like.input_width;
}

uint64_t BytesOf(const KeyedExamples& e) {
  return (e.labels.capacity() + e.values.capacity() + e.inputs.capacity()) * sizeof(float) +
         (e.row_begin.capacity() + e.keys.capacity()) * sizeof(uint64_t);
}

}  // namespace verbena::worker
