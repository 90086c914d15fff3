#include "server/control/membership_machine.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

namespace verbena::server {

bool MembershipMachine::RunOnce() {
  bool worked = inbox_.RunOnce();
  worked |= membership_.RunOnce();
  State now{membership_.incarnation(), membership_.status(), membership_.ended()};
  if (now.incarnation == 0 && now.status.ok()) {
    now.status = absl::UnavailableError("this server has not joined its cluster yet");
  }
  State before;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    before = std::exchange(state_, now);
  }
  if (before.incarnation != now.incarnation) {
    spdlog::info("joined the cluster as incarnation {}", now.incarnation);
  } else if (before.status.ok() && !now.status.ok() && !now.ended) {
    spdlog::warn("{}", std::string(now.status.message()));
  } else if (!before.status.ok() && now.status.ok()) {
    spdlog::info("the coordinator answers again");
  }
  return worked;
}

}  // namespace verbena::server
