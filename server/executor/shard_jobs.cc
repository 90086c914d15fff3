// The memory and lanes of jobs on a shard, and their limits.
#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "server/executor/shard_executor_impl.h"

namespace verbena::server {

namespace {

// The same in every shard of this process, whose endpoints share their devices' protection domains;
// salted, so that no job can choose a name that meets another's.
uint64_t DomainOf(const std::string& job) {
  const uint64_t domain = absl::HashOf(job);
  return domain == kServersDomain ? 1 : domain;
}

}  // namespace

void ShardExecutor::Impl::UpdateServers() {
  servers.clear();
  for (const v1::Server& server : view->servers()) {
    if (server.incarnation() == incarnation) continue;
    if (server.state() != v1::Server::SILENT || KeepsCopiesOf(server.incarnation())) {
      servers.insert(server.incarnation());
    }
  }
}

void ShardExecutor::Impl::UpdateJob(const std::string& name, const v1::Job* job) {
  const uint64_t domain = DomainOf(name);
  if (const auto before = jobs.find(domain); before != jobs.end()) {
    for (const uint64_t member : before->second.members) workers.erase(member);
    jobs.erase(before);
  }
  if (job == nullptr) return;
  Job& known = jobs[domain];
  known.name = name;
  known.lane_limit = job->limits().lanes();
  for (const v1::Worker& worker : job->members()) {
    known.members.push_back(worker.incarnation());
    workers[worker.incarnation()] = domain;
  }
}

void ShardExecutor::Impl::UpdateJobs(const ViewDifference& what) {
  if (what.all || what.placement) UpdateServers();
  if (!what.all) {
    for (const std::string& name : what.jobs) UpdateJob(name, FindJobNamed(name, *view));
    return;
  }
  workers.clear();
  jobs.clear();
  for (const v1::Job& job : view->jobs()) UpdateJob(job.name(), &job);
}

bool ShardExecutor::Impl::KeepsCopiesOf(uint64_t server) const {
  const auto here = [this](const v1::Replica& copy) {
    return copy.server() == incarnation && copy.shard() == options.shard;
  };
  return std::any_of(view->partitions().begin(), view->partitions().end(),
                     [&](const v1::Partition& partition) {
                       const auto& followers = partition.followers();
                       const auto& learners = partition.learners();
                       return partition.primary() == server &&
                              (std::any_of(followers.begin(), followers.end(), here) ||
                               std::any_of(learners.begin(), learners.end(), here));
                     });
}

uint32_t ShardExecutor::Impl::LanesOf(uint64_t domain, const Peer& peer, size_t link) const {
  uint32_t count = 0;
  for (const auto& [token, grant] : pending) count += grant.domain == domain ? 1 : 0;
  for (const auto& lane : lanes) {
    if (lane == nullptr || lane->domain != domain) continue;
    if (lane->closing || !TakesPlace(peer, link, *lane)) ++count;
  }
  return count;
}

absl::Status ShardExecutor::Impl::CheckLaneLimit(const Peer& peer, size_t link) const {
  const auto member = workers.find(peer.incarnation);
  if (peer.server || member == workers.end()) return absl::OkStatus();
  const auto job = jobs.find(member->second);
  if (job == jobs.end() || job->second.lane_limit == 0) return absl::OkStatus();
  // A lane that is open on our side alone must not keep its worker from opening the next.
  const uint32_t has = LanesOf(job->first, peer, link);
  if (has < job->second.lane_limit) return absl::OkStatus();
  const std::string& name = job->second.name;
  return absl::ResourceExhaustedError(absl::StrCat(
      "job '", name, "' is at its limit of lanes to shard ", options.shard, ": it has ", has,
      " (granted, open or closing), allowed are ", job->second.lane_limit,
      ". Have fewer workers, or raise the limit ('verbena limits ", name, " --lanes ", has + 1,
      "')"));
}

std::vector<JobSnapshot> ShardExecutor::Impl::JobSnapshots() const {
  std::vector<JobSnapshot> snapshots;
  if (engine == nullptr) return snapshots;
  absl::flat_hash_map<uint64_t, uint32_t> counts;
  for (const auto& [token, grant] : pending) ++counts[grant.domain];
  for (const auto& lane : lanes) {
    if (lane != nullptr) ++counts[lane->domain];
  }
  for (shard::JobStatistics& statistics : engine->jobs()) {
    const uint64_t domain = DomainOf(statistics.name);
    const auto job = jobs.find(domain);
    const auto count = counts.find(domain);
    snapshots.push_back({std::move(statistics), count == counts.end() ? 0 : count->second,
                         job == jobs.end() ? 0 : job->second.lane_limit});
  }
  return snapshots;
}

}  // namespace verbena::server
