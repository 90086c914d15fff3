#include "client/core/calls.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/control/standby.h"
#include "proto/control/unproved_state.h"

namespace verbena::client {
namespace {

// Limit of one attempt, so that a coordinator that was stopped is reached soon after it continues.
constexpr int64_t kAttemptTimeout = 5 * kSecond;

// Between attempts while standbys answer, or a leader that waits for its servers: it is a matter of
// some seconds. More: each change of the leader costs a call that much. Less: a thousand callers
// load the coordinators.
constexpr int64_t kElectionWait = 200 * kMillisecond;

// A call with less than twice this time left is over.
constexpr int64_t kShortestWait = 5 * kMillisecond;

bool Retryable(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

}  // namespace

Calls::Calls(ControlChannel* control, const Clock* clock, Random* random)
    : control_(control), clock_(clock), random_(random) {}

Calls::~Calls() { *alive_ = false; }

std::string Calls::NewRequestId() {
  std::string id;
  for (int i = 0; i < 2; ++i) {
    const uint64_t bits = (*random_)();
    id.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  return id;
}

void Calls::Add(std::shared_ptr<Pending> call) {
  pending_.push_back(call);
  Attempt(call);
}

void Calls::Attempt(const std::shared_ptr<Pending>& call) {
  const int64_t left = call->deadline_ns - clock_->NowNanos();
  call->retry_at = kNever;
  auto response = call->make_response();
  // At least 1 ms: the channel ends a call whose deadline has passed, so `done` never runs inside
  // Start().
  const int64_t timeout = std::clamp(left, kMillisecond, kAttemptTimeout);
  control_->Unary(call->address, call->method, *call->request, response, absl::Nanoseconds(timeout),
                  [this, alive = alive_, call, response](absl::Status status) {
                    if (*alive) OnAnswer(call, std::move(status), response.get());
                  });
}

void Calls::OnAnswer(const std::shared_ptr<Pending>& call, absl::Status status,
                     google::protobuf::Message* response) {
  if (call->done == nullptr) return;  // cancelled meanwhile
  const bool passes = call->passes != nullptr && call->passes(status);
  if (!passes && !Retryable(status)) return End(call, std::move(status), response);
  const int64_t now = clock_->NowNanos();
  const bool election = status.GetPayload(kStandbyPayload).has_value() || IsUnprovedState(status);
  // An attempt cut short by the deadline has less information than the previous one.
  if (passes || call->last_error.ok() || status.code() == absl::StatusCode::kUnavailable) {
    call->last_error = std::move(status);
  }
  // Shorter pauses near the deadline, to reach a peer that returns just before it.
  const int64_t left = call->deadline_ns - now;
  const int64_t longest = election ? kElectionWait : Backoff::kLongestNanos;
  const int64_t wait = std::min(call->backoff.Next(*random_, longest), left / 2);
  if (wait >= kShortestWait) {
    call->retry_at = now + wait;
    return;
  }
  if (call->passes != nullptr && call->passes(call->last_error)) {
    return End(call, call->last_error, nullptr);
  }
  End(call,
      absl::UnavailableError(absl::StrCat("no answer from ", call->address, " (", call->method,
                                          ") by the deadline; last: ", call->last_error.message())),
      nullptr);
}

void Calls::End(const std::shared_ptr<Pending>& call, absl::Status status,
                google::protobuf::Message* response) {
  auto done = std::move(call->done);
  call->done = nullptr;
  pending_.remove(call);
  done(std::move(status), response);
}

bool Calls::RunOnce(int64_t now) {
  bool worked = false;
  for (auto it = pending_.begin(); it != pending_.end();) {
    const std::shared_ptr<Pending> call = *it++;
    if (call->retry_at > now) continue;
    worked = true;
    Attempt(call);
  }
  return worked;
}

int64_t Calls::NextTimerNanos() const {
  int64_t next = kNever;
  for (const auto& call : pending_) next = std::min(next, call->retry_at);
  return next;
}

void Calls::CancelAll(const absl::Status& status) {
  const std::vector<std::shared_ptr<Pending>> all(pending_.begin(), pending_.end());
  for (const auto& call : all) {
    if (call->done != nullptr) End(call, status, nullptr);
  }
}

}  // namespace verbena::client
