// The ledger of an elastic job's workers: for each the steps that it has pushed to and ended. A
// step that a server commits is checked by the workers that the coordinator counts in it: each has
// contributed or ended the step, and none contributes before its first one.
//
// Not where older states of the coordinator are put back: servers may follow another history then.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_MEMBERS_H_
#define VERBENA_TESTS_CLUSTER_SWARM_MEMBERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "shard/engine.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::test {

class SwarmMembers {
 public:
  // ---- of a worker, before its request is sent ----
  void Joined(uint64_t incarnation, uint32_t generation);
  void Pushed(uint64_t incarnation, uint32_t table, uint64_t step, uint32_t chunk);
  void Ended(uint64_t incarnation, uint32_t table, uint64_t step);

  // The problem with a commit of a sync table of `job`, as the coordinator has it, or an empty
  // string. `rows`: of an embedding table, whose steps end for a partition at once.
  std::string Check(const shard::Commit& commit, bool rows, const v1::Job& job) const;
  // Whether the commit has contributions, all of workers of the job's present run.
  bool IsOf(const shard::Commit& commit, uint32_t generation) const;

 private:
  struct Steps {
    uint64_t ended = 0;                   // the first that the worker has not ended
    std::map<uint32_t, uint64_t> pushed;  // by chunk, one more than the last
  };
  // Whether the worker has its part in the step, as far as the commit is concerned.
  bool Took(const Steps& steps, const shard::Commit& commit, bool rows) const;
  const Steps* Find(uint64_t incarnation, uint32_t table) const;

  std::map<uint64_t, uint32_t> generations_;              // by incarnation
  std::map<std::pair<uint64_t, uint32_t>, Steps> steps_;  // by incarnation and table
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_MEMBERS_H_
