#include "server/control/membership_task.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::server {

bool MembershipTask::RunOnce() {
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
  const absl::StatusCode failed_before = std::exchange(failed_, membership_.last_error().code());
  // Logs once when calls begin to fail, and once when an operator has to remove the cause; other
  // reasons may change with every attempt.
  const bool for_an_operator = failed_ == absl::StatusCode::kUnauthenticated ||
                               failed_ == absl::StatusCode::kFailedPrecondition;
  const bool fails_newly =
      failed_ != failed_before && (failed_before == absl::StatusCode::kOk || for_an_operator);
  if (before.incarnation != now.incarnation) {
    said_.Write(absl::StrCat("joined the cluster as incarnation ", now.incarnation));
  } else if (fails_newly && !now.status.ok() && !now.ended) {
    wrong_.Write(std::string(now.status.message()));
  } else if (!before.status.ok() && now.status.ok()) {
    said_.Write("the coordinator answers again");
  }
  return worked;
}

}  // namespace verbena::server
