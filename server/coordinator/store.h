// Where the coordinator's state is kept: in SQLite, or in memory for tests.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_COORDINATOR_STORE_H_
#define VERBENA_SERVER_COORDINATOR_STORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cluster_history.h"
#include "proto/verbena/v1/cluster.pb.h"

namespace verbena::server {

// Everything that must survive a restart: the view, the terms, the tokens, the next ids, the
// answers to request ids.
struct CoordinatorState {
  v1::ClusterView view;
  // Of the whole history, oldest first; the last kTermsRecorded are kept. The view lists the last
  // of them. Added to at the end only.
  Terms terms;
  v1::AccessRules access;  // without the operator's token, which a file has
  uint64_t next_incarnation = 1;
  uint32_t next_table = 1;
  struct Answered {
    std::string request_id;
    std::string method;
    std::string response;  // serialised
  };
  std::vector<Answered> answered;  // oldest first; the last kAnswersKept are kept
};
inline constexpr size_t kAnswersKept = 4096;

class Store {
 public:
  virtual ~Store() = default;
  // An empty state when there is none yet. DATA_LOSS with the file's name when it is corrupt.
  virtual absl::StatusOr<CoordinatorState> Load() = 0;
  // Durable when it returns. Writes the view, new terms, the tokens, the ids and `answered` (may be
  // null).
  virtual absl::Status Save(const CoordinatorState& state,
                            const CoordinatorState::Answered* answered) = 0;
};

class MemoryStore final : public Store {
 public:
  absl::StatusOr<CoordinatorState> Load() override { return state_; }
  absl::Status Save(const CoordinatorState& state, const CoordinatorState::Answered*) override {
    state_ = state;
    return absl::OkStatus();
  }

 private:
  CoordinatorState state_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_STORE_H_
