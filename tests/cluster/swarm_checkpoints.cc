#include "tests/cluster/swarm_checkpoints.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/compact.h"

namespace verbena::test {
namespace {

using checkpoint::CheckpointDirectory;
using checkpoint::CheckpointReader;
using checkpoint::Join;

constexpr char kPeriodicRoot[] = "/periodic";
constexpr char kSharedRoot[] = "/shared";  // of all jobs
constexpr int64_t kNotSoon = std::numeric_limits<int64_t>::max();
// Restored tables come on top of those that the operator makes.
constexpr size_t kRestoredAtMost = 3;
// The same if workers wait for one another on each table.
constexpr size_t kRestoredWithSteps = 1;
constexpr uint32_t kLongChain = 6;

// Notes the acknowledged values whenever a save asks for the view: its checkpoint must have them.
class NotingChannel final : public ControlChannel {
 public:
  NotingChannel(std::unique_ptr<ControlChannel> channel, SwarmSaved* saved)
      : channel_(std::move(channel)), saved_(*saved) {}
  void Unary(const std::string& address, const std::string& method,
             const google::protobuf::Message& request,
             std::shared_ptr<google::protobuf::Message> response, absl::Duration timeout,
             Done done) override {
    if (method == "/verbena.v1.Cluster/GetView") least_ = saved_.Acknowledged();
    if (method == "/verbena.v1.Shard/BeginCheckpoint") {
      const auto& begin = static_cast<const v1::BeginCheckpointRequest&>(request);
      if (!begin.only_look()) saved_.CheckpointSent(begin.checkpoint(), least_);
    }
    channel_->Unary(address, method, request, std::move(response), timeout, std::move(done));
  }
  bool RunOnce() override { return channel_->RunOnce(); }
  int wake_fd() const override { return channel_->wake_fd(); }

