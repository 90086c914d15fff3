// Storage of the coordinator's state: SQLite, or memory for tests.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_COORDINATOR_STORE_H_
#define VERBENA_SERVER_COORDINATOR_STORE_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/control/cluster_history.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// Everything that must survive a restart: the view, the terms, the tokens, the next ids, the
// answers to request ids.
struct CoordinatorState {
  v1::ClusterView view;
  // Terms of the whole history, oldest first; the last kTermsRecorded are kept. The view lists the
  // last of them. Terms are only appended.
  Terms terms;
  v1::AccessRules access;  // without the operator's token, which a file has
  uint64_t next_incarnation = 1;
  uint32_t next_table = 1;
  uint32_t ended_generation = 0;  // the greatest of the jobs that have left the view
  struct Answered {
    std::string request_id;
    std::string method;
    std::string response;  // serialised
  };
  std::deque<Answered> answered;  // oldest first; the last kAnswersKept are kept
};
inline constexpr size_t kAnswersKept = 4096;

// The parts that a Save() has to write.
struct StateChange {
  // The differences of the view's tables and jobs since the last Save(). Null: anything may differ.
  const v1::ViewChange* view = nullptr;
  absl::Span<const uint64_t> gone_members = {};  // with `view`: also those of jobs that it removes
  bool access = true;                            // tokens may be different
  const CoordinatorState::Answered* answered = nullptr;  // null: none
};

class Store {
 public:
  virtual ~Store() = default;
  // An empty state when there is none yet. DATA_LOSS with the file's name when it is corrupt.
  virtual absl::StatusOr<CoordinatorState> Load() = 0;
  // Makes several changes, oldest first, durable at once: all or, after an error, none. `state` is
  // that after the last one. Writes the parts in them, and always servers, partitions, settings and
  // ids.
  virtual absl::Status SaveAll(const CoordinatorState& state,
                               absl::Span<const StateChange> changes) = 0;
  absl::Status Save(const CoordinatorState& state, const StateChange& change) {
    return SaveAll(state, {&change, 1});
  }
};

// Applies the next of the changes that lead to `state` to *kept, which is equal to `state` after
// the last one.
void FollowChange(const CoordinatorState& state, const StateChange& change, CoordinatorState* kept);

class MemoryStore final : public Store {
 public:
  absl::StatusOr<CoordinatorState> Load() override { return state_; }
  absl::Status SaveAll(const CoordinatorState& state,
                       absl::Span<const StateChange> changes) override {
    for (const StateChange& change : changes) FollowChange(state, change, &state_);
    return absl::OkStatus();
  }

 private:
  CoordinatorState state_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_STORE_H_
