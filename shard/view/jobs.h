// The jobs of the view: their members, which tables are theirs, readers of all jobs, and each
// job's account of memory.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_VIEW_JOBS_H_
#define VERBENA_SHARD_VIEW_JOBS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "proto/control/view_difference.h"
#include "shard/engine.h"
#include "shard/partition/members.h"

namespace verbena::shard {

struct JobState {
  std::string name;
  std::set<uint32_t> tables;
  Members members;
  JobAccount* account = nullptr;
  Members::Change change = Members::Change::kNone;  // by the view being applied
};

class Jobs {
 public:
  explicit Jobs(const EngineOptions& options) : options_(options) {}

  // Made if it is new. It does not move while it has tables or members.
  JobState* Get(const std::string& name);
  // Takes the members of the view. The first error: of a job that cannot be served.
  absl::Status Follow(const v1::ClusterView& view, const ViewDifference& what);
  // Sets this server's part of each job's limit.
  void Limit(const v1::ClusterView& view, const ViewDifference& what);
  // Forget() may find that nothing is left of it.
  void MayLeave(const std::string& name) { leaving_.insert(name); }
  // Drops jobs that the view has no more and no table names, and accounts that nothing is left of.
  void Forget(const ViewDifference& what);
  // Those whose members the view being applied has changed, until everything has followed it.
  const std::vector<JobState*>& changed() const { return changed_; }
  void EndChanges();

  bool IsMember(uint64_t incarnation) const;  // of any job
  // May read the tables of all jobs.
  bool IsReader(uint64_t incarnation) const { return readers_.contains(incarnation); }
  // Has no place in the job any more. One that is newer than the view may get one.
  bool Retired(const JobState& job, uint64_t worker) const {
    return worker < newest_member_ && job.members.Find(worker) == nullptr;
  }
  // By name; those that have tables or limits, or still have memory.
  std::vector<JobStatistics> Statistics() const;

 private:
  // Null: the view has no such job (any more).
  void UpdateJob(const std::string& name, const v1::Job* job);

  const EngineOptions& options_;
  // By job, also of those that are forgotten while they have memory that is being written out.
  std::map<std::string, JobAccount> accounts_;
  uint64_t newest_member_ = 0;  // the greatest incarnation in the view
  uint64_t owned_here_ = 0;     // replicas of partitions on this server, by the last view
  absl::flat_hash_set<uint64_t> readers_;
  absl::flat_hash_map<std::string, std::vector<uint64_t>> readers_of_;  // by job
  std::map<std::string, JobState> jobs_;              // nodes do not move: tables point at them
  std::vector<JobState*> changed_;                    // by the view being applied
  std::map<std::string, absl::Status> refused_jobs_;  // of the view, and why
  std::set<std::string> leaving_;                     // jobs of which nothing may be left
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_VIEW_JOBS_H_
