#include "tests/cluster/swarm_standstill.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace verbena::test {
namespace {

// Credits and wake-ups are in progress for as long as the slowest link needs.
constexpr int64_t kLongest = 300 * kMilli;

// Requests that wait in queues of lanes while nothing is in flight and every lane is open; 0 where
// something else may let them go.
uint32_t Waiting(const client::CoreStatistics& statistics) {
  uint32_t waiting = 0;
  for (const auto& lane : statistics.lanes) {
    if (lane.in_flight > 0 || (lane.state != "open" && lane.state != "idle")) return 0;
    if (lane.state == "open") waiting += lane.queued_pulls;
  }
  return waiting;
}

}  // namespace

void SwarmStandstill::Look(const SwarmClient& client) {
  const SimWorker* process = client.process();
  State& state = states_[process->host()];
  const int64_t now = world_->now();
  const auto statistics = process->core().statistics();
  const uint64_t progress = statistics.pulls + statistics.pushes + statistics.lanes_opened;
  const uint32_t waiting = Waiting(statistics);
  if (waiting == 0 || progress != state.progress || process->held(now) || process->stalled(now)) {
    state = {progress, 0};
    return;
  }
  if (state.since_ns == 0) state.since_ns = now;
  if (now - state.since_ns < kLongest) return;
  world_->Violation(absl::StrCat(client.Describe(), " stands still: ", waiting,
                                 " requests wait in queues of open lanes, nothing is in flight"));
}

}  // namespace verbena::test
