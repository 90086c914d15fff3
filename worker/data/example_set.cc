#include "worker/data/example_set.h"

#include <algorithm>

namespace verbena::worker {
namespace {

class MemoryExamples final : public ExampleSource {
 public:
  explicit MemoryExamples(KeyedExamples examples) : examples_(std::move(examples)) {
    ClearRows(examples_, &shape_);
    shape_.features = examples_.features;
    for (const uint64_t key : examples_.keys) shape_.features = std::max(shape_.features, key + 1);
  }

  uint64_t rows() const override { return examples_.rows(); }
  const KeyedExamples& shape() const override { return shape_; }
  absl::Status Fetch(absl::Span<const uint64_t> ids, KeyedExamples* out) override {
    ClearRows(shape_, out);
    for (const uint64_t id : ids) AppendRow(examples_, id, out);
    return absl::OkStatus();
  }

 private:
  const KeyedExamples examples_;
  KeyedExamples shape_;
};

}  // namespace

ExampleSet::ExampleSet(KeyedExamples examples)
    : source_(std::make_shared<MemoryExamples>(std::move(examples))) {}

}  // namespace verbena::worker
