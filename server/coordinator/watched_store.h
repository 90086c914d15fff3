// A store that reports its failures: in the log once when they begin and once when they end, and as
// a count and a state for the metrics. The coordinator continues without the unsaved change, so
// nothing else would show an operator that the disk is full.
//
// **Thread safety**: as Store: one owner thread; failures() and failing() from any thread.
#ifndef VERBENA_SERVER_COORDINATOR_WATCHED_STORE_H_
#define VERBENA_SERVER_COORDINATOR_WATCHED_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator/store.h"

namespace verbena::server {

class WatchedStore final : public Store {
 public:
  using Say = std::function<void(bool failing, const std::string& text)>;
  WatchedStore(std::unique_ptr<Store> store, Say say)
      : store_(std::move(store)), say_(std::move(say)) {}

  absl::StatusOr<CoordinatorState> Load() override { return store_->Load(); }
  absl::Status SaveAll(const CoordinatorState& state,
                       absl::Span<const StateChange> changes) override {
    absl::Status saved = store_->SaveAll(state, changes);
    // Relaxed: single values that a scrape reads, which order nothing else.
    if (!saved.ok()) failures_.fetch_add(1, std::memory_order_relaxed);
    if (failing_.exchange(!saved.ok(), std::memory_order_relaxed) == saved.ok()) {
      say_(!saved.ok(), saved.ok() ? "the coordinator's state is saved again"
                                   : absl::StrCat("the coordinator cannot save its state, so "
                                                  "nothing joins, changes or is taken over: ",
                                                  saved.message()));
    }
    return saved;
  }

  uint64_t failures() const { return failures_.load(std::memory_order_relaxed); }
  bool failing() const { return failing_.load(std::memory_order_relaxed); }

 private:
  const std::unique_ptr<Store> store_;
  const Say say_;
  std::atomic<uint64_t> failures_ = 0;  // of SaveAll()
  std::atomic<bool> failing_ = false;   // the last SaveAll()
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_WATCHED_STORE_H_