 private:
  const std::unique_ptr<ControlChannel> channel_;
  SwarmSaved& saved_;
  std::shared_ptr<const SavedLeast> least_;
};

}  // namespace

SwarmCheckpoints::SwarmCheckpoints(SwarmWorld* world)
    : world_(world),
      random_(world->plan.seed * 15'485'863 + 3),
      disk_(world->plan.seed * 7 + 1),
      saved_(world, &disk_) {
  ClusterOptions& cluster = world_->plan.cluster;
  cluster.disk = &disk_;
  cluster.checkpoint_begun = [this](const v1::BeginCheckpointRequest& request,
                                    const shard::Engine& engine) {
    saved_.CheckpointBegun(request, engine);
  };
  cluster.restore_begun = [this](const v1::BeginRestoreRequest& request) {
    saved_.RestoreBegun(request);
  };
  (void)disk_.MakeDirectory(kPeriodicRoot);
  (void)disk_.SyncDirectory(".");
  next_periodic_ = Chance(0.6) ? Between(500, 2000) * kMilli : kNotSoon;
  next_checkpoint_ = Between(500, 2500) * kMilli;
  next_restore_ = Between(1500, 5000) * kMilli;
  next_upkeep_ = Between(1000, 4000) * kMilli;
  // Many restores.
  if (!RestoresOften()) return;
  next_checkpoint_ = 300 * kMilli;
  next_restore_ = 500 * kMilli;
}

int64_t SwarmCheckpoints::DrawDeath() {
  if (!faults() || !Chance(0.25)) return kNotSoon;
  return world_->now() + Between(0, Chance(0.5) ? 1000 : 50) * kMilli;
}

std::unique_ptr<ControlChannel> SwarmCheckpoints::NewChannel(const std::string& host) {
  return std::make_unique<NotingChannel>(world_->cluster->control().NewChannel(host), &saved_);
}

std::set<std::string> SwarmCheckpoints::Jobs() const {
  std::set<std::string> jobs;
  for (const auto& [id, table] : world_->tables) {
    if (!table.dropped() && !table.restoring()) jobs.insert(table.spec().job());
  }
  return jobs;
}

std::string SwarmCheckpoints::AnyRoot() {
  std::vector<std::string> roots = {kSharedRoot};
  for (const SwarmJob& job : world_->jobs) {
    roots.push_back(Join(kPeriodicRoot, server::CheckpointDirectoryOf(job.plan.name)));
  }
  return roots[Pick(roots.size())];
}

void SwarmCheckpoints::Judge(const char* what, const absl::Status& status) {
  last_ = status;
  world_->Trace(absl::StrCat(what, ": ", status.ToString()));
  switch (status.code()) {
    case absl::StatusCode::kDataLoss: {
      if (world_->has(SwarmFeature::kDiskFaults) || removed_) return;
      const bool lost = std::any_of(world_->tables.begin(), world_->tables.end(),
                                    [](const auto& table) { return table.second.ever_lost_any(); });
      if (lost) return;
      break;
    }
    case absl::StatusCode::kResourceExhausted:
      if (world_->has(SwarmFeature::kDiskFaults)) return;
      break;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnknown:
      break;
    default:
      return;
  }
  world_->Violation(absl::StrCat(what, " ended in a way that it must not: ", status.ToString()));
}

// ---- saves every so often -----------------------------------------------------------------------

void SwarmCheckpoints::StartPeriodic() {
  server::PeriodicCheckpointsOptions options;
  options.saver.coordinator = kCoordinatorAddress;
  options.saver.root = kPeriodicRoot;
  options.saver.full_every = static_cast<uint32_t>(Between(1, 4));
  options.saver.seed = world_->plan.seed * 7919 + (++actors_ << 32);  // saves have the next ones
  if (Chance(0.3)) options.saver.bytes_per_second = static_cast<uint64_t>(Between(50, 500)) * 1000;
  options.every_ns = Between(400, 2500) * kMilli;
  options.retention.keep_last = static_cast<uint32_t>(Between(1, 3));
  if (Chance(0.3)) options.retention.keep_every = static_cast<uint64_t>(Between(2, 6));
  options.log = [this](bool, const std::string& line) { OnPeriodic(line); };
  periodic_retention_ = options.retention;
  periodic_channel_ = NewChannel("coordinator");
  periodic_ = std::make_unique<server::PeriodicCheckpoints>(
      options, &world_->cluster->network().clock(), periodic_channel_.get(), &disk_);
  periodic_dies_at_ =
      faults() && Chance(0.5) ? world_->now() + Between(0, 5000) * kMilli : kNotSoon;
}

// "saved PATH: ...": then old ones are removed.
void SwarmCheckpoints::OnPeriodic(const std::string& line) {
  world_->Trace(absl::StrCat("saves: ", line));
  if (line.rfind("removed ", 0) == 0) ++world_->result->pruned;
  if (line.rfind("saved ", 0) != 0) return;
  const std::string path = line.substr(6, line.find(": ") - 6);
  const std::string root = checkpoint::ParentOf(path);
  saved_.Reported(path);
  saved_.Look(root, false);
  ++world_->result->saved;
  checkpoint::Retention retention = periodic_retention_;
  retention.keep_former_runs = true;
  for (const SwarmJob& job : world_->jobs) {
    if (root != Join(kPeriodicRoot, server::CheckpointDirectoryOf(job.plan.name))) continue;
    retention.job = job.plan.name;
    const int64_t began = world_->now() - periodic_->statistics().duration_ns;
    if (!faults() && began > world_->recovery_began_ns) proved_jobs_.insert(retention.job);
  }
  saved_.Prunes(root, retention);
  removed_ = true;
}

void SwarmCheckpoints::RunPeriodic() {
  if (periodic_ == nullptr) {
    if (world_->now() < next_periodic_ || world_->stage == SwarmStage::kFinish) return;
    return StartPeriodic();
  }
  if (world_->now() >= periodic_dies_at_ || world_->stage == SwarmStage::kFinish) {
    periodic_.reset();
    periodic_channel_.reset();
    next_periodic_ = world_->now() + Between(1, 1000) * kMilli;
    return saved_.LookAll(false);
  }
  periodic_channel_->RunOnce();
  periodic_->RunOnce();
}

// ---- an operator's saves ------------------------------------------------------------------------

void SwarmCheckpoints::StartCheckpoint() {
  const std::set<std::string> all = Jobs();
  next_checkpoint_ = world_->now() + 20 * kMilli;
  std::vector<std::string> jobs;
  std::copy_if(all.begin(), all.end(), std::back_inserter(jobs),
               [&](const std::string& job) { return faults() || !proved_jobs_.contains(job); });
  if (jobs.empty()) return;
  std::string job = jobs[Pick(jobs.size())];
  std::string root =
      Chance(0.5) ? kSharedRoot : Join(kPeriodicRoot, server::CheckpointDirectoryOf(job));
  const bool again = std::exchange(checkpoint_again_, false);
  if (!again || !all.contains(checkpoint_job_)) {
    checkpoint_job_ = std::move(job);
    checkpoint_root_ = std::move(root);
  }
  checkpoint_proves_ = !faults();
  server::CheckpointTaskOptions options;
  options.coordinator = kCoordinatorAddress;
  options.root = checkpoint_root_;
  options.job = checkpoint_job_;
  options.written_by = "a simulator";
  options.full_every = static_cast<uint32_t>(Chance(0.2) ? 1 : Between(2, 6));
  if (world_->has(SwarmFeature::kChainFaults)) options.full_every = kLongChain;
  options.seed = world_->plan.seed * 104'729 + ++actors_;
  if (faults()) {
    if (Chance(0.4)) options.bytes_per_second = static_cast<uint64_t>(Between(20, 500)) * 1000;
    if (Chance(0.4)) options.memory_bytes = static_cast<uint64_t>(Between(1, 30'000));
  }
  if (Chance(0.5)) options.file_bytes = static_cast<uint64_t>(Between(1000, 50'000));
  checkpoint_task_dies_at_ = DrawDeath();
  saved_.Compacts(nullptr);
  checkpoint_channel_ = NewChannel("operator");
  checkpoint_task_ = std::make_unique<server::CheckpointTask>(
      options, &world_->cluster->network().clock(), checkpoint_channel_.get(), &disk_);
  DrawInterrupt(again);
}

void SwarmCheckpoints::DrawInterrupt(bool again) {
  interrupt_at_ = kNotSoon;
  checkpoint_interrupted_ = false;
  slow_files_ns_ = 0;
  const uint64_t draw = interrupts_();
  // The save that follows an interrupted one shows the effect of late writers.
  if (again || !faults() || !world_->has(SwarmFeature::kDiskFaults) || draw % 8 == 0) return;
  // Shards are late: they still write the interrupted save when the next one begins.
  slow_files_ns_ = static_cast<int64_t>(draw / 8 % 40) * kMilli;
  interrupt_at_ = world_->now() + static_cast<int64_t>(draw / 320 % 60) * kMilli;
}

void SwarmCheckpoints::RunOneCheckpoint() {
  if (checkpoint_task_ == nullptr) {
    const bool may = !disk_.crashed() && world_->stage != SwarmStage::kFinish;
    if (may && world_->now() >= next_checkpoint_) StartCheckpoint();
    return;
  }
  bool chain = false;
  if (world_->now() < checkpoint_task_dies_at_) {
    checkpoint_channel_->RunOnce();
    checkpoint_task_->RunOnce();
    if (world_->now() >= interrupt_at_) {
      interrupt_at_ = kNotSoon;
      checkpoint_interrupted_ = true;
      checkpoint_task_->Cancel();
    }
    if (!checkpoint_task_->done()) return;
    Judge("a save", checkpoint_task_->status());
    // No other save uses this directory.
    if (absl::IsAlreadyExists(checkpoint_task_->status())) {
      world_->Violation(absl::StrCat("a save found files of another: ", last_.ToString()));
    }
    chain = checkpoint_task_->status().ok() && checkpoint_task_->manifest().has_base();
    if (checkpoint_task_->status().ok()) {
      saved_.Reported(Join(checkpoint_root_, checkpoint_task_->name()));
      ++world_->result->saved;
      if (checkpoint_proves_) proved_jobs_.insert(checkpoint_job_);
    }
  }
  checkpoint_task_.reset();
  checkpoint_channel_.reset();
  saved_.Look(checkpoint_root_, false);
  const bool keep_chain = world_->has(SwarmFeature::kChainFaults);
  if (faults() && !disk_.crashed() && chain && !keep_chain && Chance(0.5))
    Compact(checkpoint_root_);
  next_checkpoint_ = world_->now() + (faults() ? Between(0, 1500) : 20) * kMilli;
  checkpoint_again_ = checkpoint_interrupted_ && faults();
  if (checkpoint_again_) next_checkpoint_ = world_->now();
}

// ---- upkeep -------------------------------------------------------------------------------------

// A chain becomes a full checkpoint, on which the next save may be based.
void SwarmCheckpoints::Compact(const std::string& root) {
  const auto newest = checkpoint::NewestComplete(&disk_, root, nullptr);
  if (!newest.ok()) return;
  std::shared_ptr<const SavedCheckpoint> from;
  for (const auto& known : saved_.Known(root)) {
    if (known->path == *newest) from = known;
  }
  if (from == nullptr) return;
  saved_.Compacts(from);
  const auto reader = CheckpointReader::Open(&disk_, *newest);
  auto directory =
      CheckpointDirectory::Open(&disk_, root, world_->plan.seed * 86'028'121 + ++compactions_);
  absl::StatusOr<std::string> made =
      directory.ok() && reader.ok()
          ? checkpoint::Compact(&disk_, *reader, directory->get(),
                                static_cast<uint64_t>(Between(1000, 50'000)),
                                [](uint64_t) { return absl::OkStatus(); })
          : absl::UnavailableError("it is locked, or damaged");
  Judge("a compaction", made.status());
  if (directory.ok()) directory->reset();
  if (made.ok()) {
    saved_.Reported(Join(root, *made));
    ++world_->result->compacted;
  }
  saved_.Look(root, false);
}

void SwarmCheckpoints::Prune(const std::string& root, bool all_but_newest) {
  const auto listed = checkpoint::ListCheckpoints(&disk_, root);
  const auto directory = CheckpointDirectory::Open(&disk_, root);
  if (!listed.ok() || !directory.ok()) return;
  const std::vector<std::string> jobs = checkpoint::JobsOf(*listed);
  if (jobs.empty()) return;
  checkpoint::Retention retention;
  retention.keep_last = static_cast<uint32_t>(Between(1, 3));
  if (Chance(0.3)) retention.keep_every = static_cast<uint64_t>(Between(2, 6));
  retention.job = jobs[Pick(jobs.size())];
  if (all_but_newest) retention.keep_last = 1, retention.keep_every = 0;
  saved_.Prunes(root, retention);
  const auto removed = (*directory)->Prune(retention);
  removed_ = true;
  Judge("a removal", removed.status());
  if (removed.ok()) world_->result->pruned += static_cast<int>(removed->size());
  saved_.Look(root, Chance(0.3));
}

// ---- restores -----------------------------------------------------------------------------------

void SwarmCheckpoints::StartRestore() {
  next_restore_ = world_->now() + 50 * kMilli;
  std::vector<std::shared_ptr<const SavedCheckpoint>> known = saved_.Known(AnyRoot());
  const auto restored =
      std::count_if(world_->tables.begin(), world_->tables.end(), [](const auto& table) {
        return !table.second.dropped() && table.second.spec().name().front() == 'r';
      });
  if (known.empty()) return;
  if (Chance(0.6)) known = {known.back()};
  restores_ = known[Pick(known.size())];
  if (!faults() && saved_.Doubtful(restores_->path)) return;
  server::RestoreTaskOptions options;
  options.coordinator = kCoordinatorAddress;
  options.path = restores_->path;
  options.seed = world_->plan.seed * 1'299'709 + ++actors_;
  std::vector<std::string> names;
  for (const auto& [name, table] : restores_->tables) names.push_back(name);
  const size_t at_most = world_->plan.has_steps() ? kRestoredWithSteps : kRestoredAtMost;
  const bool may_rename = static_cast<size_t>(restored) < at_most;
  if (names.empty() || (!may_rename && !faults())) {
    proved_restore_ |= !faults();
    return;
  }
  if (faults() && (!may_rename || Chance(0.5))) {
    options.replace = true;
    if (Chance(0.5)) options.tables = {names[Pick(names.size())]};
  } else {
    options.tables = {names[Pick(names.size())]};
    options.renamed = {{options.tables.front(), absl::StrCat("r", ++actors_)}};
    if (Chance(0.3)) options.job = AnyJob(restores_->tables.at(options.tables.front()));
  }
  restore_channel_ = NewChannel("operator");
  auto made = server::RestoreTask::Make(options, &world_->cluster->network().clock(),
                                        restore_channel_.get(), &disk_);
  if (!made.ok()) {
    if (!saved_.Doubtful(restores_->path) && !disk_.crashed()) Judge("a restore", made.status());
    return;
  }
  world_->Trace(absl::StrCat("a restore of ", restores_->path, " begins"));
  restorer_ = *std::move(made);
  restore_proves_ = !faults();
  removed_ = false;
  restorer_dies_at_ = DrawDeath();
}

// Into which a table may be restored. Empty: into its own alone.
std::string SwarmCheckpoints::AnyJob(const SavedTable& table) {
  const SwarmJobPlan& job = world_->jobs[Pick(world_->jobs.size())].plan;
  const bool steps = table.spec.consistency() == v1::CONSISTENCY_SYNC;
  return steps && !job.steps ? "" : job.name;
}

void SwarmCheckpoints::RunRestore() {
  if (restorer_ == nullptr) {
    const bool may =
        !disk_.crashed() && (faults() || !proved_restore_) && world_->stage != SwarmStage::kFinish;
    if (may && world_->now() >= next_restore_) StartRestore();
    return;
  }
  if (world_->now() < restorer_dies_at_) {
    restore_channel_->RunOnce();
    restorer_->RunOnce();
    if (!restorer_->done()) return;
    Judge("a restore", restorer_->status());
    if (restorer_->status().ok()) {
      ++world_->result->restored;
      proved_restore_ |= restore_proves_;
    }
  }
  restorer_.reset();
  restore_channel_.reset();
  const bool often = !faults() || RestoresOften();
  next_restore_ = world_->now() + (often ? 20 : Between(100, 2000)) * kMilli;
}

// A restorer that died has left a table that nobody serves; its job is not saved while it is there.
void SwarmCheckpoints::DropLeftBehind() {
  if (operator_channel_ == nullptr) operator_channel_ = NewChannel("operator");
  operator_channel_->RunOnce();
  if (restorer_ != nullptr || world_->now() < next_drop_) return;
  next_drop_ = world_->now() + (faults() ? Between(1000, 6000) : 500) * kMilli;
  for (const auto& [id, table] : world_->tables) {
    if (table.dropped() || !table.restoring()) continue;
    v1::DropTableRequest request;
    std::string request_id = absl::StrCat("drop-", ++actors_);
    request_id.resize(16, '.');
    request.set_request_id(request_id);
    request.set_name(table.spec().name());
    verbena::Call<v1::DropTableResponse>(
        *operator_channel_, kCoordinatorAddress, "/verbena.v1.Cluster/DropTable", request,
        absl::Milliseconds(400), [](const absl::StatusOr<v1::DropTableResponse>&) {});
  }
}

// ---- the run ------------------------------------------------------------------------------------

void SwarmCheckpoints::RunDisk() {
  if (!disk_.crashed()) return;
  if (reboot_at_ == 0) {
    world_->Trace("the machine with the checkpoints has crashed");
    reboot_at_ = world_->now() + (faults() ? Between(1, 300) * kMilli : 0);
  }
  if (world_->now() < reboot_at_) return;
  reboot_at_ = 0;
  disk_.Reboot();
  saved_.ForgetDamage();
  saved_.LookAll(true);
}

void SwarmCheckpoints::Run(const SwarmChecks& checks) {
  saved_.FollowRestores(checks);
  RunPeriodic();
  RunOneCheckpoint();
  RunRestore();
  if (world_->stage != SwarmStage::kFinish) DropLeftBehind();
  RunDisk();
  if (faults() && !disk_.crashed() && !prunes_next_.empty()) {
    Prune(std::exchange(prunes_next_, ""), true);
  }
  if (!faults() || disk_.crashed() || world_->now() < next_upkeep_) return;
  if (world_->has(SwarmFeature::kChainFaults)) return;
  next_upkeep_ = world_->now() + Between(100, 2500) * kMilli;
  if (Chance(0.5)) {
    Compact(AnyRoot());
  } else {
    Prune(AnyRoot(), false);
  }
}

void SwarmCheckpoints::StopFaults() {
  checkpoint_task_dies_at_ = restorer_dies_at_ = periodic_dies_at_ = interrupt_at_ = kNotSoon;
  slow_files_ns_ = 0;
  disk_.SetCapacity(UINT64_MAX);
  disk_.FailSync(0);
  disk_.CrashAt(0);
  if (disk_.crashed()) reboot_at_ = world_->now();
  next_checkpoint_ = next_restore_ = world_->now();
}

void SwarmCheckpoints::Stop() {
  periodic_.reset();
  checkpoint_task_.reset();
  restorer_.reset();
  periodic_channel_.reset();
  checkpoint_channel_.reset();
  restore_channel_.reset();
  operator_channel_.reset();
}

bool SwarmCheckpoints::Proved(std::string* missing) const {
  for (const std::string& job : Jobs()) {
    if (proved_jobs_.contains(job)) continue;
    *missing = absl::StrCat("job '", job, "' was not saved; last: ", last_.ToString());
    return false;
  }
  for (const auto& [id, table] : world_->tables) {
    if (table.dropped() || !table.restoring()) continue;
    *missing = absl::StrCat("table ", id, " is still being restored",
                            restorer_ == nullptr ? "" : ", by a restore that is ",
                            restorer_ == nullptr ? "" : restorer_->progress().doing);
    return false;
  }
  if (restorer_ == nullptr && (proved_restore_ || proved_jobs_.empty())) return true;
  *missing =
      absl::StrCat("nothing was restored: ",
                   restorer_ == nullptr ? "no restore"
                                        : absl::StrCat("a restore, ", restorer_->progress().doing),
                   "; last: ", last_.ToString());
  return false;
}

}  // namespace verbena::test
