#include "client/core/lease_keeper.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/failpoints.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::client {

// ---- the owner's call ---------------------------------------------------------------------------

void CurrentCall::Set(const char* what, uint64_t bytes) {
  what_.store(what, std::memory_order_relaxed);
  bytes_.store(bytes, std::memory_order_relaxed);
  // Not fetch_add(): only the owner writes, and it does so for every pull.
  number_.store(number_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

CurrentCall::Scope::Scope(CurrentCall* call, const char* what, uint64_t bytes)
    : call_(call),
      outer_what_(call->what_.load(std::memory_order_relaxed)),
      outer_bytes_(call->bytes_.load(std::memory_order_relaxed)) {
  call_->Set(what, bytes);
}

CurrentCall::Scope::~Scope() { call_->Set(outer_what_, outer_bytes_); }

CurrentCall::Reading CurrentCall::Get() const {
  Reading reading;
  reading.number = number_.load(std::memory_order_relaxed);
  reading.what = what_.load(std::memory_order_relaxed);
  reading.bytes = bytes_.load(std::memory_order_relaxed);
  return reading;
}

// ---- the lease ----------------------------------------------------------------------------------

struct LeaseKeeper::State {
  std::mutex mutex;
  uint64_t incarnation = 0;  // 0: no lease
  int64_t lease_ns = 0;
  int64_t renewed_ns = 0;  // send time of the last answered heartbeat
  int64_t sent_ns = 0;     // time of the last one that RunOnce() sent
};

LeaseKeeper::LeaseKeeper(std::string cluster, ControlChannel* control, const Clock* clock, Log log,
                         std::function<void(int64_t now)> report)
    : cluster_(std::move(cluster)),
      control_(control),
      clock_(clock),
      log_(std::move(log)),
      report_(std::move(report)),
      state_(std::make_shared<State>()) {}

LeaseKeeper::~LeaseKeeper() { Stop(); }

void LeaseKeeper::Start(uint64_t incarnation, int64_t lease_ns) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->incarnation = incarnation;
  state_->lease_ns = lease_ns;
  state_->renewed_ns = state_->sent_ns = clock_->NowNanos();
}

void LeaseKeeper::Renewed(int64_t sent_ns) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->renewed_ns = std::max(state_->renewed_ns, sent_ns);
}

void LeaseKeeper::Stop() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->incarnation = 0;
}

int64_t LeaseKeeper::RunOnce(int64_t now) {
  Report(now);
  if (VERBENA_FAILPOINT(client, heartbeats_need_owner)) return now + kLookNanos;
  v1::HeartbeatRequest request;
  int64_t interval = 0;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->incarnation == 0) return now + kJoinLookNanos;
    interval = state_->lease_ns / 4;  // the same as the session's
    // The session is late by half an interval. The core's owner, which may be busy, handles the
    // session's answers. So after the first heartbeat one more is sent per interval.
    const int64_t due = std::max(state_->renewed_ns + interval + interval / 2,  //
                                 state_->sent_ns + interval);
    if (now < due) return std::min(due, now + kLookNanos);
    state_->sent_ns = now;
    request.set_incarnation(state_->incarnation);
  }
  Call<v1::HeartbeatResponse>(
      *control_, cluster_, "/verbena.v1.Cluster/Heartbeat", request, absl::Nanoseconds(interval),
      [state = state_, now](const absl::StatusOr<v1::HeartbeatResponse>& response) {
        if (!response.ok()) return;
        const std::lock_guard<std::mutex> lock(state->mutex);
        state->renewed_ns = std::max(state->renewed_ns, now);
      });
  return now + std::min(interval, kLookNanos);
}

void LeaseKeeper::Report(int64_t now) {
  if (report_ != nullptr) report_(now);
  const CurrentCall::Reading call = call_.Get();
  if (call.what == nullptr || call.number != seen_number_) {
    seen_number_ = call.number;
    seen_since_ = now;
    report_at_ = now + kReportAfterNanos;
    return;
  }
  if (now < report_at_) return;
  // Report again after the same time as it has taken until now.
  report_at_ = now + (now - seen_since_);
  if (log_ == nullptr) return;
  log_(absl::StrCat("client: ", call.what, " (", call.bytes, " bytes) has taken more than ",
                    (now - seen_since_) / 1'000'000'000,
                    " s; heartbeats go on, other calls of this client wait"));
}

}  // namespace verbena::client
