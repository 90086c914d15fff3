#include "server/coordinator/store.h"

#include "proto/control/view_change.h"

namespace verbena::server {

void FollowChange(const CoordinatorState& state, const StateChange& change,
                  CoordinatorState* kept) {
  if (change.view != nullptr && ApplyViewChange(*change.view, &kept->view)) {
    // A change does not always describe servers.
    *kept->view.mutable_servers() = state.view.servers();
  } else {
    kept->view = state.view;
    kept->terms = state.terms;
  }
  if (change.access) kept->access = state.access;
  kept->next_incarnation = state.next_incarnation;
  kept->next_table = state.next_table;
  kept->ended_generation = state.ended_generation;
  if (change.answered == nullptr) return;
  kept->answered.push_back(*change.answered);
  if (kept->answered.size() > kAnswersKept) kept->answered.pop_front();
}

}  // namespace verbena::server
