// Plans moves of partitions that bring the bytes of servers within a bound of each other, and then
// the bytes of their primaries.
//
// A server's load is the bytes of contents of its replicas, followers included, over its share: its
// memory limit over the average one where every server has a limit, else one. The imbalance is the
// difference of the largest and the smallest load over the average. A server whose limit holds no
// partition has no share and is left out. The imbalance of primaries, which serve the workers, is
// the same with primaries alone, where each counts by its bytes and, as much on average, as one: a
// partition with little content has requests, too.
//
// Each step moves one replica from a server above the average to one below it, the largest that
// neither passes the average by; so hardly a byte moves that does not have to. It is the primary
// where the source leads more than the target, so that also the work of primaries is spread.
//
// Then primaries are exchanged: a primary moves from a server that leads more to one that leads
// less, and a follower of about the same size moves back; none does where the primary has no bytes.
// A server that has replicas of all the partitions of the other can exchange none with it.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. A partition moves once at most, to a server that has no replica of it, is alive, is not
//     drained and has memory for it.
//  2. A move brings no two replicas of a partition into one zone that were in different ones.
//  3. Each move but an exchange brings the loads of its two servers closer, by a fifth of their
//     difference at least. An exchange brings the primaries of its two servers closer; it keeps the
//     imbalance within the aim, or else the sum of the squared loads from growing. So plans of a
//     cluster whose tables do not change end.
//  4. The same input has the same plan.
#ifndef VERBENA_SERVER_BALANCE_BALANCE_PLAN_H_
#define VERBENA_SERVER_BALANCE_BALANCE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace verbena::server {

struct BalanceServer {
  uint64_t incarnation = 0;
  std::string name;
  std::string zone;           // empty: one of its own
  bool counts = true;         // it is alive and not drained
  bool accepts = true;        // it may get replicas
  uint64_t memory_limit = 0;  // bytes; 0: none
  uint64_t memory_reserved = 0;
};

struct BalancePartition {
  uint32_t id = 0;
  uint64_t bytes = 0;    // of one replica
  uint64_t primary = 0;  // server incarnation
  std::vector<uint64_t> followers;
  bool movable = true;
};

struct BalanceInput {
  std::vector<BalanceServer> servers;
  std::vector<BalancePartition> partitions;
};

struct BalanceOptions {
  // Imbalance that a plan aims at. Half of the one that counts as balanced, since tables grow
  // meanwhile.
  double aim = 0.05;
  // The same of primaries. More, since an exchange copies two replicas.
  double primaries_aim = 0.1;
  size_t most_moves = SIZE_MAX;
};
// A cluster with at most this imbalance is balanced.
inline constexpr double kBalanced = 0.1;
// And at most this imbalance of primaries.
inline constexpr double kPrimariesBalanced = 0.2;
// A move leaves this part of the target's memory limit free for growth during the copy.
inline constexpr double kMemoryKeptFree = 0.1;

struct BalanceMove {
  uint32_t partition = 0;
  uint64_t from = 0, to = 0;  // server incarnations
  bool primary = false;       // else a follower
  uint64_t bytes = 0;
  size_t round = 1;  // of PlanAllRounds()
};

struct ServerBalance {
  uint64_t server = 0;
  uint64_t bytes_before = 0, bytes_after = 0;      // of all replicas
  uint64_t primary_before = 0, primary_after = 0;  // of primaries
  size_t primaries_before = 0, primaries_after = 0;
  uint64_t memory_limit = 0;               // bytes; 0: none
  double load_before = 0, load_after = 0;  // bytes over the share of all bytes; 1: balanced
};

struct BalancePlan {
  std::vector<BalanceMove> moves;
  std::vector<ServerBalance> servers;                // that count, in the input's order
  size_t rounds = 1;                                 // of PlanAllRounds(); 0: no moves
  uint64_t bytes = 0;                                // of all moves
  double before = 0, after = 0;                      // imbalance
  double primaries_before = 0, primaries_after = 0;  // imbalance of primaries
  std::vector<uint64_t> too_small;                   // empty ones whose limit holds none

  bool balanced() const { return before <= kBalanced && primaries_before <= kPrimariesBalanced; }
};

BalancePlan PlanBalance(const BalanceInput& input, const BalanceOptions& options);

// The moves of a plan, then of the plan for their result, and so on, as they follow one another
// until the servers are balanced or no move helps: a partition moves once at most in each round.
BalancePlan PlanAllRounds(const BalanceInput& input, const BalanceOptions& options,
                          size_t most_rounds);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_BALANCE_BALANCE_PLAN_H_
