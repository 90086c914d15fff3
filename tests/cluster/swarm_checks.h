// Invariants of every swarm seed beside those of the clients' reads: the models follow the
// coordinator's view, nothing is lost without a cause, replicas are equal, buffers are bounded,
// redundancy returns.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_CHECKS_H_
#define VERBENA_TESTS_CLUSTER_SWARM_CHECKS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "shard/engine.h"
#include "tests/cluster/swarm_world.h"

namespace verbena::test {

class SwarmChecks {
 public:
  explicit SwarmChecks(SwarmWorld* world) : world_(world) {}
  // A partition is changed by one server in each epoch.
  void Observe(const shard::Commit& commit);
  // The coordinator's view has changed: a loss and the reset that ends it may come in one turn.
  void ViewChanged();
  // Between turns of the cluster.
  void Run();
  // Whether all processes and replicas of the plan are there; else *missing names one that is not.
  bool Redundant(std::string* missing) const;
  // Every follower was compared with its primary, at one sequence, and is equal. Called when no
  // client pushes any more.
  bool AllEqual(std::string* missing);
  // The engine of the shard of the server with that incarnation; null: none runs.
  const shard::Engine* EngineOf(uint64_t server, uint32_t shard) const;

 private:
  // A step of a table of an elastic job is committed with the workers that it had.
  void CheckMembers(const shard::Commit& commit);
  void FollowServers();
  void FollowView();
  // The runs of jobs, and the tables of their norms.
  void FollowJobs(const v1::ClusterView& view);
  SwarmNorm* NormOf(const SwarmTable& table);
  void TraceView(const v1::ClusterView& view) const;
  void CheckLoss(const SwarmTable& table, uint32_t partition);
  // A server that leaves hands over to followers that the coordinator has heard.
  void CheckHandovers(const v1::ClusterView& view);
  // A change that takes a server's role is made for one that lived a moment ago.
  void CheckChanges(const v1::ClusterView& view);
  bool Lives(uint64_t server) const;  // its process
  bool Equal(const v1::Partition& p, const v1::Replica& follower, std::string* missing) const;
  bool Known(uint64_t server) const;  // to the coordinator
  // Every process of a server is a member, and the coordinator has heard it.
  bool AllJoined(std::string* missing) const;
  void CompareReplicas();
  // Every log for replicas is within its limits.
  void BoundLogs();
  void CountMismatches();
  void CheckMemory();
  // It has no follower because its primary's server, or each other one, is at its limit.
  bool LacksMemory(const v1::Partition& partition) const;
  // After the faults each server follows the coordinator's view in time.
  void CheckViews();
  void CheckEvictions(const shard::Engine& primary, const v1::Partition& p);

  SwarmWorld* const world_;
  uint64_t revision_ = 0;
  v1::ClusterView before_;
  // Incarnation -> process: index of the server, and which of its lives.
  std::map<uint64_t, std::pair<int, int>> processes_;
  std::map<uint64_t, std::pair<int, int>> living_;  // those that had not died when it last looked
  std::map<uint64_t, int64_t> died_at_;             // by incarnation
  // By table, chunk or partition of rows, and epoch.
  std::map<std::tuple<uint32_t, uint32_t, uint64_t>, uint64_t> primaries_;
  int64_t next_compare_ = 0;
  // When the view got a revision after the faults, oldest first.
  std::deque<std::pair<int64_t, uint64_t>> revisions_;
  std::map<uint64_t, int64_t> joined_at_;  // by incarnation of a server
  std::map<uint32_t, uint64_t> equal_;  // partition -> its configuration when AllEqual() saw it so
  // (table, partition, its life and epoch) that have had as many rows as an eviction leaves.
  std::set<std::tuple<uint32_t, uint32_t, uint32_t, uint64_t>> full_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_CHECKS_H_
