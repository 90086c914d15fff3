#include "server/cli/verbena/seen_coordinator.h"

#include "proto/control/standby.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::cli {

absl::StatusOr<SeenCoordinator> LookAt(const std::string& address, const Coordinator& coordinator) {
  Coordinator one = coordinator;
  one.address = address;
  const absl::StatusOr<v1::GetViewResponse> view =
      CallOnce<v1::GetViewResponse>(one, "GetView", v1::GetViewRequest(), one.timeout);
  SeenCoordinator seen;
  seen.address = address;
  if (absl::IsCancelled(view.status())) return view.status();
  if (view.ok()) {
    seen.state = "leads";
    seen.leader = address;
    seen.term = view->view().term();
    return seen;
  }
  seen.problem = Said(view.status(), address);
  if (const auto leader = view.status().GetPayload(kStandbyPayload); leader.has_value()) {
    seen.state = "standby";
    seen.leader = std::string(*leader);
    if (!seen.leader.empty()) seen.problem.clear();
  }
  return seen;
}

}  // namespace verbena::cli
