#include "server/checkpoint/periodic_checkpoints.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "server/checkpoint/files/checksum.h"
#include "server/checkpoint/files/failpoints.h"
#include "server/nanoseconds.h"

namespace verbena::server {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);
constexpr int64_t kLookNanos = 1'000'000'000;
// CheckpointTaskOptions::waits: 93 s where other jobs have tables, and 3 s of the last time.
constexpr int kWaitsBesideOthers = 5;
constexpr int kWaitsAtEnd = 1;
// Less than 255, the limit of a file's name on any file system in use.
constexpr size_t kMostNameBytes = 240;

std::set<std::string> JobsWithTables(const v1::ClusterView& view) {
  std::set<std::string> jobs;
  for (const v1::Table& table : view.tables()) {
    // One that is being restored is on a disk already.
    if (!table.restoring()) jobs.insert(table.spec().job());
  }
  return jobs;
}

}  // namespace

std::string CheckpointDirectoryOf(const std::string& job) {
  if (VERBENA_FAILPOINT(checkpoint, share_directories)) {
    return absl::StrReplaceAll(job, {{"/", "_"}});
  }
  std::string name = absl::StrReplaceAll(job, {{"%", "%25"}, {"/", "%2F"}});
  if (name.rfind('.', 0) == 0) name.replace(0, 1, "%2E");
  if (name.size() <= kMostNameBytes) return name;
  // No name of another length has two of these in a row.
  return absl::StrCat(name.substr(0, kMostNameBytes / 2), "%%",
                      checkpoint::HashText(std::string_view(job)));
}

PeriodicCheckpoints::PeriodicCheckpoints(PeriodicCheckpointsOptions options, const Clock* clock,
                                         ControlChannel* control, checkpoint::Disk* disk)
    : options_(std::move(options)),
      clock_(clock),
      control_(*control),
      disk_(disk),
      watch_(options_.saver.coordinator, control),
      next_ns_(options_.every_ns == 0 ? kNever : clock->NowNanos() + options_.every_ns),
      next_look_ns_(options_.every_steps == 0 ? kNever : clock->NowNanos()) {}

PeriodicCheckpoints::~PeriodicCheckpoints() { *alive_ = false; }

void PeriodicCheckpoints::AskJobs() {
  asking_ = true;
  if (finished_ || options_.every_ns == 0) {
    next_ns_ = kNever;
  } else {
    // After a stop, or a save that took longer, not several at once.
    next_ns_ = std::max(next_ns_ + options_.every_ns, clock_->NowNanos() + options_.every_ns / 2);
  }
  Call<v1::GetViewResponse>(control_, options_.saver.coordinator, "/verbena.v1.Cluster/GetView",
                            v1::GetViewRequest(), kCallTimeout,
                            [this, alive = alive_](absl::StatusOr<v1::GetViewResponse> response) {
                              if (*alive) OnJobs(std::move(response));
                            });
}

void PeriodicCheckpoints::OnJobs(absl::StatusOr<v1::GetViewResponse> response) {
  asking_ = false;
  if (!response.ok()) {
    options_.log(true, absl::StrCat("no checkpoints now: ", response.status().message()));
    return BeginNext();
  }
  KeepOnly(JobsWithTables(response->view()));
  jobs_.clear();
  late_.clear();
  for (const auto& job : IdleJobs::StatesOf(response->view())) jobs_.push_back(job);
  BeginNext();
}

// Names of jobs that have ended would stay for ever.
void PeriodicCheckpoints::KeepOnly(const std::set<std::string>& jobs) {
  many_jobs_ = jobs.size() > 1;
  if (options_.failing != nullptr) options_.failing->KeepOnly(jobs);
  idle_.KeepOnly(jobs);
  std::erase_if(steps_, [&](const auto& entry) { return !jobs.contains(entry.first); });
}

// Between two looks training may have made many steps: then it is one save for all of them.
void PeriodicCheckpoints::OnSteps(const v1::ClusterView* view, const StepWatch::Steps& steps) {
  asking_ = false;
  next_look_ns_ = clock_->NowNanos() + kLookNanos;
  if (view != nullptr) KeepOnly(JobsWithTables(*view));
  for (const auto& [job, step] : steps) {
    const auto [seen, first] = steps_.try_emplace(job, step);
    const uint64_t before = std::exchange(seen->second, step);
    if (!first && step / options_.every_steps > before / options_.every_steps)
      jobs_.emplace_back(job, "");
  }
  BeginNext();
}

bool PeriodicCheckpoints::HasChanged() {
  const auto& [job, state] = jobs_.front();
  if (state.empty() || !idle_.HasNewest(job, state, disk_)) return true;
  const std::lock_guard<std::mutex> lock(mutex_);
  ++statistics_.unchanged;
  statistics_.at_ns = clock_->NowNanos();
  return false;
}

