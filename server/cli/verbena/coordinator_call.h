// Synchronous calls to the coordinator, with errors that name the fix.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_COORDINATOR_CALL_H_
#define VERBENA_SERVER_CLI_VERBENA_COORDINATOR_CALL_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/control/control_channel.h"
#include "proto/control/standby.h"

namespace verbena::cli {

// The address of a coordinator, and the timeout.
struct Coordinator {
  ControlChannel* channel;
  std::string address;
  absl::Duration timeout;
  int interrupt_fd;  // becomes readable at a signal; -1: never
};

// Runs the channel until `done`; the channel ends every call by its timeout. CANCELLED:
// interrupted.
absl::Status RunUntil(const Coordinator& coordinator, const std::function<bool()>& done);

// The id of a call that changes something: 128 random bits.
std::string NewRequestId();

// The coordinator's problem and the fix. CANCELLED is never an answer's code.
absl::Status Explain(const absl::Status& status, const Coordinator& coordinator);

// `status` without the address with which a channel's messages begin, safe for a terminal.
std::string Said(const absl::Status& status, const std::string& address);

// `method`: "GetView". The status is the channel's or the coordinator's; CANCELLED: interrupted.
template <typename Response>
absl::StatusOr<Response> CallOnce(const Coordinator& coordinator, const char* method,
                                  const google::protobuf::Message& request,
                                  absl::Duration timeout) {
  // Shared with the call: it may end after an interrupt has ended the wait.
  struct Answer {
    bool done = false;
    absl::StatusOr<Response> response = absl::UnknownError("no answer");
  };
  auto answer = std::make_shared<Answer>();
  Call<Response>(*coordinator.channel, coordinator.address,
                 absl::StrCat("/verbena.v1.Cluster/", method), request, timeout,
                 [answer](absl::StatusOr<Response> response) {
                   answer->response = std::move(response);
                   answer->done = true;
                 });
  absl::Status status = RunUntil(coordinator, [&] { return answer->done; });
  if (!status.ok()) return status;
  if (absl::IsCancelled(answer->response.status())) {
    return absl::UnknownError(answer->response.status().message());
  }
  return std::move(answer->response);
}

// Retries a call that changes something, until the coordinator's timeout. After a start, a
// coordinator changes nothing until its servers have confirmed that its state is the newest;
// meanwhile, for a lease at most, it answers UNAVAILABLE.
class ChangeRetry {
 public:
  explicit ChangeRetry(const Coordinator& coordinator)
      : coordinator_(coordinator), deadline_(absl::Now() + coordinator.timeout) {}

  // For the next try.
  absl::Duration left() const { return deadline_ - absl::Now(); }
  // Whether to retry after this status: pauses first, and prints a new reason on standard error.
  // Otherwise `*status` is for the user.
  bool Again(absl::Status* status);

 private:
  const Coordinator& coordinator_;
  const absl::Time deadline_;
  std::string printed_;
};

// While no coordinator of several leads, the call is repeated until the coordinator's timeout.
template <typename Response>
absl::StatusOr<Response> CallAndWait(const Coordinator& coordinator, const char* method,
                                     const google::protobuf::Message& request) {
  ChangeRetry retry(coordinator);
  while (true) {
    auto response = CallOnce<Response>(coordinator, method, request, retry.left());
    if (response.ok() || absl::IsCancelled(response.status())) return response;
    absl::Status status = response.status();
    if (!status.GetPayload(kStandbyPayload).has_value()) return Explain(status, coordinator);
    if (!retry.Again(&status)) return status;
  }
}

// `request` has a request id, so that a retry after a lost answer is not executed twice.
template <typename Response>
absl::StatusOr<Response> ChangeAndWait(const Coordinator& coordinator, const char* method,
                                       const google::protobuf::Message& request) {
  ChangeRetry retry(coordinator);
  while (true) {
    auto response = CallOnce<Response>(coordinator, method, request, retry.left());
    if (response.ok()) return response;
    absl::Status status = response.status();
    if (!retry.Again(&status)) return status;
  }
}

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_COORDINATOR_CALL_H_
