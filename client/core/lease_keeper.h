// Heartbeats while the owner of the core is in a call that takes long, such as opening lanes or
// releasing regions.
//
// The session sends the heartbeats of a client, so they need the core, which its owner holds during
// such a call. This object is a second sender that needs neither: it knows the incarnation, the
// length of the lease and when the last answered heartbeat was sent, and sends one itself when the
// session is late. It also reports, through a log function, which call the owner is in when that
// goes on for more than two seconds.
//
// The session remains the one that decides: answers to these heartbeats renew, and nothing else. A
// lease that has ended is found by the session's next heartbeat.
//
// **Thread safety**: thread-safe. RunOnce() is for one thread, which must not hold the core; it
// sends only over a channel whose Unary() any thread may call.
//
// Invariants:
//  1. No function waits for the owner of the core, and none of them waits for a peer.
//  2. After Stop() no heartbeat is sent.
#ifndef VERBENA_CLIENT_CORE_LEASE_KEEPER_H_
#define VERBENA_CLIENT_CORE_LEASE_KEEPER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "proto/control_channel.h"
#include "rdma/base/clock.h"

namespace verbena::client {

// The long call that the owner of the core is in, if any. Written by the owner without a clock or a
// lock, so that it costs nothing where calls are short.
//
// **Thread safety**: Scope for the owner; Get() from any thread. A reading that crosses a change of
// scope may mix two calls: it is for a log line only.
class CurrentCall {
 public:
  // `what` is a literal. Scopes nest; the inner one shows.
  class Scope {
   public:
    Scope(CurrentCall* call, const char* what, uint64_t bytes);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CurrentCall* const call_;
    const char* const outer_what_;
    const uint64_t outer_bytes_;
  };
  struct Reading {
    const char* what = nullptr;  // null: none
    uint64_t bytes = 0;
    uint64_t number = 0;  // of the scope
  };
  Reading Get() const;

 private:
  void Set(const char* what, uint64_t bytes);

  // Relaxed, all of them: nothing is published by them.
  std::atomic<const char*> what_{nullptr};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> number_{0};
};

class LeaseKeeper {
 public:
  // How long a call may go on before it is reported, and how often RunOnce() looks for one.
  static constexpr int64_t kReportAfterNanos = 2'000'000'000;
  static constexpr int64_t kLookNanos = 1'000'000'000;
  // How often it looks for a lease before there is one: a good part of the shortest lease in use.
  static constexpr int64_t kJoinLookNanos = 100'000'000;

  using Log = std::function<void(const std::string&)>;
  // `log` and `report` may be null; the latter is called with each look for a long call. All must
  // outlive this object.
  LeaseKeeper(std::string cluster, ControlChannel* control, const Clock* clock, Log log,
              std::function<void(int64_t now)> report = nullptr);
  ~LeaseKeeper();

  // ---- the session's ----
  void Start(uint64_t incarnation, int64_t lease_ns);
  // A heartbeat that was sent then has been answered with OK.
  void Renewed(int64_t sent_ns);
  void Stop();

  CurrentCall* current_call() { return &call_; }

  // ---- any one thread's ----
  // Whether the channel allows RunOnce() at all.
  bool usable() const { return control_->any_thread(); }
  // Sends a heartbeat if the session is late, reports a long call. Returns when to call it next.
  int64_t RunOnce(int64_t now);

 private:
  struct State;
  void Report(int64_t now);

  const std::string cluster_;
  ControlChannel* const control_;
  const Clock* const clock_;
  const Log log_;
  const std::function<void(int64_t now)> report_;
  // Shared with answers that come when this object is gone.
  std::shared_ptr<State> state_;
  CurrentCall call_;
  uint64_t seen_number_ =
      0;  // RunOnce()'s: the call it has seen, since when, and when to report it
  int64_t seen_since_ = 0;
  int64_t report_at_ = 0;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_LEASE_KEEPER_H_
