// Jobs whose newest checkpoint has all there is: nobody can have changed them since.
//
// A job changes while it has members. Each run after the last one has another generation, or is the
// first of its generation. So two views of a job without members show whether one has been there
// meanwhile.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CHECKPOINT_IDLE_JOBS_H_
#define VERBENA_SERVER_CHECKPOINT_IDLE_JOBS_H_

#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "server/checkpoint/files/disk.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

class IdleJobs {
 public:
  // The state of each job with served tables. Equal in two views: no worker has changed the tables
  // between them, and no lost part of them was reset. Empty: the job has members.
  static std::map<std::string, std::string> StatesOf(const v1::ClusterView& view);

  // A checkpoint was made at `path`, after a view by which the job's state was this one.
  void Saved(const std::string& job, std::string state, std::string path);
  // The jobs that have tables: the others are forgotten.
  void KeepOnly(const std::set<std::string>& jobs);
  size_t size() const { return newest_.size(); }
  // Whether that checkpoint is still there, and the job's state the same.
  bool HasNewest(const std::string& job, const std::string& state, checkpoint::Disk* disk) const;

 private:
  struct Newest {
    std::string state, path;
  };
  std::map<std::string, Newest> newest_;  // by job; those that were idle
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_IDLE_JOBS_H_
