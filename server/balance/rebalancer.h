// Automatic balance: looks at the load of the servers and begins planned moves, beside the
// coordinator, in its process.
//
//   state     | on                                              | to
//   ----------+-------------------------------------------------+----------------------------------
//   idle      | the imbalance is above the threshold, or that   | moving
//             | of primaries above kPrimariesAbove, at          |
//             | kLooksAbove looks in a row                      |
//   moving    | no moves in progress, not balanced              | moving, with the next moves
//             | BalancePlan::balanced(), or no move helps       | idle
//             | a move had no effect                            | paused
//   any       | a replica is missing, a server is silent        | idle
//   paused    | kPauseLooks intervals have passed               | idle
//
// Nothing is stored: after the coordinator's failover the new leader's rebalancer plans anew, and
// the moves that were in progress are a part of the view.
//
// **Thread safety**: one owner thread; statistics() from any thread.
//
// Invariants:
//  1. It begins moves only while no move is in progress, and at most kMovesAtOnce.
//  2. It begins none while a partition has too few replicas or a server is silent.
#ifndef VERBENA_SERVER_BALANCE_REBALANCER_H_
#define VERBENA_SERVER_BALANCE_REBALANCER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/control/control_channel.h"
#include "rdma/base/clock.h"
#include "server/balance/load_watch.h"
#include "server/checkpoint/shard_calls.h"

namespace verbena::server {

struct RebalancerOptions {
  std::string coordinator;  // host:port
  // Between two looks. Longer: an imbalance stays for longer; shorter: more calls to all servers.
  int64_t every_ns = 10'000'000'000;
  double above = 0.2;  // imbalance above which it begins
  uint64_t seed = 0;   // of request ids; 0: from the system's random source
  // Whether this process leads now. Empty: always.
  std::function<bool()> active = {};
  std::function<void(bool failed, const std::string&)> log = {};
};

struct RebalancerStatistics {
  uint64_t begun = 0;    // moves
  double imbalance = 0;  // at the last look
  double imbalance_of_primaries = 0;
  bool known = false;  // whether there was one
};

class Rebalancer {
 public:
  // Looks in a row: tables may be created or loaded on one server just now.
  static constexpr int kLooksAbove = 3;
  static constexpr int kPauseLooks = 6;
  // Imbalance of primaries above which it begins. Far from the one that counts as balanced: each
  // exchange copies two replicas, and the next failover may undo it.
  static constexpr double kPrimariesAbove = 0.5;

  // Both outlive it.
  Rebalancer(RebalancerOptions options, const Clock* clock, ControlChannel* control);
  ~Rebalancer();

  bool RunOnce();
  int64_t NextTimerNanos() const;
  RebalancerStatistics statistics() const;

 private:
  void OnLoad(absl::StatusOr<ClusterLoad> load);
  // Whether a move that was begun here had no effect.
  bool AnyStayed(const v1::ClusterView& view) const;
  void BeginMoves(const BalancePlan& plan, const v1::ClusterView& view);
  void SendNext();
  void Idle();
  void Log(bool failed, const std::string& text) const;

  const RebalancerOptions options_;
  const Clock* const clock_;
  ControlChannel& control_;
  LoadWatch watch_;
  RandomIds ids_;
  int64_t next_ns_;
  bool calling_ = false;
  bool moving_ = false;
  int above_ = 0;                                   // looks in a row
  std::vector<BalanceMove> planned_;                // last
  std::vector<BalanceMove> moves_;                  // of these, begun as the coordinator answered
  std::deque<v1::MovePartitionsRequest> requests_;  // not sent yet
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  mutable std::mutex mutex_;
  RebalancerStatistics statistics_;  // guarded by mutex_
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_BALANCE_REBALANCER_H_
