// Synchronous training of several workers, each a thread, on one local store: like the servers, a
// mean in rank order (for counters the sum) once all have ended the step.
//
// **Thread safety**: a SharedStore belongs to its rank's thread.
#ifndef VERBENA_TESTS_WORKER_SHARED_STORE_H_
#define VERBENA_TESTS_WORKER_SHARED_STORE_H_

#include <algorithm>
#include <array>
#include <barrier>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "worker/stores/local_store.h"
#include "worker/train/trainer.h"

namespace verbena::worker {

class SharedStore;

// State shared by the ranks.
class SharedJob {
 public:
  SharedJob(LocalStore* store, size_t workers)
      : store_(*store),
        ranks_(workers),
        barrier_(static_cast<std::ptrdiff_t>(workers), Commit{this}) {}

 private:
  friend class SharedStore;
  struct Commit {
    SharedJob* job;
    void operator()() noexcept { job->CommitStep(); }
  };
  void CommitStep() noexcept;

  LocalStore& store_;
  std::vector<SharedStore*> ranks_;  // null: has left
  bool joined_ = false;              // all of them
  std::mutex mutex_;                 // of lookups and pulls
  std::barrier<Commit> barrier_;
};

class SharedStore : public ParameterStore, public RowStore {
 public:
  SharedStore(SharedJob* job, size_t rank) : job_(*job), rank_(rank) {
    gradient_.resize(layout().floats());
    parameters_.resize(layout().floats());
    pushed_.resize(tables().size());
    gradients_.resize(tables().size());
    for (auto& slot : slots_) slot.resize(tables().size());
    job_.ranks_[rank] = this;
    job_.barrier_.arrive_and_wait();  // nobody begins before all have joined
  }
  // Leaves the job: others wait for it no longer.
  ~SharedStore() override {
    job_.ranks_[rank_] = nullptr;
    job_.barrier_.arrive_and_drop();
  }

  const Layout& layout() const override { return job_.store_.layout(); }
  float* gradient() override { return gradient_.data(); }
  float* parameters() override { return parameters_.data(); }
  void Push(size_t /*tensor*/) override {}
  void EndStep() override { job_.barrier_.arrive_and_wait(); }
  void Pull(size_t tensor) override {
    const std::lock_guard lock(job_.mutex_);
    job_.store_.Pull(tensor);
    std::copy_n(job_.store_.parameters() + layout().offset(tensor), layout()[tensor].elements(),
                parameters_.data() + layout().offset(tensor));
  }
  absl::Status Wait() override { return absl::OkStatus(); }
  RowStore* rows() override { return this; }
  StoreStatistics statistics() const override { return {}; }

  absl::Span<const EmbeddingTable> tables() const override { return job_.store_.rows()->tables(); }
  void Lookup(size_t slot, size_t table, absl::Span<const uint64_t> keys) override {
    const std::lock_guard lock(job_.mutex_);
    job_.store_.rows()->Lookup(slot, table, keys);
    const float* rows = job_.store_.rows()->rows(slot, table);
    slots_[slot][table].assign(rows, rows + keys.size() * tables()[table].dim);
  }
  absl::Status WaitLookups(size_t /*slot*/) override { return absl::OkStatus(); }
  const float* rows(size_t slot, size_t table) const override { return slots_[slot][table].data(); }
  absl::StatusOr<float*> Gradients(size_t table, size_t rows) override {
    gradients_[table].resize(rows * tables()[table].dim);
    return gradients_[table].data();
  }
  void Push(size_t table, absl::Span<const uint64_t> keys) override {
    pushed_[table].assign(keys.begin(), keys.end());
  }

 private:
  friend class SharedJob;
  SharedJob& job_;
  size_t rank_;
  std::vector<float> gradient_, parameters_;
  std::array<std::vector<std::vector<float>>, kSlots> slots_;  // by slot and table
  std::vector<std::vector<uint64_t>> pushed_;                  // by table: keys
  std::vector<std::vector<float>> gradients_;                  // by table
};

inline void SharedJob::CommitStep() noexcept {
  if (!std::exchange(joined_, true)) return;
  // The end: there is no step that all take part in any more.
  if (std::count(ranks_.begin(), ranks_.end(), nullptr) > 0) return;
  const auto share = 1 / static_cast<float>(ranks_.size());
  std::fill_n(store_.gradient(), store_.layout().floats(), 0.0f);
  const Layout& layout = store_.layout();
  for (SharedStore* rank : ranks_) {
    for (size_t t = 0; t < layout.size(); ++t) {
      const float part = layout[t].counter ? 1 : share;
      for (uint64_t i = layout.offset(t); i < layout.offset(t) + layout[t].elements(); ++i) {
        store_.gradient()[i] += rank->gradient_[i] * part;
      }
    }
    for (size_t t = 0; t < rank->pushed_.size(); ++t) {
      const std::vector<float>& from = rank->gradients_[t];
      float* to = *store_.rows()->Gradients(t, rank->pushed_[t].size());
      for (size_t i = 0; i < rank->pushed_[t].size() * rank->tables()[t].dim; ++i) {
        to[i] = from[i] * share;
      }
      store_.rows()->Push(t, rank->pushed_[t]);
      rank->pushed_[t].clear();
    }
    std::fill(rank->gradient_.begin(), rank->gradient_.end(), 0.0f);
  }
  for (size_t t = 0; t < store_.layout().size(); ++t) store_.Push(t);
  store_.EndStep();
}

// Trains with so many ranks; options.workers and rank are set here. Returns each rank's result.
inline std::vector<absl::StatusOr<TrainResult>> TrainShared(
    const std::function<std::unique_ptr<Model>()>& make, LocalStore* store, TrainOptions options,
    size_t workers, const std::function<TrainHooks(size_t rank)>& hooks = nullptr) {
  SharedJob job(store, workers);
  std::vector<absl::StatusOr<TrainResult>> results(workers);
  std::vector<std::thread> threads;
  options.workers = workers;
  for (size_t rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank, own = options]() mutable {
      own.rank = rank;
      const std::unique_ptr<Model> model = make();
      SharedStore ranks_store(&job, rank);
      results[rank] = Train(model.get(), &ranks_store, own, hooks ? hooks(rank) : TrainHooks());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace verbena::worker

#endif  // VERBENA_TESTS_WORKER_SHARED_STORE_H_
