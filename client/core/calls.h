// Control calls that are repeated until they are answered: same request (and request_id), backoff
// between attempts, one deadline.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. A call's `done` runs once, inside RunOnce() of the control channel or of this object, unless
//     this object is destroyed first.
#ifndef VERBENA_CLIENT_CORE_CALLS_H_
#define VERBENA_CLIENT_CORE_CALLS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/core/backoff.h"
#include "proto/control/control_channel.h"
#include "rdma/base/clock.h"

namespace verbena::client {

class Calls {
 public:
  Calls(ControlChannel* control, const Clock* clock, Random* random);
  ~Calls();

  using Passes = bool (*)(const absl::Status& status);

  // Repeats the call while the answer is UNAVAILABLE or missing. At the deadline it ends with
  // UNAVAILABLE, with the address and the last error. `passes`: answers that may be others later;
  // the call is repeated after them, too, and ends with them.
  template <typename Response, typename Request, typename F>
  void Start(const std::string& address, const std::string& method, Request request,
             int64_t deadline_ns, F done, Passes passes = nullptr) {
    auto call = std::make_shared<Pending>();
    call->passes = passes;
    call->address = address;
    call->method = method;
    call->request = std::make_shared<Request>(std::move(request));
    call->make_response = [] { return std::make_shared<Response>(); };
    call->deadline_ns = deadline_ns;
    call->done = [done = std::move(done)](absl::Status status,
                                          google::protobuf::Message* response) mutable {
      if (status.ok()) {
        done(absl::StatusOr<Response>(std::move(*static_cast<Response*>(response))));
      } else {
        done(absl::StatusOr<Response>(std::move(status)));
      }
    };
    Add(std::move(call));
  }

  bool RunOnce(int64_t now);
  int64_t NextTimerNanos() const;
  bool busy() const { return !pending_.empty(); }
  // Ends every call with `status`.
  void CancelAll(const absl::Status& status);
  // 128 random bits.
  std::string NewRequestId();

 private:
  struct Pending {
    std::string address, method;
    std::shared_ptr<google::protobuf::Message> request;
    std::function<std::shared_ptr<google::protobuf::Message>()> make_response;
    int64_t deadline_ns = 0;
    Passes passes = nullptr;
    int64_t retry_at = kNever;  // kNever: an attempt is in flight
    Backoff backoff;
    absl::Status last_error;
    std::function<void(absl::Status, google::protobuf::Message*)> done;
  };

  void Add(std::shared_ptr<Pending> call);
  void Attempt(const std::shared_ptr<Pending>& call);
  void OnAnswer(const std::shared_ptr<Pending>& call, absl::Status status,
                google::protobuf::Message* response);
  void End(const std::shared_ptr<Pending>& call, absl::Status status,
           google::protobuf::Message* response);

  ControlChannel* control_;
  const Clock* clock_;
  Random* random_;
  std::list<std::shared_ptr<Pending>> pending_;
  // False after this object is destroyed; later answers check it, because the channel may live
  // longer.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_CALLS_H_
