// Driver task of the coordinator, with its inbox: of the one coordinator, or of one that exists
// while it is elected.
//
// **Thread safety**: inbox().Post(), Post(), status(), access(), leads() and Absence() from any
// thread; the rest by the owner thread.
#ifndef VERBENA_SERVER_CONTROL_COORDINATOR_TASK_H_
#define VERBENA_SERVER_CONTROL_COORDINATOR_TASK_H_

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rdma/base/clock.h"
#include "server/access/budget.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/etcd/elected_office.h"
#include "server/coordinator/store.h"
#include "server/executor/driver.h"
#include "server/executor/fair_queue.h"
#include "server/executor/inbox.h"
#include "server/nanoseconds.h"

namespace verbena::server {

class CoordinatorTask final : public Machine {
 public:
  CoordinatorTask(std::unique_ptr<Store> store, std::unique_ptr<Coordinator> coordinator)
      : store_(std::move(store)), coordinator_(std::move(coordinator)) {
    PublishAccess();
  }
  // `taken`: called by the owner with the view of each office that is taken.
  CoordinatorTask(std::unique_ptr<ElectedOffice> office,
                  std::function<void(const v1::ClusterView&)> taken)
      : office_(std::move(office)), taken_(std::move(taken)) {}

  Inbox& inbox() { return inbox_; }
  // Posts a call of `caller` (a token's id, or a host). It runs after the inbox's closures, in turn
  // with the calls of other callers (FairQueue::Post()). UNAVAILABLE: too many calls wait.
  absl::Status Post(const std::string& caller, Inbox::Closure& closure, FairQueue::Refuse refuse) {
    absl::Status status = calls_.Post(caller, closure, std::move(refuse));
    if (status.ok()) inbox_.Post([] {});  // wakes the owner
    return status;
  }
  // Runs all waiting closures; only without a driver.
  void Drain() {
    inbox_.RunOnce();
    while (calls_.RunOne()) {
    }
  }
  // Null once retired, and while another coordinator leads; closures must check.
  Coordinator* coordinator() { return coordinator_.get(); }
  // Whether the coordinator may answer now. An elected one may lose this at any time.
  bool leads() const { return office_ == nullptr || office_->Leads(); }
  // The answer where there is no coordinator that leads.
  absl::Status Absence() const {
    if (retired_) return absl::UnavailableError("this server is stopping");
    return office_ == nullptr ? absl::UnavailableError("this server is stopping")
                              : office_->Absence();
  }
  // Null: the coordinator is not elected.
  ElectedOffice* office() { return office_.get(); }
  // Leaves the office to the successor once the owner runs next. Errors of MoveLeader
  // (cluster.proto). While there is a coordinator.
  absl::Status HandOver(const v1::MoveLeaderRequest& request) {
    if (office_ == nullptr) {
      return absl::FailedPreconditionError(
          "this coordinator has its state in a directory (--state), so it has no standbys; with "
          "--etcd there may be several coordinators ('verbena coordinator import-sqlite')");
    }
    if (request.term() != coordinator_->view().term()) {
      return absl::AbortedError(absl::StrCat("this coordinator leads in term ",
                                             coordinator_->view().term(), ", not ",
                                             request.term()));
    }
    return office_->HandOver(request.successor());
  }
  // Ends the office: waiting calls are answered with UNAVAILABLE. After the driver has stopped.
  void Retire() {
    retired_ = true;
    coordinator_.reset();
    store_.reset();
    // Only now another one may lead.
    if (office_ != nullptr) office_->Stop();
    Drain();
  }

