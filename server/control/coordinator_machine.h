// The coordinator with its inbox, as a driver runs it.
//
// **Thread safety**: inbox().Post() and status() from any thread; the rest by the owner thread.
#ifndef VERBENA_SERVER_CONTROL_COORDINATOR_MACHINE_H_
#define VERBENA_SERVER_CONTROL_COORDINATOR_MACHINE_H_

#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/coordinator.h"
#include "server/coordinator/store.h"
#include "server/executor/driver.h"
#include "server/executor/inbox.h"

namespace verbena::server {

class CoordinatorMachine final : public Machine {
 public:
  CoordinatorMachine(std::unique_ptr<Store> store, std::unique_ptr<Coordinator> coordinator)
      : store_(std::move(store)), coordinator_(std::move(coordinator)) {}

  Inbox& inbox() { return inbox_; }
  // Null once retired; what is posted later must look.
  Coordinator* coordinator() { return coordinator_.get(); }
  // Ends the office: calls that wait are answered with UNAVAILABLE. After the driver has stopped.
  void Retire() {
    coordinator_.reset();
    store_.reset();
    inbox_.RunOnce();
  }

  bool RunOnce() override {
    bool worked = inbox_.RunOnce();
    worked |= coordinator_->RunOnce();
    if (!refuses_ && !coordinator_->status().ok()) NoteRefusal();
    return worked;
  }
  // Of the coordinator: not OK once it refuses all calls.
  absl::Status status() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }
  bool Arm() override { return inbox_.Arm(); }
  void Disarm() override { inbox_.Disarm(); }
  void AppendDescriptors(std::vector<int>* fds) const override {
    if (inbox_.wake_fd() >= 0) fds->push_back(inbox_.wake_fd());
  }
  int64_t NextTimerNanos() const override { return coordinator_->NextTimerNanos(); }

 private:
  void NoteRefusal() {
    refuses_ = true;
    spdlog::error("{}", std::string(coordinator_->status().message()));
    const std::lock_guard<std::mutex> lock(mutex_);
    status_ = coordinator_->status();
  }

  Inbox inbox_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Coordinator> coordinator_;
  bool refuses_ = false;
  mutable std::mutex mutex_;
  absl::Status status_;  // guarded by mutex_
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_COORDINATOR_MACHINE_H_
