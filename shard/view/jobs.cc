#include "shard/view/jobs.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/control/view_tables.h"
#include "proto/spec/job_limits.h"

namespace verbena::shard {
namespace {

// A contribution entry is kept per chunk and rank.
constexpr uint32_t kMaxWorkers = 1 << 16;

}  // namespace

JobState* Jobs::Get(const std::string& name) {
  const auto [it, is_new] = jobs_.try_emplace(name);
  if (is_new) {
    it->second.name = name;
    auto account = accounts_.find(name);
    if (account == accounts_.end()) {
      std::shared_ptr<JobMemory> memory;
      if (options_.job_memory) memory = options_.job_memory(name);
      if (memory == nullptr) memory = std::make_shared<JobMemory>();
      account = accounts_.try_emplace(name, std::move(memory)).first;
    }
    it->second.account = &account->second;
  }
  return &it->second;
}

// The part of a job's limit on this server: its share for each replica of a partition. All shards
// of the server compute the same.
void Jobs::Limit(const v1::ClusterView& view, const ViewDifference& what) {
  uint64_t owned = 0;
  for (const v1::Partition& p : view.partitions()) {
    const auto here = [&](const v1::Replica& r) { return r.server() == options_.server; };
    owned += p.primary() != 0 && p.primary() == options_.server ? 1 : 0;
    owned += static_cast<uint64_t>(std::count_if(p.followers().begin(), p.followers().end(), here));
    owned += static_cast<uint64_t>(std::count_if(p.learners().begin(), p.learners().end(), here));
  }
  const auto share_of = [&](const v1::Job* job) {
    const uint64_t limit = job == nullptr ? 0 : job->limits().memory_bytes();
    return limit == 0 ? JobMemory::kUnlimited : ShareOfServer(limit, owned, view.partitions_size());
  };
  if (!what.all && owned == owned_here_) {
    for (const std::string& name : what.jobs) {
      const auto it = accounts_.find(name);
      if (it != accounts_.end()) it->second.job().SetLimit(share_of(FindJobNamed(name, view)));
    }
    return;
  }
  owned_here_ = owned;
  absl::flat_hash_map<std::string, const v1::Job*> limited;
  for (const v1::Job& j : view.jobs()) {
    if (j.limits().memory_bytes() > 0) limited[j.name()] = &j;
  }
  for (auto& [name, account] : accounts_) {
    const auto it = limited.find(name);
    account.job().SetLimit(share_of(it == limited.end() ? nullptr : it->second));
  }
}

void Jobs::UpdateJob(const std::string& name, const v1::Job* job) {
  std::vector<uint64_t>& reading = readers_of_[name];
  for (const uint64_t reader : reading) readers_.erase(reader);
  reading.clear();
  refused_jobs_.erase(name);
  const v1::Job* followed = job;
  if (job != nullptr) {
    for (const v1::Worker& member : job->members()) {
      newest_member_ = std::max(newest_member_, member.incarnation());
      if (member.rank() < 0 && member.only_job().empty()) reading.push_back(member.incarnation());
    }
    readers_.insert(reading.begin(), reading.end());
    const uint32_t workers = std::max(job->expected_workers(), job->max_workers());
    if (workers > kMaxWorkers) {
      refused_jobs_[name] = absl::InvalidArgumentError(absl::StrCat(
          "job \"", name, "\" expects ", workers, " workers; allowed: at most ", kMaxWorkers));
      followed = nullptr;
    }
  }
  if (reading.empty()) readers_of_.erase(name);
  leaving_.insert(name);
  JobState* state = followed != nullptr ? Get(name) : nullptr;
  if (const auto it = jobs_.find(name); it != jobs_.end()) state = &it->second;
  if (state == nullptr) return;
  state->change = followed == nullptr ? state->members.Clear() : state->members.Update(*followed);
  if (state->change != Members::Change::kNone) changed_.push_back(state);
}

absl::Status Jobs::Follow(const v1::ClusterView& view, const ViewDifference& what) {
  for (const v1::Server& s : view.servers()) {
    newest_member_ = std::max(newest_member_, s.incarnation());
  }
  if (what.all) {
    std::map<std::string, const v1::Job*> present;
    for (const auto& [name, job] : jobs_) present[name] = nullptr;
    for (const auto& [name, reading] : readers_of_) present[name] = nullptr;
    for (const auto& [name, why] : refused_jobs_) present[name] = nullptr;
    for (const v1::Job& j : view.jobs()) present[j.name()] = &j;
    for (const auto& [name, job] : present) UpdateJob(name, job);
  } else {
    for (const std::string& name : what.jobs) UpdateJob(name, FindJobNamed(name, view));
  }
  return refused_jobs_.empty() ? absl::OkStatus() : refused_jobs_.begin()->second;
}

void Jobs::EndChanges() {
  for (JobState* job : changed_) job->change = Members::Change::kNone;
  changed_.clear();
}

// Jobs that the view has no more and no table names; accounts that nothing is left of.
void Jobs::Forget(const ViewDifference& what) {
  if (what.all) {
    for (const auto& [name, job] : jobs_) leaving_.insert(name);
    for (const auto& [name, account] : accounts_) leaving_.insert(name);
  }
  for (auto it = leaving_.begin(); it != leaving_.end();) {
    const auto job = jobs_.find(*it);
    const bool forget =
        job != jobs_.end() && !job->second.members.known() && job->second.tables.empty();
    if (forget) jobs_.erase(job);
    const auto account = accounts_.find(*it);
    const bool has_job = jobs_.contains(*it);
    // Its memory may still be written out.
    const bool stays = !has_job && account != accounts_.end() && account->second.bytes() > 0;
    if (!has_job && !stays && account != accounts_.end()) accounts_.erase(account);
    it = stays ? std::next(it) : leaving_.erase(it);
  }
}

std::vector<JobStatistics> Jobs::Statistics() const {
  std::vector<JobStatistics> jobs;
  for (const auto& [name, account] : accounts_) {
    jobs.push_back({name, account.bytes(), account.job().limit()});
  }
  return jobs;
}

bool Jobs::IsMember(uint64_t incarnation) const {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
    return job.second.members.Find(incarnation) != nullptr;
  });
}

}  // namespace verbena::shard