  bool RunOnce() override {
    bool worked = office_ != nullptr && FollowOffice();
    // Heartbeats, which are in the inbox, wait for no more than one group.
    worked |= inbox_.RunOnce();
    worked |= RunCalls();
    if (coordinator_ == nullptr) return worked;
    // Leases end only while it leads: after a pause it may not.
    if (!leads()) return true;
    worked |= coordinator_->RunOnce();
    for (; polls_beyond_ < coordinator_->polls_beyond(); ++polls_beyond_) {
      CountExceeded(Budget::kWaitingPolls);
    }
    if (!refuses_ && !coordinator_->status().ok()) NoteRefusal();
    return worked;
  }
  // The coordinator's status: not OK once it refuses all calls, or could not take office.
  absl::Status status() const {
    if (office_ != nullptr) {
      if (absl::Status problem = office_->problem(); !problem.ok()) return problem;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }
  // The coordinator's access() for other threads; null: calls need no tokens. A token that has
  // ended may still be valid here: the coordinator authorizes each call again.
  std::shared_ptr<const v1::AccessRules> access() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return access_;
  }
  // Before the answer to a call that may have changed tokens; by the owner.
  void PublishAccess() {
    if (coordinator_ == nullptr) return;
    const uint64_t revision = coordinator_->view().revision();
    if (published_ == revision) return;
    published_ = revision;
    const v1::AccessRules* rules = coordinator_->access();
    if (rules == nullptr || (access_ != nullptr && SameTokens(*rules, *access_))) return;
    auto copy = std::make_shared<const v1::AccessRules>(*rules);
    const std::lock_guard<std::mutex> lock(mutex_);
    access_ = std::move(copy);
  }
  bool Arm() override { return calls_.empty() && inbox_.Arm(); }
  void Disarm() override { inbox_.Disarm(); }
  void AppendDescriptors(std::vector<int>* fds) const override {
    if (inbox_.wake_fd() >= 0) fds->push_back(inbox_.wake_fd());
  }
  int64_t NextTimerNanos() const override {
    return coordinator_ == nullptr ? kNever : coordinator_->NextTimerNanos();
  }

 private:
  // Calls that wait are a group, whose changes are saved in one write: with many of them, as when a
  // thousand workers join, that takes most of the time.
  static constexpr int kMostInGroup = 128;
  static constexpr int64_t kGroupNanos = 2 * kNanosPerMilli;

  bool RunCalls() {
    if (calls_.empty()) return false;
    const int64_t began = clock_.NowNanos();
    if (coordinator_ != nullptr) coordinator_->BeginGroup();
    int calls = 0;
    while (calls < kMostInGroup && clock_.NowNanos() - began < kGroupNanos && calls_.RunOne()) {
      ++calls;
    }
    if (coordinator_ != nullptr) coordinator_->EndGroup();
    return calls > 0;
  }
  bool FollowOffice() {
    if (!office_->Follow(&coordinator_)) return false;
    refuses_ = false;
    published_.reset();
    polls_beyond_ = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      status_ = absl::OkStatus();
    }
    if (coordinator_ == nullptr) return true;
    PublishAccess();
    taken_(coordinator_->view());
    return true;
  }
  static bool SameTokens(const v1::AccessRules& a, const v1::AccessRules& b) {
    return std::equal(a.tokens().begin(), a.tokens().end(), b.tokens().begin(), b.tokens().end(),
                      [](const v1::Token& x, const v1::Token& y) {
                        return x.id() == y.id() && x.ended() == y.ended();
                      });
  }
  void NoteRefusal() {
    refuses_ = true;
    // Once a process life.
    spdlog::error("{}", std::string(coordinator_->status().message()));
    const std::lock_guard<std::mutex> lock(mutex_);
    status_ = coordinator_->status();
  }

  const MonotonicClock clock_;
  Inbox inbox_;
  FairQueue calls_{&clock_};
  std::unique_ptr<Store> store_;
  const std::unique_ptr<ElectedOffice> office_;  // null: the coordinator is not elected
  const std::function<void(const v1::ClusterView&)> taken_;
  std::unique_ptr<Coordinator> coordinator_;
  std::atomic<bool> retired_ = false;
  bool refuses_ = false;
  uint64_t polls_beyond_ = 0;          // the coordinator's, as counted here
  std::optional<uint64_t> published_;  // the view's revision then
  mutable std::mutex mutex_;
  absl::Status status_;                            // guarded by mutex_
  std::shared_ptr<const v1::AccessRules> access_;  // guarded by mutex_; set by the owner
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_COORDINATOR_TASK_H_
