// Driver task of this server's membership, with its control channel and inbox.
//
// **Thread safety**: inbox().Post() and state() from any thread; the rest by the owner thread.
#ifndef VERBENA_SERVER_CONTROL_MEMBERSHIP_TASK_H_
#define VERBENA_SERVER_CONTROL_MEMBERSHIP_TASK_H_

#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "proto/control/grpc_control_channel.h"
#include "server/access/peer_log.h"
#include "server/executor/driver.h"
#include "server/executor/inbox.h"
#include "server/membership.h"

namespace verbena::server {

class MembershipTask final : public Machine {
 public:
  MembershipTask(const MembershipOptions& options, const Clock* clock,
                 std::shared_ptr<TlsFiles> tls, std::shared_ptr<TokenFile> token,
                 Membership::OnView on_view)
      : control_(std::move(tls), std::move(token)),
        membership_(options, clock, &control_, std::move(on_view)),
        said_([](const std::string& line) { spdlog::info("{}", line); }),
        wrong_([](const std::string& line) { spdlog::warn("{}", line); }) {}

  Inbox& inbox() { return inbox_; }
  Membership& membership() { return membership_; }

  struct State {
    uint64_t incarnation = 0;
    absl::Status status = absl::UnavailableError("this server has not joined its cluster yet");
    bool ended = false;
  };
  State state() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return state_;
  }

  bool RunOnce() override;
  bool Arm() override { return inbox_.Arm(); }
  void Disarm() override { inbox_.Disarm(); }
  void AppendDescriptors(std::vector<int>* fds) const override {
    if (inbox_.wake_fd() >= 0) fds->push_back(inbox_.wake_fd());
    if (control_.wake_fd() >= 0) fds->push_back(control_.wake_fd());
  }
  int64_t NextTimerNanos() const override { return membership_.NextTimerNanos(); }

 private:
  Inbox inbox_;
  GrpcControlChannel control_;
  Membership membership_;
  absl::StatusCode failed_ = absl::StatusCode::kOk;  // the last call, as of the last RunOnce()
  PeerLog said_, wrong_;                             // a coordinator that comes and goes
  mutable std::mutex mutex_;
  State state_;  // guarded by mutex_
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_MEMBERSHIP_TASK_H_
