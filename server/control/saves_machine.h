// The coordinator's periodic saves with their control channel, as a driver runs them.
//
// **Thread safety**: statistics() from any thread; the rest by the owner thread.
#ifndef VERBENA_SERVER_CONTROL_SAVES_MACHINE_H_
#define VERBENA_SERVER_CONTROL_SAVES_MACHINE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "proto/grpc_control_channel.h"
#include "server/executor/driver.h"
#include "server/saves/periodic_saves.h"

namespace verbena::server {

class SavesMachine final : public Machine {
 public:
  SavesMachine(PeriodicSavesOptions options, const Clock* clock, std::shared_ptr<TlsFiles> tls,
               std::shared_ptr<TokenFile> token, checkpoint::Disk* disk)
      : control_(std::move(tls), std::move(token)),
        saves_(std::move(options), clock, &control_, disk) {}

  PeriodicSavesStatistics statistics() const { return saves_.statistics(); }

  bool RunOnce() override {
    const bool called = control_.RunOnce();
    return saves_.RunOnce() || called;
  }
  // Nobody else has work for it.
  bool Arm() override { return true; }
  void Disarm() override {}
  void AppendDescriptors(std::vector<int>* fds) const override {
    if (control_.wake_fd() >= 0) fds->push_back(control_.wake_fd());
  }
  int64_t NextTimerNanos() const override { return saves_.NextTimerNanos(); }

 private:
  GrpcControlChannel control_;
  PeriodicSaves saves_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_SAVES_MACHINE_H_
