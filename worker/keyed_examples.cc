#include "worker/keyed_examples.h"

#include <cmath>

namespace verbena::worker {
namespace {

// The elements of *from at `first` and after, which are then gone from it.
template <typename T>
std::vector<T> TakeTail(size_t first, std::vector<T>* from) {
  std::vector<T> tail(from->begin() + static_cast<std::ptrdiff_t>(first), from->end());
  from->resize(first);
  return tail;
}

}  // namespace

KeyedExamples KeyedFromSparse(const SparseExamples& examples) {
  KeyedExamples keyed;
  keyed.labels = examples.labels;
  keyed.row_begin = examples.row_begin;
  keyed.keys.assign(examples.indices.begin(), examples.indices.end());
  keyed.values = examples.values;
  return keyed;
}

KeyedExamples HoldOut(double share, KeyedExamples* examples) {
  const auto held =
      static_cast<size_t>(std::llround(static_cast<double>(examples->rows()) * share));
  const size_t left = examples->rows() - held;
  const uint64_t left_keys = examples->row_begin[left];
  KeyedExamples tail;
  tail.fields = examples->fields;
  tail.input_width = examples->input_width;
  tail.labels = TakeTail(left, &examples->labels);
  tail.keys = TakeTail(left_keys, &examples->keys);
  if (!examples->values.empty()) tail.values = TakeTail(left_keys, &examples->values);
  tail.inputs = TakeTail(left * examples->input_width, &examples->inputs);
  tail.row_begin = TakeTail(left, &examples->row_begin);
  for (uint64_t& begin : tail.row_begin) begin -= left_keys;
  examples->row_begin.push_back(left_keys);
  return tail;
}

}  // namespace verbena::worker
