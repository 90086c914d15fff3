// The coordinator in a simulated cluster: the real one, one thread of it, which measured costs keep
// busy on virtual time.
//
// **Thread safety**: one thread.
#ifndef VERBENA_BENCH_COORDINATOR_VIRTUAL_COORDINATOR_H_
#define VERBENA_BENCH_COORDINATOR_VIRTUAL_COORDINATOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "bench/coordinator/costs.h"
#include "bench/coordinator/virtual_control.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/store.h"

namespace verbena::bench {

class VirtualCoordinator {
 public:
  // `costs` may change meanwhile. All outlive this.
  VirtualCoordinator(std::string address, uint64_t seed, const Costs* costs, const Clock* clock,
                     VirtualControl* control);
  // Loads the state of the one before, if there was one, and serves.
  absl::Status Start(const server::CoordinatorOptions& options);
  // The process is gone; its durable state stays.
  void Stop();
  bool running() const { return coordinator_ != nullptr; }
  const v1::ClusterView& view() const { return coordinator_->view(); }
  // Called with each call of configurations that servers ask for. May be empty.
  using Observer = std::function<void(const v1::ReconfigureRequest&)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  bool RunOnce();
  int64_t NextTimerNanos() const;

 private:
  // Counts the writes, each of which keeps the coordinator busy.
  class CountingStore final : public server::Store {
   public:
    absl::StatusOr<server::CoordinatorState> Load() override { return store_.Load(); }
    absl::Status SaveAll(const server::CoordinatorState& state,
                         absl::Span<const server::StateChange> changes) override {
      ++saves;
      return store_.SaveAll(state, changes);
    }
    uint64_t saves = 0;

   private:
    server::MemoryStore store_;
  };
  struct Waiting {
    std::string method, request;
    VirtualControl::Respond respond;
  };

  template <typename Request, typename Response>
  void To(void (server::Coordinator::*method)(const Request&, server::Coordinator::Reply<Response>),
          Waiting* call);
  void Handle(Waiting* call);
  void Charge(double us) { busy_until_ += static_cast<int64_t>(us * 1000); }

  const std::string address_;
  std::mt19937_64 random_;
  const Costs* const costs_;
  const Clock* const clock_;
  VirtualControl* const control_;
  Observer observer_;
  CountingStore store_;
  uint64_t charged_saves_ = 0;
  uint64_t life_ = 0;  // of the coordinator: replies of an earlier one leave no more
  int64_t busy_until_ = 0;
  std::deque<Waiting> waiting_;
  std::unique_ptr<server::Coordinator> coordinator_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_COORDINATOR_VIRTUAL_COORDINATOR_H_
