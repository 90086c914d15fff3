// Servers and workers of a simulated cluster: the real state machines, on virtual time.
//
// **Thread safety**: one thread.
#ifndef VERBENA_BENCH_COORDINATOR_VIRTUAL_MEMBER_H_
#define VERBENA_BENCH_COORDINATOR_VIRTUAL_MEMBER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/coordinator/virtual_control.h"
#include "bench/report.h"
#include "client/core/session.h"
#include "rdma/sim/sim_endpoint.h"
#include "rdma/sim/sim_network.h"
#include "server/executor/shard_executor.h"
#include "server/membership.h"

namespace verbena::bench {

// A state machine that is run when something arrived for it, or its timer is due.
class VirtualMember {
 public:
  explicit VirtualMember(VirtualControl* control) : channel_(control->NewChannel()) {}
  virtual ~VirtualMember() = default;
  // The revision of the newest view that it has; 0: none.
  virtual uint64_t revision() const = 0;
  // Not OK: it has ended, which nothing that is simulated should cause.
  virtual absl::Status status() const = 0;

  // Whether it did something.
  bool RunIfDue(int64_t now) {
    if (!touched_ && timer_ > now && !channel_->pending() && !Pending()) return false;
    touched_ = Run(now);
    if (!touched_) timer_ = Timer();
    return touched_;
  }
  bool replies_pending() const { return channel_->pending(); }
  int64_t NextTimerNanos() const { return touched_ ? 0 : timer_; }

 protected:
  void Touch() { touched_ = true; }
  virtual bool Run(int64_t now) = 0;
  virtual bool Pending() const { return false; }
  virtual int64_t Timer() const = 0;

  const std::unique_ptr<VirtualChannel> channel_;

 private:
  bool touched_ = true;
  int64_t timer_ = 0;
};

// Membership, and one shard that serves and replicates.
class VirtualServer final : public VirtualMember {
 public:
  struct Options {
    std::string name, zone, coordinator;
    uint64_t seed = 1;
  };
  static absl::StatusOr<std::unique_ptr<VirtualServer>> Create(const Options& options,
                                                               rdma::SimNetwork* network,
                                                               VirtualControl* control);
  ~VirtualServer() override;
  uint64_t revision() const override { return revision_; }
  absl::Status status() const override {
    return membership_->ended() ? membership_->status() : absl::OkStatus();
  }
  uint64_t incarnation() const { return membership_->incarnation(); }
  const std::string& name() const { return options_.name; }
  const std::string& zone() const { return options_.zone; }
  std::string address() const { return options_.name + ":1"; }

 private:
  VirtualServer(const Options& options, VirtualControl* control)
      : VirtualMember(control), options_(options), control_(control) {}
  absl::Status Start(rdma::SimNetwork* network);
  void Handle(const std::string& method, const std::string& bytes, VirtualControl::Respond respond);
  bool Run(int64_t now) override;
  bool Pending() const override { return endpoint_->pending() || shard_channel_->pending(); }
  int64_t Timer() const override;

  const Options options_;
  VirtualControl* const control_;
  uint64_t revision_ = 0;
  const rdma::SimEndpoint* endpoint_ = nullptr;    // of the shard
  const VirtualChannel* shard_channel_ = nullptr;  // likewise
  std::unique_ptr<server::ShardExecutor> shard_;
  std::unique_ptr<server::Membership> membership_;
};

// A worker's session: it joins, keeps its lease and follows the view.
class VirtualWorker final : public VirtualMember {
 public:
  VirtualWorker(const client::SessionOptions& options, uint64_t seed, const Clock* clock,
                VirtualControl* control);
  uint64_t revision() const override { return session_.view().revision(); }
  absl::Status status() const override { return status_; }
  void CreateTable(const v1::TableSpec& spec);
  // Its join, or the table that it creates, has succeeded.
  bool done() const { return done_; }

 private:
  void End(const absl::Status& status);
  bool Run(int64_t now) override;
  int64_t Timer() const override { return session_.NextTimerNanos(); }

  const Clock* const clock_;
  Random random_;
  client::LeaseKeeper keeper_;
  bool done_ = false;
  absl::Status status_;
  client::Session session_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_COORDINATOR_VIRTUAL_MEMBER_H_
