// Control-plane calls: authorized by their headers before their requests are read.
//
// gRPC reads the whole request of a unary method before it passes on the call, and checks the size
// limit only then: a peer without a token could take any amount of memory. So methods are
// registered as client-streaming ones, which look the same to clients. A call that is not admitted
// holds no more than the window of its stream (ConfigureControlServer()).
//
// **Thread safety**: Finish() from any thread, once.
#ifndef VERBENA_SERVER_CONTROL_CONTROL_CALL_H_
#define VERBENA_SERVER_CONTROL_CONTROL_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "proto/control/standby.h"
#include "server/access/budget.h"
#include "server/access/gate.h"
#include "server/control/control_port.h"

namespace verbena::server {

// Time from a call's headers until all of its request is there.
inline constexpr std::chrono::seconds kWholeRequestTime{10};

inline grpc::Status ToGrpc(const absl::Status& status) {
  // The codes are the same numbers by design (absl/status/status.h).
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
          StandbyDetails(status)};
}

// The handler's view of a call. It may be gone once Finish() has been called.
class ControlCall {
 public:
  explicit ControlCall(Caller caller) : caller_(std::move(caller)) {}
  const Caller& caller() const { return caller_; }
  virtual void Finish(const grpc::Status& status) = 0;

 protected:
  ~ControlCall() = default;

 private:
  const Caller caller_;
};

// Owned by gRPC until OnDone().
template <typename Request, typename Response>
class JudgedCall final : public grpc::ServerReadReactor<Request>, public ControlCall {
 public:
  // `handle(this, &request, response)` runs once the request is there, unless `admitted` is an
  // error.
  template <typename Handler>
  JudgedCall(Caller caller, const absl::Status& admitted, Response* response, Handler handle)
      : ControlCall(std::move(caller)) {
    if (!admitted.ok()) {
      Finish(ToGrpc(admitted));
      return;
    }
    handle_ = [this, response, handle] { handle(this, &request_, response); };
    // The alarm's callback may outlive the call.
    late_.Set(std::chrono::system_clock::now() + kWholeRequestTime,
              [reading = reading_](bool fired) {
                if (!fired) return;
                const std::lock_guard<std::mutex> lock(reading->mutex);
                JudgedCall* const call = std::exchange(reading->call, nullptr);
                if (call == nullptr) return;
                CountExceeded(Budget::kIncompleteRequest);
                call->Finish({grpc::StatusCode::DEADLINE_EXCEEDED,
                              "the request was not complete within 10 s of its headers"});
              });
    this->StartRead(&request_);
  }

  void Finish(const grpc::Status& status) override {
    grpc::ServerReadReactor<Request>::Finish(status);
  }
  void OnReadDone(bool ok) override {
    {
      const std::lock_guard<std::mutex> lock(reading_->mutex);
      if (std::exchange(reading_->call, nullptr) == nullptr) return;
    }
    if (ok) return handle_();
    Finish({grpc::StatusCode::INVALID_ARGUMENT,
            "the request is no " + Request::descriptor()->name() + ", or did not arrive"});
  }
  void OnDone() override { delete this; }

 private:
  struct Reading {
    explicit Reading(JudgedCall* c) : call(c) {}
    std::mutex mutex;
    JudgedCall* call;  // guarded by mutex; null: the request is there, or the call has ended
  };

  Request request_;
  std::function<void()> handle_;
  const std::shared_ptr<Reading> reading_ = std::make_shared<Reading>(this);
  grpc::Alarm late_;
};

// A service of such calls.
class ControlService : public grpc::Service {
 public:
  // Before calls come; outlives them.
  void SetPort(ControlPort* port) { port_ = port; }

 protected:
  // Whether the request of a call is read; a refusal has been audited (Gate::Admit()). From any
  // thread.
  virtual absl::Status Admit(Caller* caller, const std::string& method) const = 0;

  // Serves MethodOf<Request>() by `handler` of the derived class.
  template <typename Self, typename Request, typename Response>
  void Add(void (Self::*handler)(ControlCall*, const Request*, Response*)) {
    const int index = static_cast<int>(names_.size());
    const std::string& name = names_.emplace_back(MethodOf<Request>());
    AddMethod(new grpc::internal::RpcServiceMethod(
        name.c_str(), grpc::internal::RpcMethod::CLIENT_STREAMING, nullptr));
    MarkMethodCallback(
        index, new grpc::internal::CallbackClientStreamingHandler<Request, Response>(
                   [this, self = static_cast<Self*>(this), handler, &name](
                       grpc::CallbackServerContext* context, Response* response) {
                     Caller caller = CallerOf(*context);
                     const absl::Status admitted = Admit(&caller, name);
                     if (admitted.ok() && port_ != nullptr) {
                       port_->Admitted(caller.peer, QueueOf(caller));
                     }
                     return new JudgedCall<Request, Response>(
                         std::move(caller), admitted, response,
                         [self, handler](ControlCall* call, const Request* request, Response* r) {
                           (self->*handler)(call, request, r);
                         });
                   }));
  }

 private:
  ControlPort* port_ = nullptr;
  std::deque<std::string> names_;  // gRPC keeps pointers to them
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_CONTROL_CALL_H_
