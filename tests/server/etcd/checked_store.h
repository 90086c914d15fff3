// A store in a fake etcd that is compared with a model: all of a save or nothing, by one leader.
#ifndef VERBENA_TESTS_SERVER_ETCD_CHECKED_STORE_H_
#define VERBENA_TESTS_SERVER_ETCD_CHECKED_STORE_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/coordinator/etcd/etcd_store.h"
#include "tests/server/etcd/fake_etcd.h"

namespace verbena::server {

// All of the state, with jobs and members in one order.
inline std::string BytesOf(CoordinatorState state) {
  auto* jobs = state.view.mutable_jobs();
  std::sort(jobs->begin(), jobs->end(),
            [](const v1::Job& a, const v1::Job& b) { return a.name() < b.name(); });
  for (v1::Job& job : *jobs) {
    std::sort(
        job.mutable_members()->begin(), job.mutable_members()->end(),
        [](const v1::Worker& a, const v1::Worker& b) { return a.incarnation() < b.incarnation(); });
  }
  v1::History history;
  *history.mutable_terms() = state.terms;
  std::string bytes =
      absl::StrCat(state.view.SerializeAsString(), "|", state.access.SerializeAsString(), "|",
                   history.SerializeAsString(), "|", state.next_incarnation, "|", state.next_table,
                   "|", state.ended_generation);
  for (const CoordinatorState::Answered& a : state.answered) {
    absl::StrAppend(&bytes, "|", a.request_id, "|", a.method, "|", a.response);
  }
  return bytes;
}

struct StoreWorld {
  FakeEtcd etcd;
  MonotonicClock clock;
  int64_t leader = 0;  // the create revision of the leader's key
  std::vector<CoordinatorState> possible = {CoordinatorState()};  // that etcd has
  std::string wrong;                                              // the first violation

  void Violated(const std::string& what) {
    if (wrong.empty()) wrong = what;
  }
  int64_t NewLeader() { return leader = etcd.Recreate("/verbena/leader", "somebody:7000"); }
};

class CheckedStore final : public Store {
 public:
  CheckedStore(StoreWorld* world, EtcdClient* client, EtcdLimits limits)
      : world_(world),
        own_(world->NewLeader()),
        inner_(client, &world->clock, {own_, [] { return std::numeric_limits<int64_t>::max(); }},
               limits) {}

  absl::StatusOr<CoordinatorState> Load() override {
    absl::StatusOr<CoordinatorState> loaded = inner_.Load();
    if (!loaded.ok()) {
      if (absl::IsDataLoss(loaded.status()))
        world_->Violated(std::string(loaded.status().message()));
      return loaded;
    }
    if (own_ != world_->leader) world_->Violated("a former leader has loaded the state");
    const std::string bytes = BytesOf(*loaded);
    const bool known =
        std::any_of(world_->possible.begin(), world_->possible.end(),
                    [&](const CoordinatorState& state) { return BytesOf(state) == bytes; });
    if (!known)
      world_->Violated("the loaded state was never saved as a whole, or its save was refused");
    world_->possible = {*loaded};
    state_ = *loaded;
    return loaded;
  }

  absl::Status SaveAll(const CoordinatorState& state,
                       absl::Span<const StateChange> changes) override {
    CoordinatorState after = state_;
    for (const StateChange& change : changes) FollowChange(state, change, &after);
    const bool had_ended = !inner_.status().ok();
    absl::Status saved = inner_.SaveAll(state, changes);
    if (saved.ok()) {
      if (own_ != world_->leader) world_->Violated("a former leader has written");
      world_->possible = {after};
      state_ = std::move(after);
    } else if (!had_ended && !inner_.status().ok() && own_ == world_->leader) {
      world_->possible.push_back(std::move(after));
    }
    return saved;
  }

  const EtcdStore& inner() const { return inner_; }

 private:
  StoreWorld* const world_;
  const int64_t own_;
  EtcdStore inner_;
  CoordinatorState state_;  // as it is known to be stored
};

}  // namespace verbena::server

#endif  // VERBENA_TESTS_SERVER_ETCD_CHECKED_STORE_H_
