// Calls on the control plane, as an interface for a single-threaded state machine.
//
// There are two implementations: gRPC (proto/control/grpc_control_channel.h), and in-process with
// virtual time (tests/cluster). A callback runs inside RunOnce(), on the thread that calls it,
// never inside Unary(). So an owner needs no lock.
//
// **Thread safety**: one owner thread, unless an implementation allows more.
#ifndef VERBENA_PROTO_CONTROL_CONTROL_CHANNEL_H_
#define VERBENA_PROTO_CONTROL_CONTROL_CHANNEL_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"

namespace verbena {

// Payload of an UNAUTHENTICATED status that the channel itself made: one side failed to verify the
// other. The peer did not send it.
inline constexpr char kUntrustedPayload[] = "verbena/untrusted";
inline absl::Status UntrustedError(const std::string& message) {
  absl::Status status = absl::UnauthenticatedError(message);
  status.SetPayload(kUntrustedPayload, absl::Cord());
  return status;
}
// Whether the peer itself refuses the caller because of the caller's identity.
inline bool RefusesCaller(const absl::Status& status) {
  return absl::IsPermissionDenied(status) ||
         (absl::IsUnauthenticated(status) && !status.GetPayload(kUntrustedPayload).has_value());
}

class ControlChannel {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  virtual ~ControlChannel() = default;

  // Calls `method` ("/verbena.v1.Cluster/JoinWorker") of the server at `address` (host:port; of the
  // coordinator perhaps a list, see GrpcControlChannel::Unary()).
  // `request` is serialized before this returns; `response` stays alive until `done` has run.
  // `done` runs exactly once, at the latest after `timeout` (DEADLINE_EXCEEDED), unless the channel
  // is destroyed first.
  virtual void Unary(const std::string& address, const std::string& method,
                     const google::protobuf::Message& request,
                     std::shared_ptr<google::protobuf::Message> response, absl::Duration timeout,
                     Done done) = 0;

  // Runs the callbacks of calls that have ended. Returns whether there were any.
  virtual bool RunOnce() = 0;

  // Whether any thread may call Unary(), also while another thread is in a call of this object.
  virtual bool any_thread() const { return false; }

  // Readable when RunOnce() has work; -1: there is no such descriptor (in-process).
  virtual int wake_fd() const = 0;
};

// Typed form: Call<JoinWorkerResponse>(channel, address, "/verbena.v1.Cluster/JoinWorker", ...).
template <typename Response, typename F>
void Call(ControlChannel& channel, const std::string& address, const std::string& method,
          const google::protobuf::Message& request, absl::Duration timeout, F done) {
  auto response = std::make_shared<Response>();
  channel.Unary(address, method, request, response, timeout,
                [response, done = std::move(done)](absl::Status status) mutable {
                  if (status.ok()) {
                    done(absl::StatusOr<Response>(std::move(*response)));
                  } else {
                    done(absl::StatusOr<Response>(std::move(status)));
                  }
                });
}

}  // namespace verbena

#endif  // VERBENA_PROTO_CONTROL_CONTROL_CHANNEL_H_
