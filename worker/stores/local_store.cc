#include "worker/stores/local_store.h"

#include <algorithm>

namespace verbena::worker {

absl::StatusOr<std::unique_ptr<LocalStore>> LocalStore::Create(
    const Layout& layout, const TrainingSpec& spec, absl::Span<const EmbeddingTable> tables) {
  const absl::StatusOr<LocalOptimizer> optimizer =
      LocalOptimizer::Create(spec.optimizer, spec.rate);
  if (!optimizer.ok()) return optimizer.status();
  return std::unique_ptr<LocalStore>(new LocalStore(layout, spec, *optimizer, tables));
}

LocalStore::LocalStore(const Layout& layout, const TrainingSpec& spec, LocalOptimizer optimizer,
                       absl::Span<const EmbeddingTable> tables)
    : layout_(layout),
      optimizer_(optimizer),
      rows_({tables.begin(), tables.end()}, optimizer, spec.seed) {
  gradient_.resize(layout.floats());
  parameters_.resize(layout.floats());
  master_.resize(layout.floats());
  if (optimizer.states() > 0) first_.resize(layout.floats());
  if (optimizer.states() > 1) second_.resize(layout.floats());
  pushed_.resize(layout.size());
  statistics_.transport = "local";
  for (size_t i = 0; i < layout.size(); ++i) {
    const Tensor& tensor = layout[i];
    LocalInitialize(tensor.initial, tensor.scale, spec.seed * 0x9e3779b97f4a7c15u + i,
                    master_.data() + layout.offset(i), tensor.elements());
  }
}

void LocalStore::Reset(const float* parameters) {
  std::copy_n(parameters, layout_.floats(), master_.begin());
  std::fill(first_.begin(), first_.end(), 0.0f);
  std::fill(second_.begin(), second_.end(), 0.0f);
  step_ = 0;
}

void LocalStore::Push(size_t tensor) {
  pushed_[tensor] = true;
  statistics_.bytes_pushed += layout_[tensor].elements() * sizeof(float);
}

void LocalStore::Pull(size_t tensor) {
  std::copy_n(master_.data() + layout_.offset(tensor), layout_[tensor].elements(),
              parameters_.data() + layout_.offset(tensor));
  statistics_.bytes_pulled += layout_[tensor].elements() * sizeof(float);
}

void LocalStore::EndStep() {
  ++step_;
  for (size_t i = 0; i < layout_.size(); ++i) {
    const uint64_t at = layout_.offset(i);
    const uint64_t n = layout_[i].elements();
    // A tensor without a push counts as zero.
    if (!pushed_[i]) std::fill_n(gradient_.data() + at, n, 0.0f);
    const LocalOptimizer optimizer = layout_[i].counter ? LocalOptimizer::Counter() : optimizer_;
    optimizer.Apply(step_, gradient_.data() + at, n, master_.data() + at,
                    first_.empty() ? nullptr : first_.data() + at,
                    second_.empty() ? nullptr : second_.data() + at);
    pushed_[i] = false;
  }
  rows_.EndStep();
}

StoreStatistics LocalStore::statistics() const {
  StoreStatistics statistics = statistics_;
  statistics.bytes_pushed += rows_.bytes_pushed();
  statistics.bytes_pulled += rows_.bytes_pulled();
  return statistics;
}

}  // namespace verbena::worker
