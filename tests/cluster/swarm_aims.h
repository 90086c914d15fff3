// Faults of the swarm that aim at a moment: they wait until a process is in a state that lasts for
// milliseconds, and which a fault at a random time seldom meets.
//
// **Thread safety**: one thread.
//
// Invariants:
//  1. Draws come from a random source of its own: a seed without these features runs as before.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_AIMS_H_
#define VERBENA_TESTS_CLUSTER_SWARM_AIMS_H_

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/cluster/swarm_answers.h"
#include "tests/cluster/swarm_client.h"
#include "tests/cluster/swarm_faults.h"
#include "tests/cluster/swarm_world.h"

namespace verbena::test {

class SwarmAims {
 public:
  SwarmAims(SwarmWorld* world, SwarmFaults* faults,
            std::vector<std::unique_ptr<SwarmClient>>* clients);
  void Run();

 private:
  void StallJoining();
  void FollowLearner();
  void ContinueCut();
  // The coordinator does not hear the server.
  void Cut(int server, bool cut);
  void OnRequest(const std::string& method, const google::protobuf::Message& request);
  // The rails of a follower are cut for a while, so that it and its primary ask for each other's
  // roles. The first one to ask dies, and the coordinator reads the request after a stall.
  void PartFollower();
  void OnReconfigure(const v1::ReconfigureRequest& request);
  // Messages to a follower take long while a job begins anew, and are lost when its primary dies
  // soon after that.
  void SlowFollower();
  void BeginSlowFollower();
  void EndSlowFollower();
  // The follower never gets the applies of a new run of a job, for which reads wait.
  void CrashHolder();
  void SlowRails(const std::string& host, int64_t delay);
  // A job with steps that has workers, as the view has it; null: there is none to begin anew.
  const v1::Job* JobWithSteps(SwarmJob** job) const;
  void HoldRestore();
  void SlowRestore();
  // A table was loaded everywhere: before the coordinator hears so, a server dies and is back.
  void LoseRestored();
  // The servers that have the lost partitions of a restored table hear nothing for a while.
  void DeafenRestored();
  void CutOperator(int64_t time);
  void LeaveLate();
  void AnswerByOldState();
  // The follower does not hear that its job begins anew, and hears it when its primary has left.
  void MissRun();
  // The rails of a follower are cut until its primary drops it, and it does not hear the
  // coordinator, which hears it. Then the primary dies, and the operator removes it.
  void LoseFollower();
  void BeginLostFollower();
  void EndLostFollower();
  void CutRails(const std::string& host, bool cut);
  void BeginMissedRun();
  void EndMissedRun();
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool Chance(double p) { return std::bernoulli_distribution(p)(random_); }
  int64_t Leases(int64_t least_percent, int64_t most_percent) {
    return world_->plan.lease_ns() * Between(least_percent, most_percent) / 100;
  }

  SwarmWorld* const world_;
  SwarmFaults* const faults_;
  std::vector<std::unique_ptr<SwarmClient>>* const clients_;
  SwarmAnswers answers_;
  std::mt19937_64 random_;
  std::set<std::string> joining_;  // hosts of clients that were looked at while they joined
  struct LearnerCut {
    int partition = 0;
    int primary = 0;  // index of its server
    v1::Replica learner;
    uint64_t revision = 0;  // in which it is one
    bool dies = false;      // the primary, in the end
    bool deaf = false;      // it has heard so, and hears nothing more
    int64_t until_ns = 0;   // 0: there is no such cut
  };
  LearnerCut cut_;
  struct MissedRun {
    std::string job;
    uint32_t generation = 0;  // before it begins anew
    int partition = 0;
    uint64_t primary = 0, follower = 0;  // incarnations
    std::string host;                    // the follower's
    bool deaf = false;                   // it is, since the job has no workers
    int64_t leaves_at_ns = 0;            // 0: the job has not begun anew
    int64_t until_ns = 0;                // 0: there is no such run
  };
  struct LostFollower {
    int partition = 0;
    uint64_t primary = 0, follower = 0;  // incarnations
    std::string deaf;                    // the follower's host
    bool dead = false;                   // the primary
    int64_t until_ns = 0;                // 0: there is none
  };
  LostFollower lost_;
  int64_t next_lost_at_ = 0;
  struct LateFollower {
    std::string job;
    uint32_t generation = 0;  // before it begins anew
    int partition = 0;
    uint64_t primary = 0, follower = 0;  // incarnations
    std::string slow;                    // the follower's host
    int64_t dies_at_ns = 0;              // the primary; 0: the job has not begun anew
    int64_t until_ns = 0;                // 0: there is none
  };
  LateFollower late_;
  int64_t next_late_at_ = 0, next_part_at_ = 0, next_change_at_ = 0, next_restored_at_ = 0;
  int64_t next_holder_at_ = 0;
  MissedRun run_;
  int64_t next_run_at_ = 0;
  int64_t next_learner_at_ = 0, next_leave_at_ = 0;
  bool view_asked_ = false;  // a server has asked for a view that is newer than its own
  int64_t next_old_at_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_AIMS_H_
