// Passes a unary gRPC call to the thread that owns a state machine, and returns its answer.
//
// Every call ends: with the answer, at the deadline (a stuck owner cannot hang a caller), or when
// the closure that would have answered is destroyed unrun (the owner is stopping).
//
// **Thread safety**: UnaryCall::Finish() from any thread, any number of times; the first counts.
#ifndef VERBENA_SERVER_CONTROL_UNARY_CALL_H_
#define VERBENA_SERVER_CONTROL_UNARY_CALL_H_

#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/control/control_call.h"
#include "server/executor/inbox.h"

namespace verbena::server {

template <typename Response>
class UnaryCall : public std::enable_shared_from_this<UnaryCall<Response>> {
 public:
  UnaryCall(ControlCall* call, Response* response) : call_(call), response_(response) {}

  void SetDeadline(absl::Duration timeout, std::string error) {
    // Weak: the alarm holds its callback until this object, its owner, is destroyed.
    alarm_.Set(std::chrono::system_clock::now() +
                   std::chrono::milliseconds(absl::ToInt64Milliseconds(timeout)),
               [weak = this->weak_from_this(), error = std::move(error)](bool fired) {
                 if (!fired) return;
                 if (auto call = weak.lock()) call->Finish(absl::DeadlineExceededError(error));
               });
  }

  void Finish(absl::StatusOr<Response> result) {
    if (finished_.exchange(true, std::memory_order_acq_rel)) return;
    // After Finish() gRPC may free the response and the call.
    if (result.ok()) {
      *response_ = *std::move(result);
      call_->Finish(grpc::Status::OK);
    } else {
      call_->Finish(ToGrpc(result.status()));
    }
  }
  bool finished() const { return finished_.load(std::memory_order_acquire); }

 private:
  ControlCall* const call_;
  Response* const response_;
  std::atomic<bool> finished_{false};
  grpc::Alarm alarm_;
};

// Answers a call. If it is destroyed without an answer, the answer is that the server is stopping
// (or that its coordinator leads no more, for a caller that waited for it).
template <typename Response>
class Answerer {
 public:
  explicit Answerer(std::shared_ptr<UnaryCall<Response>> call) : call_(std::move(call)) {}
  Answerer(Answerer&&) = default;
  Answerer& operator=(Answerer&&) = delete;
  ~Answerer() {
    if (call_ != nullptr) {
      call_->Finish(
          absl::UnavailableError("this server is stopping, or its coordinator leads no more"));
    }
  }
  void operator()(absl::StatusOr<Response> result) { call_->Finish(std::move(result)); }
  bool finished() const { return call_->finished(); }

 private:
  std::shared_ptr<UnaryCall<Response>> call_;
};

// Runs handler(request, answerer) on the thread that post(closure, refuse) reaches, which takes the
// closure or returns an error. A closure that it has taken may end by refuse(status) instead. `who`
// is the name in the deadline error.
template <typename Post, typename Request, typename Response, typename Handler>
void HandleBy(Post post, ControlCall* control, const Request& request, Response* response,
              absl::Duration timeout, const std::string& who, Handler handler) {
  auto call = std::make_shared<UnaryCall<Response>>(control, response);
  call->SetDeadline(timeout,
                    absl::StrCat(who, " did not answer within ", absl::FormatDuration(timeout)));
  // The request is gRPC's and goes away when the call is finished, which the deadline may do.
  Inbox::Closure closure = [request, handler = std::move(handler),
                            answer = Answerer<Response>(call)]() mutable {
    if (!answer.finished()) handler(request, std::move(answer));
  };
  const auto refuse = [call](const absl::Status& status) { call->Finish(status); };
  if (const absl::Status posted = post(closure, refuse); !posted.ok()) call->Finish(posted);
}

// Ends a call at once.
inline void FinishNow(ControlCall* call, const absl::Status& status) {
  call->Finish(ToGrpc(status));
}

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_UNARY_CALL_H_
