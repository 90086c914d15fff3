#include "tests/cluster/swarm_plan.h"

#include <algorithm>
#include <cstdlib>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace verbena::test {
namespace {

struct FeatureChance {
  SwarmFeature feature;
  const char* name;
  double chance;
};

constexpr FeatureChance kChances[] = {
    {SwarmFeature::kEmbedding, "embedding", 0.7},
    {SwarmFeature::kColdTier, "cold_tier", 0.15},
    {SwarmFeature::kHalfPrecision, "half_precision", 0.3},
    {SwarmFeature::kCodecs, "codecs", 0.3},
    {SwarmFeature::kAdmission, "admission", 0.2},
    {SwarmFeature::kEviction, "eviction", 0.2},
    {SwarmFeature::kOptimizerState, "optimizer_state", 0.2},
    {SwarmFeature::kSsp, "ssp", 0.3},
    {SwarmFeature::kSync, "sync", 0.3},
    {SwarmFeature::kNorms, "norms", 0.2},
    {SwarmFeature::kDrops, "drops", 0.5},
    {SwarmFeature::kLosses, "losses", 0.4},
    {SwarmFeature::kChurn, "churn", 0.4},
    {SwarmFeature::kReaders, "readers", 0.5},
    {SwarmFeature::kBags, "bags", 0.3},
    {SwarmFeature::kForeignReads, "foreign_reads", 0.1},
    {SwarmFeature::kFreeRegions, "free_regions", 0.3},
    {SwarmFeature::kServerCrashes, "server_crashes", 0.7},
    {SwarmFeature::kServerStalls, "server_stalls", 0.4},
    {SwarmFeature::kSlowServer, "slow_server", 0.25},
    {SwarmFeature::kHeavyLoad, "heavy_load", 0.08},
    {SwarmFeature::kWorkerCrashes, "worker_crashes", 0.4},
    {SwarmFeature::kWorkerStalls, "worker_stalls", 0.4},
    {SwarmFeature::kCoordinatorRestarts, "coordinator_restarts", 0.4},
    {SwarmFeature::kCoordinatorStalls, "coordinator_stalls", 0.25},
    {SwarmFeature::kPartitions, "partitions", 0.3},
    {SwarmFeature::kControlLoss, "control_loss", 0.4},
    {SwarmFeature::kConnectionLoss, "connection_loss", 0.5},
    {SwarmFeature::kHangs, "hangs", 0.3},
    {SwarmFeature::kRailFaults, "rail_faults", 0.2},
    {SwarmFeature::kClockDrift, "clock_drift", 0.4},
    {SwarmFeature::kSlowStore, "slow_store", 0.2},
    {SwarmFeature::kOldStates, "old_states", 0.08},
    {SwarmFeature::kRefusedMemory, "refused_memory", 0.25},
    {SwarmFeature::kLongCalls, "long_calls", 0.25},
    {SwarmFeature::kSleeps, "sleeps", 0.3},
    {SwarmFeature::kSuspends, "suspends", 0.2},
    {SwarmFeature::kSlowLinks, "slow_links", 0.2},
    {SwarmFeature::kServerLeaves, "server_leaves", 0.2},
    {SwarmFeature::kHandovers, "handovers", 0.2},
    {SwarmFeature::kRemovals, "removals", 0.15},
    {SwarmFeature::kEagerTables, "eager_tables", 0.3},
    {SwarmFeature::kLearnerStalls, "learner_stalls", 0.3},
    {SwarmFeature::kColdLearners, "cold_learners", 0.08},
    {SwarmFeature::kSmallRecords, "small_records", 0.1},
    {SwarmFeature::kFewBuffers, "few_buffers", 0.1},
    {SwarmFeature::kCheckpoints, "checkpoints", 0.25},
    {SwarmFeature::kDiskFaults, "disk_faults", 0.25},
    {SwarmFeature::kMissedLosses, "missed_losses", 0.09},
    {SwarmFeature::kJoinStalls, "join_stalls", 0.1},
    {SwarmFeature::kCutLearners, "cut_learners", 0.08},
    {SwarmFeature::kOldRequests, "old_requests", 0.031},
    {SwarmFeature::kLateLeaves, "late_leaves", 0.08},
    {SwarmFeature::kRestoreCuts, "restore_cuts", 0.1},
    {SwarmFeature::kMissedRuns, "missed_runs", 0.05},
    {SwarmFeature::kSlowRecovery, "slow_recovery", 0.03},
    {SwarmFeature::kChainFaults, "chain_faults", 0.04},
    {SwarmFeature::kRestoreCrashes, "restore_crashes", 0.04},
    // Only with VERBENA_SWARM_WITH.
    {SwarmFeature::kShortMemory, "short_memory", 0},
    {SwarmFeature::kLostFollowers, "lost_followers", 0.05},
    {SwarmFeature::kLateRequests, "late_requests", 0.05},
    {SwarmFeature::kLateFollowers, "late_followers", 0.05},
    {SwarmFeature::kRestoredLosses, "restored_losses", 0.06},
    {SwarmFeature::kGroups, "groups", 0.2},
    {SwarmFeature::kRates, "rates", 0.25},
    {SwarmFeature::kFewOperations, "few_operations", 0.12},
    {SwarmFeature::kStates, "states", 0.3},
    {SwarmFeature::kThreeReplicas, "three_replicas", 0.12},
    {SwarmFeature::kMigrations, "migrations", 0.1},
    {SwarmFeature::kRareFaults, "rare_faults", 0.5},
    {SwarmFeature::kElastic, "elastic", 0.12},
    {SwarmFeature::kDeafPrimaries, "deaf_primaries", 0.03},
    {SwarmFeature::kLateAdmissions, "late_admissions", 0.03},
    {SwarmFeature::kStrayMembers, "stray_members", 0.03},
    {SwarmFeature::kWideLoads, "wide_loads", 0.03},
    {SwarmFeature::kManyLosses, "many_losses", 0.03},
    {SwarmFeature::kReadFollowers, "read_followers", 0.04},
};
static_assert(std::size(kChances) == static_cast<size_t>(SwarmFeature::kCount));

class PlanDraw {
 public:
  explicit PlanDraw(uint64_t seed) : random_(seed * 7919 + 13) {}
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool Chance(double p) { return std::bernoulli_distribution(p)(random_); }

