// Driver task of a thread that only runs posted closures: the thread that writes files.
//
// **Thread safety**: inbox().Post() from any thread; the rest by the owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_INBOX_TASK_H_
#define VERBENA_SERVER_EXECUTOR_INBOX_TASK_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "server/executor/driver.h"
#include "server/executor/inbox.h"

namespace verbena::server {

class InboxTask final : public Machine {
 public:
  Inbox& inbox() { return inbox_; }

  bool RunOnce() override { return inbox_.RunOnce(); }
  bool Arm() override { return inbox_.Arm(); }
  void Disarm() override { inbox_.Disarm(); }
  void AppendDescriptors(std::vector<int>* fds) const override {
    if (inbox_.wake_fd() >= 0) fds->push_back(inbox_.wake_fd());
  }
  int64_t NextTimerNanos() const override { return std::numeric_limits<int64_t>::max(); }

 private:
  Inbox inbox_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_INBOX_TASK_H_
