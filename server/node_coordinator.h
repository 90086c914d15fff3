// The coordinator of a node, with what it does by itself: periodic checkpoints and rebalancing.
//
//     "vb-coordinator" thread: Coordinator     "vb-saves": checkpoints     "vb-rebalance": moves
//
// **Thread safety**: AskMetrics(), AddMetrics(), status() and task()'s inbox from any thread; the
// rest by the thread that starts and stops the node.
#ifndef VERBENA_SERVER_NODE_COORDINATOR_H_
#define VERBENA_SERVER_NODE_COORDINATOR_H_

#include <future>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/security/tls_files.h"
#include "rdma/base/clock.h"
#include "server/checkpoint/failing_checkpoints.h"
#include "server/control/checkpoints_task.h"
#include "server/control/coordinator_task.h"
#include "server/control/rebalance_task.h"
#include "server/coordinator/watched_store.h"
#include "server/executor/driver.h"
#include "server/metrics/metrics.h"
#include "server/node_access.h"
#include "server/node_options.h"

namespace verbena::server {

class NodeCoordinator {
 public:
  // With its state, or as a candidate of several. `options` and `clock` outlive it. Errors are for
  // the operator: a state that cannot be read, options that contradict it.
  static absl::StatusOr<std::unique_ptr<NodeCoordinator>> Open(const NodeOptions& options,
                                                               const Clock* clock,
                                                               const NodeTokens& tokens);

  // Starts its thread. address: where peers reach this node.
  absl::Status Start(const std::string& address);
  // Starts the checkpoints and the rebalancing that the options ask for; they call the coordinator
  // at `coordinator`.
  absl::Status StartTasks(const std::string& coordinator, const std::shared_ptr<TlsFiles>& tls,
                          const NodeTokens& tokens);

  CoordinatorTask* task() { return task_.get(); }
  const FailingCheckpoints* failing_checkpoints() const { return &failing_checkpoints_; }
  // OK while it does the work it was started for; otherwise the reason.
  absl::Status status() const { return task_->status(); }

  // Of its thread, when it runs next; without a value where another coordinator leads.
  std::future<CoordinatorMetrics> AskMetrics();
  // Waits for `asked` for at most `timeout`.
  void AddMetrics(std::future<CoordinatorMetrics> asked, absl::Duration timeout,
                  NodeMetrics* metrics);

  void StopRebalancing();
  // Ends the checkpoints, with the last ones that --checkpoint-on-exit asks for. False: they could
  // not be made.
  bool FinishCheckpoints();
  // Ends its office: waiting calls are answered.
  void Retire();

 private:
  NodeCoordinator(const NodeOptions& options, const Clock* clock)
      : options_(options), clock_(*clock) {}

  absl::Status Elect(const CoordinatorOptions& options);
  absl::Status OpenState(const CoordinatorOptions& options);
  absl::Status StartCheckpoints(const std::string& coordinator,
                                const std::shared_ptr<TlsFiles>& tls, const NodeTokens& tokens);
  absl::Status StartRebalancing(const std::string& coordinator,
                                const std::shared_ptr<TlsFiles>& tls);

  const NodeOptions& options_;
  const Clock& clock_;
  FailingCheckpoints failing_checkpoints_{&clock_};  // written by the checkpoints
  const WatchedStore* state_store_ = nullptr;        // null: the coordinator is elected
  std::unique_ptr<CoordinatorTask> task_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<CheckpointsTask> saves_;  // null: without --checkpoint-dir
  std::unique_ptr<Driver> saves_driver_;
  std::unique_ptr<RebalanceTask> rebalance_;  // null: without --rebalance
  std::unique_ptr<Driver> rebalance_driver_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_NODE_COORDINATOR_H_
