// Calls to the coordinator that are waited for, with errors that say what to do.
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
#include "absl/time/time.h"
#include "proto/control_channel.h"
#include "proto/unproved_state.h"

namespace verbena::cli {

// Where to call, and how long to wait.
struct Coordinator {
  ControlChannel* channel;
  std::string address;
  absl::Duration timeout;
  int interrupt_fd;  // becomes readable at a signal; -1: never
};

// Runs the channel until `done`; the channel ends every call by its timeout. CANCELLED:
// interrupted.
absl::Status RunUntil(const Coordinator& coordinator, const std::function<bool()>& done);

// Of a call that changes something: 128 random bits.
std::string NewRequestId();

// What is wrong with the coordinator, and what to try. CANCELLED is never an answer's code.
absl::Status Explain(const absl::Status& status, const Coordinator& coordinator);

// `status` without the address that a channel's messages begin with, harmless to a terminal.
std::string Said(const absl::Status& status, const std::string& address);

// Between two attempts. CANCELLED: interrupted.
absl::Status Pause(const Coordinator& coordinator);

// `method`: "GetView". Longer than the timeout only while the coordinator answers that it waits for
// servers, which ends by itself.
template <typename Response>
absl::StatusOr<Response> CallAndWait(const Coordinator& coordinator, const char* method,
                                     const google::protobuf::Message& request) {
  // Shared with the call: it may end after an interrupt has ended the wait.
  struct Answer {
    bool done = false;
    absl::StatusOr<Response> response = absl::UnknownError("no answer");
  };
  while (true) {
    auto answer = std::make_shared<Answer>();
    Call<Response>(*coordinator.channel, coordinator.address,
                   absl::StrCat("/verbena.v1.Cluster/", method), request, coordinator.timeout,
                   [answer](absl::StatusOr<Response> response) {
                     answer->response = std::move(response);
                     answer->done = true;
                   });
    absl::Status status = RunUntil(coordinator, [&] { return answer->done; });
    if (!status.ok()) return status;
    if (answer->response.ok()) return std::move(answer->response);
    if (!IsUnprovedState(answer->response.status())) {
      return Explain(answer->response.status(), coordinator);
    }
    if (status = Pause(coordinator); !status.ok()) return status;
  }
}

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_COORDINATOR_CALL_H_