void PeriodicCheckpoints::BeginNext() {
  while (!jobs_.empty() && !HasChanged()) jobs_.pop_front();
  if (jobs_.empty()) std::swap(jobs_, late_);
  if (jobs_.empty()) {
    if (finished_ && next_ns_ == kNever) std::exchange(finished_, nullptr)();
    return;
  }
  std::tie(job_, state_) = std::move(jobs_.front());
  jobs_.pop_front();
  CheckpointTaskOptions options = options_.saver;
  options.job = job_;
  options.root = checkpoint::Join(options.root, CheckpointDirectoryOf(job_));
  options.waits = Waits();
  // No two saves have the same id.
  if (options.seed != 0) options.seed += ++begun_;
  began_ns_ = clock_->NowNanos();
  checkpoint_task_ = std::make_unique<CheckpointTask>(std::move(options), clock_, &control_, disk_);
}

// A job whose training stands keeps others from their checkpoints.
int PeriodicCheckpoints::Waits() const {
  if (finished_) return jobs_.empty() && late_.empty() ? 0 : kWaitsAtEnd;
  return many_jobs_ ? kWaitsBesideOthers : 0;
}

void PeriodicCheckpoints::Ended() {
  const std::unique_ptr<CheckpointTask> saver = std::move(checkpoint_task_);
  const int64_t now = clock_->NowNanos();
  if (finished_ && absl::IsUnavailable(saver->status()) && tried_.insert(job_).second) {
    late_.emplace_back(job_, state_);
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!saver->status().ok()) {
      ++statistics_.failed;
    } else {
      ++statistics_.saved;
      statistics_.at_ns = now;
      statistics_.duration_ns = now - began_ns_;
      statistics_.bytes = 0;
      for (const v1::CheckpointFile& file : saver->manifest().files()) {
        statistics_.bytes += file.bytes();
      }
    }
  }
  const std::string root = checkpoint::Join(options_.saver.root, CheckpointDirectoryOf(job_));
  if (!saver->status().ok()) {
    if (options_.failing != nullptr) options_.failing->Failed(job_, root, saver->status());
    options_.log(true,
                 absl::StrCat("no checkpoint of job '", job_, "': ", saver->status().message()));
    return;
  }
  idle_.Saved(job_, state_, checkpoint::Join(root, saver->name()));
  // It may have taken a later step than the one for which it was due, past the next multiple.
  const auto seen = steps_.find(job_);
  if (seen != steps_.end()) seen->second = std::max(seen->second, saver->manifest().step());
  options_.log(false,
               absl::StrCat("saved ", checkpoint::Join(root, saver->name()), ": step ",
                            saver->manifest().step(), ", ", (now - began_ns_) / 1'000'000, " ms"));
  auto directory = checkpoint::CheckpointDirectory::Open(disk_, root);
  absl::Status pruned = directory.status();
  if (directory.ok()) {
    checkpoint::Retention retention = options_.retention;
    retention.job = job_;
    retention.keep_former_runs = true;
    const auto removed = (*directory)->Prune(retention);
    pruned = removed.status();
    if (removed.ok() && !removed->empty()) {
      options_.log(false, absl::StrCat("removed ", absl::StrJoin(*removed, ", "), " of ", root));
    }
  }
  if (pruned.ok()) {
    if (options_.failing != nullptr) options_.failing->Saved(job_);
    return;
  }
  const std::string stay = absl::StrCat("old checkpoints stay: ", pruned.message());
  if (options_.failing != nullptr) {
    options_.failing->Failed(job_, root, absl::Status(pruned.code(), stay));
  }
  options_.log(true, stay);
}

void PeriodicCheckpoints::Finish(std::function<void()> done) {
  finished_ = std::move(done);
  next_ns_ = std::numeric_limits<int64_t>::min();
}

bool PeriodicCheckpoints::Inactive() {
  if (!options_.active || options_.active()) return false;
  // The leader makes the last checkpoints when it ends.
  if (finished_) {
    next_ns_ = kNever;
    std::exchange(finished_, nullptr)();
    finished_ = [] {};
    return true;
  }
  const int64_t later = clock_->NowNanos() + kLookNanos;
  if (next_ns_ != kNever) next_ns_ = std::max(next_ns_, later);
  if (next_look_ns_ != kNever) next_look_ns_ = std::max(next_look_ns_, later);
  return true;
}

bool PeriodicCheckpoints::RunOnce() {
  if (checkpoint_task_ != nullptr) {
    const bool worked = checkpoint_task_->RunOnce();
    if (!checkpoint_task_->done()) return worked;
    Ended();
    BeginNext();
    return true;
  }
  if (asking_ || Inactive()) return false;
  const int64_t now = clock_->NowNanos();
  if (next_ns_ <= now) {
    AskJobs();
    return true;
  }
  if (next_look_ns_ > now || finished_) return false;
  asking_ = true;
  watch_.Ask(
      [this](const v1::ClusterView* view, const StepWatch::Steps& steps) { OnSteps(view, steps); });
  return true;
}

int64_t PeriodicCheckpoints::NextTimerNanos() const {
  if (checkpoint_task_ != nullptr) return checkpoint_task_->NextTimerNanos();
  return asking_ ? kNever : std::min(next_ns_, finished_ ? kNever : next_look_ns_);
}

PeriodicCheckpointsStatistics PeriodicCheckpoints::statistics() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

}  // namespace verbena::server
