// Where a model takes its examples from: memory, or files that are read as training goes.
//
// **Thread safety**: one thread per object.
#ifndef VERBENA_WORKER_DATA_EXAMPLE_SET_H_
#define VERBENA_WORKER_DATA_EXAMPLE_SET_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/data/input_order.h"
#include "worker/data/keyed_examples.h"

namespace verbena::worker {

class ExampleSource {
 public:
  virtual ~ExampleSource() = default;

  virtual uint64_t rows() const = 0;
  // Fields, input_width and features of the examples; it has no rows.
  virtual const KeyedExamples& shape() const = 0;
  virtual InputOrder order() const { return {}; }
  // *out becomes the examples `ids` (below rows()), in this order. INVALID_ARGUMENT names a line
  // that holds no example.
  virtual absl::Status Fetch(absl::Span<const uint64_t> ids, KeyedExamples* out) = 0;
  // These will be fetched soon. Does not wait.
  virtual void WillFetch(absl::Span<const uint64_t> /*ids*/) {}
};

// A handle; copies share the source.
class ExampleSet {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): examples in memory are a source of themselves
  ExampleSet(KeyedExamples examples);
  // NOLINTNEXTLINE(google-explicit-constructor)
  ExampleSet(std::shared_ptr<ExampleSource> source) : source_(std::move(source)) {}

  ExampleSource* operator->() const { return source_.get(); }

 private:
  std::shared_ptr<ExampleSource> source_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_EXAMPLE_SET_H_
