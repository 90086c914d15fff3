// Driver task of the coordinator's periodic checkpoints, with their control channel.
//
// **Thread safety**: statistics() and inbox().Post() from any thread; the rest by the owner thread.
#ifndef VERBENA_SERVER_CONTROL_CHECKPOINTS_TASK_H_
#define VERBENA_SERVER_CONTROL_CHECKPOINTS_TASK_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "proto/control/grpc_control_channel.h"
#include "server/checkpoint/periodic_checkpoints.h"
#include "server/executor/driver.h"
#include "server/executor/inbox.h"

namespace verbena::server {

class CheckpointsTask final : public Machine {
 public:
  CheckpointsTask(PeriodicCheckpointsOptions options, const Clock* clock,
                  std::shared_ptr<TlsFiles> tls, std::shared_ptr<TokenFile> token,
                  checkpoint::Disk* disk)
      : control_(std::move(tls), std::move(token)),
        saves_(std::move(options), clock, &control_, disk) {}

  Inbox& inbox() { return inbox_; }
  PeriodicCheckpoints& saves() { return saves_; }
  PeriodicCheckpointsStatistics statistics() const { return saves_.statistics(); }

  bool RunOnce() override {
    const bool told = inbox_.RunOnce();
    const bool called = control_.RunOnce();
    return saves_.RunOnce() || called || told;
  }
  bool Arm() override { return inbox_.Arm(); }
  void Disarm() override { inbox_.Disarm(); }
  void AppendDescriptors(std::vector<int>* fds) const override {
    if (inbox_.wake_fd() >= 0) fds->push_back(inbox_.wake_fd());
    if (control_.wake_fd() >= 0) fds->push_back(control_.wake_fd());
  }
  int64_t NextTimerNanos() const override { return saves_.NextTimerNanos(); }

 private:
  Inbox inbox_;
  GrpcControlChannel control_;
  PeriodicCheckpoints saves_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_CHECKPOINTS_TASK_H_
