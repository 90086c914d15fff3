// The plan that one seed of the swarm draws before anything runs: the cluster, the features that
// take part, and how often things happen. Features are chosen one by one, so that a rare one is not
// always hidden behind a frequent one.
//
// A new feature is a line in SwarmFeature, its chance in DrawPlan(), and its use in one actor.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_PLAN_H_
#define VERBENA_TESTS_CLUSTER_SWARM_PLAN_H_

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cluster/sim_cluster.h"

namespace verbena::test {

enum class SwarmFeature : uint32_t {
  // Kinds of tables.
  kEmbedding,
  kColdTier,
  kHalfPrecision,
  kCodecs,
  kAdmission,
  kEviction,
  kOptimizerState,
  kSsp,
  kSync,
  kNorms,  // sync tables whose steps need a norm over chunks of several tables
  // Life of tables and processes.
  kDrops,
  kLosses,  // servers die with the only copy; the operator resets the tables
  kChurn,   // workers leave and others come
  kReaders,
  kBags,          // lookups of sums of rows
  kForeignReads,  // readers pull tables of other jobs, too
  kFreeRegions,   // memory is released while records use it
  // Faults.
  kServerCrashes,
  kServerStalls,
  kSlowServer,  // one server takes long for each turn, as long as the seed runs
  kHeavyLoad,   // workers push all they can, and the slow server often dies
  kWorkerCrashes,
  kWorkerStalls,
  kCoordinatorRestarts,
  kCoordinatorStalls,
  kPartitions,  // of the control plane
  kControlLoss,
  kConnectionLoss,
  kHangs,
  kRailFaults,
  kClockDrift,
  kSlowStore,      // the coordinator's writes take long, or fail
  kOldStates,      // an older state of the coordinator is put back for a while
  kRefusedMemory,  // transports do not take memory for now
  kLongCalls,      // a client's thread is in a long call; the one that keeps its lease runs
  kSleeps,         // clients sleep while there is nothing to do
  kSuspends,       // a machine is suspended: its process, its rails and calls to it stand still
  kSlowLinks,      // messages from and to a rail take long
  kServerLeaves,   // a server is stopped in order
  kHandovers,      // one leaves as soon as its learner, which does not hear so, is a follower
  kRemovals,       // the operator removes servers that are silent
  kEagerTables,    // tables are made as soon as a learner catches up
  kLearnerStalls,  // a learner stalls as soon as it catches up
  kColdLearners,   // learners catch up with tables whose rows are read from a slow disk
  kSmallRecords,   // learners are sent rows one by one or in small groups, and few at once
  kFewBuffers,     // applies wait for buffers while pulls are written out, which takes long
  kCheckpoints,    // tables are saved and restored, checkpoints compacted and removed
  kDiskFaults,     // disks of checkpoints and cold tiers are full, slow, and fail
  kMissedLosses,   // most connections that are lost while nothing moves are lost unheard
  kJoinStalls,     // a client stalls while it joins
  kCutLearners,    // the coordinator does not hear from the primary of a learner, which then dies
  kOldRequests,    // requests meet an older state of the coordinator before servers prove it old
  kLateLeaves,     // a follower dies, and its primary leaves before that is known
  kRestoreCuts,    // servers and the way to the coordinator fail while a table is restored
  kMissedRuns,     // a follower hears that a job begins anew when it becomes the primary
  kSlowRecovery,   // workers make few steps when the faults have stopped
  kChainFaults,    // the middle of a chain of checkpoints cannot be read while old ones are removed
  kRestoreCrashes,  // the disk with checkpoints crashes while a restore reads it
  kShortMemory,     // wide rows fill the memory limits of servers
  kLostFollowers,   // a dropped follower leads a lost and reset partition before it hears of either
  kLateRequests,    // a server asks for another's role and dies, and the coordinator stalls
  kLateFollowers,   // a follower is late with records when a job begins anew; its primary dies
  kRestoredLosses,  // a partition is lost in a restore and reset before its primary hears of either
  kGroups,          // the coordinator saves waiting calls at once, and crashes before or after
  kRates,           // workers change the rates of tables that are sums
  kFewOperations,   // lanes take fewer operations than workers wait for
  kStates,          // workers assign and pull the state of optimizers
  kThreeReplicas,   // partitions have three replicas
  kMigrations,      // an operator moves partitions and drains servers
  kRareFaults,      // faults at random times are rare
  kElastic,         // workers join runs of jobs, leave them and are replaced
  kDeafPrimaries,   // neither a primary that hands over nor some clients hear of the new place
  kLateAdmissions,  // a decision on joining workers takes longer than steps of the run
  kStrayMembers,    // clients join an older state of the coordinator, which no server hears
  kWideLoads,       // restored rows take more room than logs have
  kManyLosses,      // connections are often lost, and writes land for some time after that
  kReadFollowers,   // observers read from followers, some of which are dropped and do not hear so
  kCount
};
const char* SwarmFeatureName(SwarmFeature feature);

struct SwarmJobPlan {
  std::string name;
  std::string host;  // its processes' names have that
  uint32_t workers = 1;
  bool steps = false;        // it may have sync tables: no more workers than `workers` join it then
  uint32_t max_workers = 0;  // not 0: it is elastic

  // Its worker processes at once.
  uint32_t places() const { return max_workers > 0 ? max_workers : workers; }
};

struct SwarmPlan {
  uint64_t seed = 1;
  std::bitset<static_cast<size_t>(SwarmFeature::kCount)> features;
  ClusterOptions cluster;
  std::vector<SwarmJobPlan> jobs;
  uint32_t max_tables = 1;
  uint32_t operations = 1;   // at once, of a worker
  size_t staging_bytes = 0;  // of a client, 0: its default
  int64_t think_ns = 0;      // the longest pause before a worker's next operation
  int64_t operator_pause_ns = 0;
  int64_t fault_pause_ns = 0;
  int64_t faults_end_ns = 0;
  int64_t pace_ns = 0;    // kSlowServer
  uint64_t ahead = 1;     // steps of a sync table that a worker ends before it knows them committed
  double norm_limit = 0;  // kNorms: clip_global_norm, which all tables of a job have in common

  bool has(SwarmFeature feature) const { return features[static_cast<size_t>(feature)]; }
  bool has_steps() const { return has(SwarmFeature::kSync) || has(SwarmFeature::kNorms); }
  int64_t lease_ns() const { return cluster.lease_ms * kMilli; }
  std::string Describe() const;
};

SwarmPlan DrawPlan(uint64_t seed);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_PLAN_H_
