// Driver task of the coordinator's rebalancer, with its control channel.
//
// **Thread safety**: statistics() from any thread; the rest by the owner thread.
#ifndef VERBENA_SERVER_CONTROL_REBALANCE_TASK_H_
#define VERBENA_SERVER_CONTROL_REBALANCE_TASK_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "proto/control/grpc_control_channel.h"
#include "server/balance/rebalancer.h"
#include "server/executor/driver.h"

namespace verbena::server {

class RebalanceTask final : public Machine {
 public:
  RebalanceTask(RebalancerOptions options, const Clock* clock, std::shared_ptr<TlsFiles> tls,
                std::shared_ptr<TokenFile> token)
      : control_(std::move(tls), std::move(token)),
        rebalancer_(std::move(options), clock, &control_) {}

  RebalancerStatistics statistics() const { return rebalancer_.statistics(); }

  bool RunOnce() override {
    const bool called = control_.RunOnce();
    return rebalancer_.RunOnce() || called;
  }
  bool Arm() override { return true; }
  void Disarm() override {}
  void AppendDescriptors(std::vector<int>* fds) const override {
    if (control_.wake_fd() >= 0) fds->push_back(control_.wake_fd());
  }
  int64_t NextTimerNanos() const override { return rebalancer_.NextTimerNanos(); }

 private:
  GrpcControlChannel control_;
  Rebalancer rebalancer_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CONTROL_REBALANCE_TASK_H_
