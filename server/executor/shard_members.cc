#include "server/executor/shard_members.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "server/executor/shard_core.h"

namespace verbena::server {
namespace {

// The same in every shard of this process, whose endpoints share their devices' protection domains;
// salted, so that no job can choose a name that meets another's.
uint64_t DomainOfJob(const std::string& job) {
  const uint64_t domain = absl::HashOf(job);
  return domain == kServersDomain ? 1 : domain;
}

}  // namespace

void ShardMembers::UpdateServers() {
  servers_.clear();
  for (const v1::Server& server : core_.view->servers()) {
    if (server.incarnation() == core_.incarnation) continue;
    if (server.state() != v1::Server::SILENT || KeepsCopiesOf(server.incarnation())) {
      servers_.insert(server.incarnation());
    }
  }
}

const ShardMembers::Job* ShardMembers::JobOf(uint64_t worker) const {
  const auto member = workers_.find(worker);
  if (member == workers_.end()) return nullptr;
  const auto job = jobs_.find(member->second);
  return job == jobs_.end() ? nullptr : &job->second;
}

void ShardMembers::UpdateJob(const std::string& name, const v1::Job* job) {
  const uint64_t domain = DomainOfJob(name);
  if (const auto before = jobs_.find(domain); before != jobs_.end()) {
    for (const uint64_t member : before->second.members) workers_.erase(member);
    jobs_.erase(before);
  }
  if (job == nullptr) return;
  Job& known = jobs_[domain];
  known.name = name;
  known.lane_limit = job->limits().lanes();
  for (const v1::Worker& worker : job->members()) {
    known.members.push_back(worker.incarnation());
    workers_[worker.incarnation()] = domain;
  }
}

void ShardMembers::Follow(const ViewDifference& what) {
  if (what.all || what.placement) UpdateServers();
  if (!what.all) {
    for (const std::string& name : what.jobs) UpdateJob(name, FindJobNamed(name, *core_.view));
    return;
  }
  workers_.clear();
  jobs_.clear();
  for (const v1::Job& job : core_.view->jobs()) UpdateJob(job.name(), &job);
}

bool ShardMembers::KeepsCopiesOf(uint64_t server) const {
  const auto here = [this](const v1::Replica& copy) {
    return copy.server() == core_.incarnation && copy.shard() == core_.options.shard;
  };
  return std::any_of(core_.view->partitions().begin(), core_.view->partitions().end(),
                     [&](const v1::Partition& partition) {
                       const auto& followers = partition.followers();
                       const auto& learners = partition.learners();
                       return partition.primary() == server &&
                              (std::any_of(followers.begin(), followers.end(), here) ||
                               std::any_of(learners.begin(), learners.end(), here));
                     });
}

std::string ShardMembers::NameOf(const LanePeer& peer) const {
  if (!peer.server) return absl::StrCat("worker ", peer.incarnation);
  std::string name = "?";
  if (core_.view != nullptr) {
    for (const v1::Server& server : core_.view->servers()) {
      if (server.incarnation() == peer.incarnation) name = server.name();
    }
  }
  return absl::StrCat("shard ", peer.shard, " of server '", name, "' (incarnation ",
                      peer.incarnation, ")");
}

absl::StatusOr<LanePeer> ShardMembers::CheckOpener(const v1::OpenLaneRequest& request) const {
  const uint64_t opener = request.incarnation();
  if (workers_.contains(opener)) return LanePeer{.incarnation = opener};
  if (servers_.contains(opener)) {
    return LanePeer{.incarnation = opener, .server = true, .shard = request.source_shard()};
  }
  if (opener == core_.incarnation) {
    return absl::InvalidArgumentError(
        absl::StrCat("incarnation ", opener, " is this server itself"));
  }
  if (request.revision() > core_.view->revision()) {
    return absl::UnavailableError(absl::StrCat("this server's view is at revision ",
                                               core_.view->revision(), ", the caller's at ",
                                               request.revision()));
  }
  for (const v1::Server& server : core_.view->servers()) {
    if (server.incarnation() != opener) continue;
    return absl::NotFoundError(
        absl::StrCat("server '", server.name(), "' (incarnation ", opener,
                     ") is silent, and no replicas of its partitions are kept here"));
  }
  return absl::NotFoundError(
      absl::StrCat("worker incarnation ", opener,
                   " is not a member of any job: its lease has ended or it has left"));
}

std::vector<JobSnapshot> ShardMembers::Snapshots() const {
  std::vector<JobSnapshot> snapshots;
  if (core_.engine == nullptr) return snapshots;
  absl::flat_hash_map<uint64_t, uint32_t> counts;
  core_.grants.CountByDomain(&counts);
  for (const auto& lane : core_.lanes.all()) {
    if (lane != nullptr) ++counts[lane->domain];
  }
  for (shard::JobStatistics& statistics : core_.engine->jobs()) {
    const uint64_t domain = DomainOfJob(statistics.name);
    const auto job = jobs_.find(domain);
    const auto count = counts.find(domain);
    snapshots.push_back({std::move(statistics), count == counts.end() ? 0 : count->second,
                         job == jobs_.end() ? 0 : job->second.lane_limit});
  }
  return snapshots;
}

}  // namespace verbena::server
