#include "tests/cluster/swarm_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace verbena::test {

SwarmClient::SwarmClient(SwarmWorld* world, const SwarmJob* job, uint32_t slot, bool observer,
                         const std::string& host)
    : world_(world), job_(job), slot_(slot), observer_(observer), stepper_(world, job) {
  SimWorker::Options options;
  options.job = job->plan.name;
  options.expected_workers = job->plan.workers;
  options.max_workers = job->plan.max_workers;
  options.observer = observer;
  options.seed = static_cast<uint64_t>(world->Between(1, int64_t{1} << 40));
  own_.seed(options.seed);
  options.rails = world->plan.cluster.rails;
  options.staging_bytes = world->plan.staging_bytes;
  process_ = world->cluster->AddWorker(host, options);
  process_->set_sleeps(world->has(SwarmFeature::kSleeps));
  excused_ = world->has(SwarmFeature::kControlLoss) || world->has(SwarmFeature::kOldStates);
}

SwarmClient::~SwarmClient() {
  world_->Trace(absl::StrCat("ends: ", Describe()));
  CheckStaleness();
  world_->result->follower_pulls += process_->core().statistics().follower_pulls;
  for (const auto& [table, change] : unsure_rates_) {
    world_->tables.at(table).rates().Orphan(change);
  }
  world_->cluster->CrashWorker(process_);
}

// Pulls are counted by how many steps the slowest worker was behind.
void SwarmClient::CheckStaleness() const {
  if (!world_->has(SwarmFeature::kSsp)) return;
  uint32_t bound = 0;
  for (const auto& [id, table] : world_->tables) {
    bound = std::max(bound, table.spec().staleness());
  }
  const auto counts = process_->core().statistics().staleness;
  for (uint32_t s = bound + 1; s < counts.size(); ++s) {
    if (counts[s] == 0) continue;
    world_->Violation(absl::StrCat(Describe(), ": ", counts[s], " pulls at staleness ", s,
                                   "; at most ", bound, " is allowed"));
  }
}

int64_t SwarmClient::DrawDeadline() {
  const bool calm = world_->stage != SwarmStage::kFaults;
  return world_->now() + (calm ? world_->Between(500, 3000) : world_->Between(1, 1500)) * kMilli;
}

// A step takes as long as its slowest worker.
int64_t SwarmClient::DrawStepDeadline() {
  const bool calm = world_->stage != SwarmStage::kFaults;
  return calm ? world_->now() + world_->Between(1000, 8000) * kMilli : DrawDeadline();
}

void SwarmClient::Run() {
  const int64_t now = world_->now();
  if (process_->stalled(now) || process_->held(now)) return;
  // Only a client with one operation sleeps until the last answer.
  if (operations_ > 1 && process_->slept_through()) {
    world_->Violation(absl::StrCat(Describe(), ": an answer has woken nobody"));
  }
  Settle();
  switch (phase_) {
    case Phase::kStart:
      if (leaving_ && calls_ == 0) phase_ = Phase::kEnded;
      if (!leaving_ && now >= next_at_) Join();
      break;
    case Phase::kRunning:
      if (leaving_) {
        if (!idle()) break;
        phase_ = Phase::kLeaving;
        ++calls_;
        process_->core().Leave(process_->At(world_->now() + 2 * kSecond), [this](absl::Status) {
          --calls_;
          phase_ = Phase::kEnded;
        });
      } else if (world_->stage != SwarmStage::kFinish || reads_all_) {
        OpenTables();
        if (phase_ == Phase::kRunning) Begin();
      }
      break;
    default:
      break;
  }
}

void SwarmClient::Join() {
  phase_ = Phase::kJoining;
  ++calls_;
  process_->core().Join(process_->At(world_->now() + 2 * kSecond), [this](absl::Status status) {
    --calls_;
    last_ = status;
    world_->Trace(absl::StrCat("joins: ", Describe()));
    if (status.ok()) {
      phase_ = Phase::kRunning;
      for (const v1::Job& job : process_->core().view().jobs()) {
        if (job.name() != job_->plan.name) continue;
        stepper_.Join(job.generation());
        if (!observer_) world_->members.Joined(process_->core().incarnation(), job.generation());
      }
    } else if (absl::IsAborted(status)) {
      Expired(status, "Join");
    } else if (job_->plan.max_workers > 0 && std::as_const(*process_).core().incarnation() != 0) {
      // No worker of the run has admitted it in time. Another process tries.
      phase_ = Phase::kEnded;
    } else {
      // A job without tables takes no more workers than it expects: later.
      next_at_ = world_->now() + 100 * kMilli;
      phase_ = Phase::kStart;
    }
  });
}

bool SwarmClient::Wants(const SwarmTable& table) const {
  if (table.dropped()) return false;
  return table.spec().job() == job_->plan.name ||
         (observer_ && world_->has(SwarmFeature::kForeignReads));
}

