// Sends heartbeats while the core's owner is in a long call, such as opening lanes or releasing
// regions.
//
// The session sends a client's heartbeats and needs the core, which its owner holds during such a
// call. This object is a second sender that needs neither. It knows the incarnation, the duration
// of the lease and the send time of the last answered heartbeat. When the session is late, it sends
// a heartbeat itself. It also logs the owner's call if that takes more than two seconds.
//
// Only the session decides: answers to these heartbeats renew the lease and have no other effect.
// The session's next heartbeat detects an ended lease.
//
// **Thread safety**: thread-safe. One thread, which must not hold the core, calls RunOnce(). It
// sends only over a channel whose Unary() any thread may call.
//
// Invariants:
//  1. No function waits for the core's owner or for a peer.
//  2. After Stop() no heartbeat is sent.
#ifndef VERBENA_CLIENT_CORE_LEASE_KEEPER_H_
#define VERBENA_CLIENT_CORE_LEASE_KEEPER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "proto/control/control_channel.h"
#include "rdma/base/clock.h"

namespace verbena::client {

// The long call of the core's owner, if any. The owner writes it without a clock or a lock, so
// short calls have no overhead.
//
// **Thread safety**: Scope is for the owner; any thread may call Get(). A read during a change of
// scope may mix two calls; it is used only for logging.
class CurrentCall {
 public:
  // `what` is a literal. Scopes nest; Get() returns the inner one.
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

  // All accesses are relaxed, because they publish no other data.
  std::atomic<const char*> what_{nullptr};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> number_{0};
};

class LeaseKeeper {
 public:
  // Time after which a call is reported, and the interval of RunOnce()'s checks.
  static constexpr int64_t kReportAfterNanos = 2'000'000'000;
  static constexpr int64_t kLookNanos = 1'000'000'000;
  // Interval of checks for a lease before there is one: a fraction of the shortest lease in use.
  static constexpr int64_t kJoinLookNanos = 100'000'000;

  using Log = std::function<void(const std::string&)>;
  // `log` and `report` may be null; each check for a long call also calls `report`. All arguments
  // must outlive this object.
  LeaseKeeper(std::string cluster, ControlChannel* control, const Clock* clock, Log log,
              std::function<void(int64_t now)> report = nullptr);
  ~LeaseKeeper();

  // ---- called by the session ----
  void Start(uint64_t incarnation, int64_t lease_ns);
  // A heartbeat that was sent at this time was answered with OK.
  void Renewed(int64_t sent_ns);
  void Stop();

  CurrentCall* current_call() { return &call_; }

  // ---- called by one thread ----
  // Whether the channel allows RunOnce().
  bool usable() const { return control_->any_thread(); }
  // Sends a heartbeat if the session is late, and reports a long call. Returns the time of the next
  // call.
  int64_t RunOnce(int64_t now);

 private:
  struct State;
  void Report(int64_t now);

  const std::string cluster_;
  ControlChannel* const control_;
  const Clock* const clock_;
  const Log log_;
  const std::function<void(int64_t now)> report_;
  // Shared with answers that arrive after this object is destroyed.
  std::shared_ptr<State> state_;
  CurrentCall call_;
  uint64_t seen_number_ =
      0;  // used by RunOnce(): the last seen call, when it was first seen, and when to report it
  int64_t seen_since_ = 0;
  int64_t report_at_ = 0;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_LEASE_KEEPER_H_