 private:
  std::mt19937_64 random_;
};

void DrawCluster(PlanDraw* draw, SwarmPlan* plan) {
  ClusterOptions& cluster = plan->cluster;
  cluster.seed = plan->seed;
  cluster.servers = static_cast<int>(draw->Between(2, 4));
  cluster.shards = static_cast<int>(draw->Between(1, 2));
  cluster.replicas = draw->Chance(0.75) ? 2 : 1;
  cluster.min_replicas = cluster.replicas == 2 && draw->Chance(0.3) ? 2 : 1;
  cluster.lease_ms = static_cast<uint32_t>(draw->Between(500, 2000));
  cluster.rails = plan->has(SwarmFeature::kRailFaults) ? 2 : 1;
  cluster.small_slots = static_cast<uint32_t>(draw->Between(1, 8));
  cluster.large_slots = static_cast<uint32_t>(draw->Between(1, 2));
  cluster.operations = static_cast<uint32_t>(draw->Between(4, 16));
  cluster.audit.interval_ns = 100 * kMilli;
  if (plan->has(SwarmFeature::kColdTier)) cluster.cold_io_ns = draw->Between(20, 5000) * 1000;
  if (plan->has(SwarmFeature::kClockDrift)) cluster.drift_ppm = 10'000;
  if (plan->has(SwarmFeature::kControlLoss)) cluster.control.loss = 0.02;
  if (plan->has(SwarmFeature::kRefusedMemory)) cluster.network.expose_refusal = 0.05;
  if (plan->has(SwarmFeature::kConnectionLoss)) {
    cluster.network.connection_loss = 0.002;
    cluster.network.missed_loss = 0.2;
    cluster.network.connect_failure = 0.1;
    cluster.network.max_death_delay_ns = 20 * kMilli;
  }
  if (plan->has(SwarmFeature::kManyLosses)) cluster.network.connection_loss = 0.03;
  if (plan->has(SwarmFeature::kMissedLosses)) cluster.network.missed_loss = 0.9;
  PlanDraw own(plan->seed * 31 + 7);  // changes no other draw of a seed
  if (own.Chance(0.5)) {
    // A log has room for one chunk of a partition or a few, so that pushes wait for room.
    cluster.replica_log.partition_bytes = static_cast<uint64_t>(own.Between(4, 64)) << 10;
    cluster.replica_log.shard_bytes =
        cluster.replica_log.partition_bytes * static_cast<uint64_t>(own.Between(1, 4));
    cluster.replica_log.catch_up_bytes = static_cast<uint64_t>(own.Between(4, 32)) << 10;
  }
  PlanDraw groups(plan->seed * 53 + 29);
  if (plan->has(SwarmFeature::kGroups)) {
    cluster.group_calls = static_cast<int>(groups.Between(2, 16));
  }
  PlanDraw terms(plan->seed * 37 + 11);
  if (terms.Chance(0.7)) cluster.terms_listed = static_cast<int>(terms.Between(1, 3));
}

// Sync tables: which jobs have some, and how far their workers run ahead.
void DrawSteps(SwarmPlan* plan) {
  PlanDraw own(plan->seed * 37 + 11);  // changes no other draw of a seed
  for (SwarmJobPlan& job : plan->jobs) job.steps = &job == &plan->jobs.front() || own.Chance(0.5);
  // Waiting pulls and awaits of many tables take the turns of a server that has few to give.
  plan->pace_ns = std::min(plan->pace_ns, 3 * kMilli);
  const bool runs_ahead = !own.Chance(0.5);
  if (plan->has(SwarmFeature::kNorms)) {
    PlanDraw norms(plan->seed * 41 + 17);
    // Some never clip: most steps of the others do.
    static constexpr double kLimits[] = {30, 300, 1e9};
    plan->norm_limit = kLimits[norms.Between(0, 2)];
    // A norm spans several tables.
    plan->max_tables = std::max(plan->max_tables, 3u);
    plan->operations = std::max(plan->operations, runs_ahead ? 6u : 3u);
  }
  // A worker has room to wait on each of its tables: else they wait for one another's steps.
  plan->max_tables =
      std::min(plan->max_tables, std::max(plan->operations / (runs_ahead ? 3 : 1), 1u));
  if (plan->has(SwarmFeature::kCheckpoints)) {
    // Restored tables come on top.
    plan->cluster.small_slots = std::max(plan->cluster.small_slots, 6u);
    plan->cluster.operations = std::max(plan->cluster.operations, 16u);
  }
  // Workers that run ahead, or wait for one another on ssp tables, too, need room for the
  // operations that others hold or wait for.
  if (runs_ahead) plan->ahead = 3;
  if (!runs_ahead && !plan->has(SwarmFeature::kSsp)) return;
  plan->cluster.small_slots = std::max(plan->cluster.small_slots, 4u);
  plan->cluster.operations = std::max(plan->cluster.operations, 8u);
}

// A learner that is slower than the pushes, for as long as they go on.
void PressHard(PlanDraw* draw, SwarmPlan* plan) {
  for (const SwarmFeature feature : {SwarmFeature::kServerCrashes, SwarmFeature::kSlowServer}) {
    plan->features[static_cast<size_t>(feature)] = true;
  }
  plan->cluster.servers = static_cast<int>(draw->Between(2, 3));
  plan->cluster.replicas = 2;
  plan->cluster.min_replicas = 1;
  plan->max_tables = static_cast<uint32_t>(draw->Between(1, 3));
  plan->operations = 4;
  plan->think_ns = 2 * kMilli;
  plan->faults_end_ns = 4 * kSecond;
}

// Rows are pushed, and sent to learners, while the disk reads them.
void PressColdRows(SwarmPlan* plan) {
  PlanDraw own(plan->seed * 37 + 11);  // changes no other draw of a seed
  for (const SwarmFeature feature :
       {SwarmFeature::kEmbedding, SwarmFeature::kColdTier, SwarmFeature::kServerCrashes}) {
    plan->features[static_cast<size_t>(feature)] = true;
  }
  plan->cluster.cold_io_ns = own.Between(1, 10) * kMilli;
  plan->cluster.servers = static_cast<int>(own.Between(2, 3));
  plan->cluster.replicas = 2;
  plan->cluster.min_replicas = 1;
  plan->max_tables = static_cast<uint32_t>(own.Between(1, 3));
  plan->operations = 4;
  plan->think_ns = own.Between(1, 4) * kMilli;
}

// A cursor stands for long between the rows of a partition, and pushes come meanwhile.
void DrawRecords(SwarmPlan* plan) {
  PlanDraw own(plan->seed * 43 + 19);  // changes no other draw of a seed
  plan->cluster.replica_log.rows_bytes = static_cast<uint64_t>(own.Between(1, 2048));
  plan->cluster.replica_log.catch_up_bytes = static_cast<uint64_t>(own.Between(1, 16)) << 8;
  if (own.Chance(0.5) && !plan->has(SwarmFeature::kWideLoads)) return;
  // The changes of a view then take as much room as a push.
  plan->cluster.replica_log.partition_bytes = static_cast<uint64_t>(own.Between(1, 16)) << 8;
  plan->cluster.replica_log.shard_bytes =
      plan->cluster.replica_log.partition_bytes * static_cast<uint64_t>(own.Between(1, 8));
}

// Rows of two or three tables fill the servers, each of which has also copies of others'
// partitions. Requests have a few rows each (SwarmClient::DrawUnits()): requests in flight must be
// small beside the limit, as on a real server.
void DrawMemory(SwarmPlan* plan) {
  PlanDraw own(plan->seed * 53 + 29);  // changes no other draw of a seed
  plan->cluster.memory_limit = static_cast<uint64_t>(own.Between(384, 1024)) << 10;
  // Below two copies pushes would wait for memory.
  plan->cluster.min_replicas = 1;
  plan->max_tables = static_cast<uint32_t>(own.Between(2, 4));
}

// Pulls that are written out for long hold the buffers that applies need.
void DrawBuffers(SwarmPlan* plan) {
  PlanDraw own(plan->seed * 47 + 23);  // changes no other draw of a seed
  plan->cluster.spare_buffers = static_cast<uint32_t>(own.Between(0, 2));
  plan->cluster.network.max_delay_ns = own.Between(500, 5000) * 1000;
  plan->features[static_cast<size_t>(SwarmFeature::kLearnerStalls)] = true;
}

// Workers wait for one another on more tables than a lane has operations.
void DrawFewOperations(SwarmPlan* plan) {
  PlanDraw own(plan->seed * 59 + 31);  // changes no other draw of a seed
  plan->cluster.operations = static_cast<uint32_t>(own.Between(4, 5));
  plan->cluster.small_slots = static_cast<uint32_t>(own.Between(1, 3));
  plan->cluster.servers = static_cast<int>(own.Between(2, 3));
  plan->cluster.shards = 1;
  plan->max_tables = static_cast<uint32_t>(own.Between(3, 4));
  plan->operations = 4;
  plan->ahead = 1;
  plan->jobs.resize(1);
  plan->jobs.front().workers = static_cast<uint32_t>(own.Between(2, 3));
}

// Workers do much in the time for which an answer of the coordinator is late.
void PressHurried(SwarmPlan* plan) {
  plan->max_tables = std::min(plan->max_tables, 2u);
  plan->operations = 4;
  plan->think_ns = 2 * kMilli;
  plan->cluster.small_slots = std::max(plan->cluster.small_slots, 4u);
  plan->cluster.operations = std::max(plan->cluster.operations, 8u);
  plan->fault_pause_ns *= 8;
}

// Beyond the expected workers others join runs, and all of them leave at times.
void DrawElastic(SwarmPlan* plan) {
  PlanDraw own(plan->seed * 61 + 37);  // changes no other draw of a seed
  for (SwarmJobPlan& job : plan->jobs) {
    job.workers = std::min(job.workers, 2u);
    job.max_workers = job.workers + static_cast<uint32_t>(own.Between(1, 2));
  }
}

}  // namespace