void SwarmClient::OpenTables() {
  if (tables_seen_ == world_->table_changes) return;
  tables_seen_ = world_->table_changes;
  for (const auto& [id, table] : world_->tables) {
    const std::string& name = table.spec().name();
    if (!Wants(table) || opened_.contains(id) || !opening_.insert(name).second) continue;
    ++calls_;
    process_->core().OpenTable(
        name, process_->At(world_->now() + kSecond),
        [this, name, began = world_->now()](absl::StatusOr<v1::Table> opened) {
          --calls_;
          opening_.erase(name);
          tables_seen_ = 0;
          last_ = opened.status();
          if (opened.ok()) {
            opened_.insert(opened->id());
            stepper_.Begin(opened->id(), client::OwnFirstStep(process_->core(), opened->id()));
            Prioritize(opened->id());
          } else if (absl::IsAborted(last_) ||
                     absl::StrContains(last_.message(), "connect again") ||
                     (absl::IsFailedPrecondition(last_) && !OfOtherJob(name, began))) {
            Expired(last_, "OpenTable");
          }
        });
    if (phase_ != Phase::kRunning) return;
  }
}

// In every fifth seed: other orders of tables on other workers. No draw, which would move all
// seeds.
void SwarmClient::Prioritize(uint32_t table) {
  if (world_->plan.seed % 5 != 1) return;
  const auto mixed = static_cast<int32_t>((table * 7 + slot_ * 3) % 5);
  process_->core().SetPriority(table, mixed - 2).IgnoreError();
}

// Whether the client follows an older state of the coordinator, which differs from the models. The
// client ends when it hears of the newer state.
bool SwarmClient::FollowsOlder() const {
  const auto& terms = std::as_const(*process_).core().view().terms();
  return !terms.empty() && !world_->terms.contains(terms.rbegin()->id());
}

// A table that is restored in place of another job's has the name before it is served.
bool SwarmClient::OfOtherJob(const std::string& name, int64_t since_ns) const {
  return std::any_of(world_->tables.begin(), world_->tables.end(), [&](const auto& entry) {
    const SwarmTable& table = entry.second;
    return table.spec().name() == name && table.spec().job() != job_->plan.name &&
           table.served_since(since_ns);
  });
}

void SwarmClient::Expired(const absl::Status& status, const char* call) {
  if (phase_ != Phase::kEnded && !excused_) {
    world_->Violation(absl::StrCat(Describe(), ": ", call,
                                   " says that its lease has ended, though ",
                                   "it ran and was heard: ", status.ToString()));
  }
  phase_ = Phase::kEnded;
}

bool SwarmClient::Full() const {
  const bool steps =
      std::any_of(world_->tables.begin(), world_->tables.end(), [this](const auto& table) {
        return !table.second.dropped() && table.second.steps() != nullptr &&
               table.second.spec().job() == job_->plan.name;
      });
  const auto& jobs = world_->cluster->view().jobs();
  return steps && std::any_of(jobs.begin(), jobs.end(), [this](const v1::Job& job) {
           const bool elastic = job.max_workers() > 0;
           auto ranks = elastic ? 0 : static_cast<uint32_t>(job.departed_ranks_size());
           for (const v1::Worker& member : job.members()) {
             ranks += member.rank() >= 0 || member.joining() ? 1 : 0;
           }
           const uint32_t most = elastic ? job.max_workers() : job.expected_workers();
           return job.name() == job_->plan.name && ranks >= most;
         });
}

bool SwarmClient::Proved(std::string* missing) const {
  if (phase_ == Phase::kEnded) return true;
  const bool wants = std::any_of(world_->tables.begin(), world_->tables.end(),
                                 [this](const auto& table) { return Wants(table.second); });
  if (!wants) return true;
  if (phase_ != Phase::kRunning) {
    if (!observer_ && Full()) return true;
    *missing = absl::StrCat(Describe(), " has not joined");
    return false;
  }
  for (const auto& [id, table] : world_->tables) {
    if (!Wants(table)) continue;
    const auto used = used_.find(id);
    const auto [first, end] = table.OwnedBy(slot_, job_->plan.places());
    bool pushes = table.steps() != nullptr && !observer_;
    for (uint32_t u = first; !observer_ && u < end; ++u) pushes |= table.MayPush(u);
    if (used != used_.end() && used->second.pulled && (used->second.pushed || !pushes)) continue;
    *missing = absl::StrCat(Describe(), " has not used table ", id, " '", table.spec().name(), "'");
    return false;
  }
  return true;
}

std::string SwarmClient::Describe() const {
  static constexpr const char* kNames[] = {"start", "joining", "running", "leaving", "ended"};
  return absl::StrCat(
      process_->host(), " (incarnation ", std::as_const(*process_).core().incarnation(), ", ",
      kNames[static_cast<int>(phase_)], ", ", operations_, " operations, ", unsettled_.size(),
      " buffers out,", stepper_.Describe(), " last: ", last_.ToString(), ")");
}

}  // namespace verbena::test
