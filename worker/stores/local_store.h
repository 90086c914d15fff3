// The parameters in this process: the single-process loop that runs on a cluster are compared with.
//
// **Thread safety**: one thread.
#ifndef VERBENA_WORKER_STORES_LOCAL_STORE_H_
#define VERBENA_WORKER_STORES_LOCAL_STORE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/stores/local_rows.h"
#include "worker/stores/parameter_store.h"
#include "worker/train/local_optimizer.h"

namespace verbena::worker {

class LocalStore : public ParameterStore {
 public:
  // INVALID_ARGUMENT for an unknown optimizer or a rate that is not positive.
  static absl::StatusOr<std::unique_ptr<LocalStore>> Create(
      const Layout& layout, const TrainingSpec& spec, absl::Span<const EmbeddingTable> tables = {});

  // Starts from these parameters (an arena) instead of the initial ones.
  void Reset(const float* parameters);

  const Layout& layout() const override { return layout_; }
  float* gradient() override { return gradient_.data(); }
  float* parameters() override { return parameters_.data(); }
  void Push(size_t tensor) override;
  void EndStep() override;
  void Pull(size_t tensor) override;
  absl::Status Wait() override { return absl::OkStatus(); }
  LocalRows* rows() override { return &rows_; }
  StoreStatistics statistics() const override;

 private:
  LocalStore(const Layout& layout, const TrainingSpec& spec, LocalOptimizer optimizer,
             absl::Span<const EmbeddingTable> tables);

  Layout layout_;
  LocalOptimizer optimizer_;
  LocalRows rows_;
  uint64_t step_ = 0;
  // The master copy is apart from parameters(), as it is on a server.
  std::vector<float> gradient_, parameters_, master_, first_, second_;
  std::vector<bool> pushed_;
  StoreStatistics statistics_;  // of the tensors
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_STORES_LOCAL_STORE_H_