const char* SwarmFeatureName(SwarmFeature feature) {
  return kChances[static_cast<size_t>(feature)].name;
}

std::string SwarmPlan::Describe() const {
  std::string text = absl::StrCat(
      cluster.servers, " servers, ", cluster.shards, " shards, replicas ", cluster.replicas, "/",
      cluster.min_replicas, ", lease ", cluster.lease_ms, " ms, ", jobs.size(), " jobs, up to ",
      max_tables, " tables, replica log ", cluster.replica_log.partition_bytes >> 10, "/",
      cluster.replica_log.shard_bytes >> 10, " KiB, lanes of ", cluster.small_slots, "+",
      cluster.large_slots, " slots and ", cluster.operations, " operations, ", operations,
      " operations at once, staging ", staging_bytes >> 10, " KiB, think ", think_ns / 1000,
      " us, faults until ", faults_end_ns / kMilli, " ms:");
  for (const FeatureChance& chance : kChances) {
    if (has(chance.feature)) absl::StrAppend(&text, " ", chance.name);
  }
  return text;
}

namespace {

// VERBENA_SWARM_WITHOUT names features that no seed has, to look for failures that they hide;
// VERBENA_SWARM_WITH names those that all seeds have.
bool Named(const char* variable, absl::string_view name) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return false;
  const std::vector<absl::string_view> names = absl::StrSplit(value, ',');
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

SwarmPlan DrawPlan(uint64_t seed) {
  PlanDraw draw(seed);
  SwarmPlan plan;
  plan.seed = seed;
  for (const FeatureChance& chance : kChances) {
    // Each from a source of its own: a feature that is added changes no other seed's.
    uint64_t source = seed * 7919;
    for (const char* c = chance.name; *c != '\0'; ++c)
      source = source * 31 + static_cast<uint64_t>(*c);
    plan.features[static_cast<size_t>(chance.feature)] =
        (PlanDraw(source).Chance(chance.chance) || Named("VERBENA_SWARM_WITH", chance.name)) &&
        !Named("VERBENA_SWARM_WITHOUT", chance.name);
  }
  const auto drop_unless = [&plan](SwarmFeature feature, bool possible) {
    if (!possible) plan.features[static_cast<size_t>(feature)] = false;
  };
  const auto need = [&plan](SwarmFeature feature, std::initializer_list<SwarmFeature> others) {
    for (const SwarmFeature other : others) {
      if (plan.has(feature)) plan.features[static_cast<size_t>(other)] = true;
    }
  };
  // What they leave behind takes lanes of few operations longer than a recovery may take.
  drop_unless(SwarmFeature::kManyLosses, !plan.has(SwarmFeature::kFewOperations));
  need(SwarmFeature::kManyLosses, {SwarmFeature::kConnectionLoss});
  need(SwarmFeature::kWideLoads,
       {SwarmFeature::kEmbedding, SwarmFeature::kCheckpoints, SwarmFeature::kSmallRecords});
  drop_unless(SwarmFeature::kMissedLosses, plan.has(SwarmFeature::kConnectionLoss));
  drop_unless(SwarmFeature::kRestoreCuts, plan.has(SwarmFeature::kCheckpoints));
  DrawCluster(&draw, &plan);
  const auto any = [&plan](std::initializer_list<SwarmFeature> features) {
    return std::any_of(features.begin(), features.end(),
                       [&plan](SwarmFeature feature) { return plan.has(feature); });
  };
  // While an older state is put back, or the disk fails, few tables are restored.
  drop_unless(SwarmFeature::kRestoredLosses,
              !any({SwarmFeature::kOldStates, SwarmFeature::kOldRequests,
                    SwarmFeature::kChainFaults, SwarmFeature::kRestoreCrashes}));
  if (plan.has(SwarmFeature::kRestoredLosses))
    plan.cluster.replicas = plan.cluster.min_replicas = 1;
  drop_unless(SwarmFeature::kCutLearners, plan.cluster.replicas > 1);
  drop_unless(SwarmFeature::kWideLoads, plan.cluster.replicas > 1);
  drop_unless(SwarmFeature::kLateLeaves, plan.cluster.replicas > 1);
  drop_unless(SwarmFeature::kMissedRuns, plan.cluster.replicas > 1);
  drop_unless(SwarmFeature::kLostFollowers, plan.cluster.replicas > 1);
  // Features with chunks, checkpoints or disks need free memory.
  drop_unless(
      SwarmFeature::kShortMemory,
      plan.cluster.replicas > 1 &&
          !any({SwarmFeature::kCheckpoints, SwarmFeature::kColdTier, SwarmFeature::kColdLearners,
                SwarmFeature::kNorms, SwarmFeature::kDiskFaults, SwarmFeature::kHeavyLoad,
                SwarmFeature::kSlowRecovery, SwarmFeature::kChainFaults,
                SwarmFeature::kRestoreCrashes}));
  need(SwarmFeature::kShortMemory, {SwarmFeature::kEmbedding});
  // These need larger lanes (DrawSteps()).
  drop_unless(SwarmFeature::kFewOperations,
              !any({SwarmFeature::kSsp, SwarmFeature::kNorms, SwarmFeature::kCheckpoints,
                    SwarmFeature::kSlowRecovery, SwarmFeature::kRestoreCrashes,
                    SwarmFeature::kChainFaults, SwarmFeature::kRestoredLosses}));
  need(SwarmFeature::kFewOperations, {SwarmFeature::kSync});
  drop_unless(SwarmFeature::kLateRequests, plan.cluster.replicas > 1);
  drop_unless(SwarmFeature::kLateFollowers, plan.cluster.replicas > 1);
  // For features that need a certain moment, which other faults often prevent.
  drop_unless(SwarmFeature::kRareFaults,
              any({SwarmFeature::kCutLearners, SwarmFeature::kLateLeaves, SwarmFeature::kMissedRuns,
                   SwarmFeature::kLostFollowers, SwarmFeature::kLateRequests,
                   SwarmFeature::kLateFollowers, SwarmFeature::kRestoredLosses}));
  need(SwarmFeature::kMissedRuns, {SwarmFeature::kSync});
  need(SwarmFeature::kElastic, {SwarmFeature::kChurn});
  need(SwarmFeature::kDeafPrimaries, {SwarmFeature::kMigrations, SwarmFeature::kReaders});
  drop_unless(SwarmFeature::kReadFollowers, plan.cluster.replicas > 1);
  need(SwarmFeature::kReadFollowers, {SwarmFeature::kReaders});
  need(SwarmFeature::kLateAdmissions,
       {SwarmFeature::kElastic, SwarmFeature::kChurn, SwarmFeature::kSync});
  // A client that follows an older state counts in no model of steps; the operator hears nothing.
  drop_unless(SwarmFeature::kStrayMembers,
              !any({SwarmFeature::kSync, SwarmFeature::kNorms, SwarmFeature::kElastic,
                    SwarmFeature::kCheckpoints, SwarmFeature::kMigrations}));
  need(SwarmFeature::kStrayMembers, {SwarmFeature::kOldStates});
  need(SwarmFeature::kSlowRecovery, {SwarmFeature::kSync, SwarmFeature::kCheckpoints});
  need(SwarmFeature::kChainFaults,
       {SwarmFeature::kEmbedding, SwarmFeature::kCheckpoints, SwarmFeature::kDiskFaults});
  need(SwarmFeature::kRestoreCrashes, {SwarmFeature::kCheckpoints, SwarmFeature::kDiskFaults});
  need(SwarmFeature::kLostFollowers, {SwarmFeature::kLosses, SwarmFeature::kRemovals});
  need(SwarmFeature::kLateRequests, {SwarmFeature::kLosses, SwarmFeature::kServerCrashes});
  need(SwarmFeature::kRestoredLosses, {SwarmFeature::kCheckpoints, SwarmFeature::kLosses});
  drop_unless(SwarmFeature::kDiskFaults, !plan.has(SwarmFeature::kRestoredLosses));
  need(SwarmFeature::kLateFollowers,
       {SwarmFeature::kSync, SwarmFeature::kReaders, SwarmFeature::kServerCrashes});
  const int64_t jobs = draw.Between(1, 2);
  for (int64_t j = 0; j < jobs; ++j) {
    // Names that are one another's but for a letter, for directories of checkpoints.
    static constexpr const char* kSimilar[] = {"job/x", "job_x"};
    const std::string host = absl::StrCat("job-", j);
    plan.jobs.push_back({plan.has(SwarmFeature::kCheckpoints) ? kSimilar[j] : host, host,
                         static_cast<uint32_t>(draw.Between(1, 3))});
  }
  plan.max_tables = static_cast<uint32_t>(draw.Between(1, 8));
  plan.operations = static_cast<uint32_t>(draw.Between(1, 4));
  plan.think_ns = draw.Between(1, 20) * kMilli;
  plan.operator_pause_ns = draw.Between(50, 800) * kMilli;
  plan.fault_pause_ns = draw.Between(100, 1500) * kMilli;
  plan.faults_end_ns = draw.Between(4, 10) * kSecond;
  plan.pace_ns = draw.Between(1, 10) * kMilli;
  if (plan.has(SwarmFeature::kRareFaults)) plan.fault_pause_ns *= 8;
  if (plan.has(SwarmFeature::kHeavyLoad)) PressHard(&draw, &plan);
  if (plan.has(SwarmFeature::kColdLearners)) PressColdRows(&plan);
  if (plan.has(SwarmFeature::kSmallRecords)) DrawRecords(&plan);
  if (plan.has(SwarmFeature::kFewBuffers)) DrawBuffers(&plan);
  if (plan.has(SwarmFeature::kShortMemory)) DrawMemory(&plan);
  if (plan.has(SwarmFeature::kDeafPrimaries) || plan.has(SwarmFeature::kLateAdmissions)) {
    PressHurried(&plan);
  }
  // A run has many steps behind it when the faults stop.
  if (plan.has(SwarmFeature::kSlowRecovery)) {
    plan.max_tables = std::min(plan.max_tables, 2u);
    plan.think_ns = 2 * kMilli;
  }
  if (plan.has(SwarmFeature::kOldRequests)) {
    plan.features[static_cast<size_t>(SwarmFeature::kOldStates)] = true;
    plan.features[static_cast<size_t>(SwarmFeature::kCoordinatorRestarts)] = true;
  }
  // Nothing waits for a server that is given up: its partitions go to others.
  if (plan.has(SwarmFeature::kCutLearners)) {
    plan.features[static_cast<size_t>(SwarmFeature::kRemovals)] = true;
  }
  if (plan.has(SwarmFeature::kCutLearners) || plan.has(SwarmFeature::kLateLeaves)) {
    // Partitions that die with the primary are lost, and reset.
    for (const SwarmFeature feature :
         {SwarmFeature::kServerCrashes, SwarmFeature::kLosses, SwarmFeature::kHandovers}) {
      plan.features[static_cast<size_t>(feature)] = true;
    }
  }
  // One of them is made when a learner catches up.
  if (plan.has(SwarmFeature::kEagerTables)) plan.max_tables = std::max(plan.max_tables, 2u);
  if (plan.has_steps()) DrawSteps(&plan);
  if (plan.has(SwarmFeature::kFewOperations)) DrawFewOperations(&plan);
  if (plan.has(SwarmFeature::kElastic)) DrawElastic(&plan);
  PlanDraw own(seed * 41 + 17);  // changes no other draw of a seed
  if (own.Chance(0.3)) plan.staging_bytes = static_cast<size_t>(own.Between(1, 16)) * 4096;
  // Lookups of all rows are cut.
  if (plan.has(SwarmFeature::kShortMemory)) {
    plan.staging_bytes = std::min(std::max(plan.staging_bytes, size_t{8} << 10), size_t{32} << 10);
  }
  // A pull that waits for a step holds a buffer.
  if (plan.has_steps() && plan.staging_bytes > 0) {
    plan.staging_bytes = std::max(plan.staging_bytes, size_t{plan.operations} << 14);
  }
  drop_unless(SwarmFeature::kThreeReplicas, plan.cluster.replicas > 1);
  if (plan.has(SwarmFeature::kThreeReplicas)) {
    plan.cluster.replicas = 3;
    plan.cluster.servers = std::max(plan.cluster.servers, 3);
  }
  return plan;
}

}  // namespace verbena::test
