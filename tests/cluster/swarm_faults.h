// The swarm's faults, of every process: crash, restart, stall, partition, lost lanes and rails. The
// plan lists the kinds of a seed.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_FAULTS_H_
#define VERBENA_TESTS_CLUSTER_SWARM_FAULTS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/cluster/swarm_client.h"
#include "tests/cluster/swarm_world.h"

namespace verbena::test {

class SwarmFaults {
 public:
  // `clients`: empty places are processes that are to be started.
  SwarmFaults(SwarmWorld* world, std::vector<std::unique_ptr<SwarmClient>>* clients);
  void Run();
  // Ends all that has not ended by itself.
  void Stop();
  // The server's process dies, and is started again some time later; not one that alone has
  // something, unless the plan has losses.
  // `dead_ns`: how long it is dead; 0: as is drawn, up to three leases.
  void Crash(int index, int64_t dead_ns = 0);
  // It leaves in order, under the same condition.
  void LeaveServer(int index);
  // Does not hear the coordinator for so long, and is heard.
  void Deafen(const std::string& host, int64_t time);
  // The primary leaves as soon as the partition's learner, which does not hear the coordinator, is
  // a follower.
  void HandOver(const v1::Partition& partition);
  // At the latest when the faults stop.
  void Later(int64_t ns, std::function<void()> what) { later_.emplace(world_->now() + ns, what); }
  int ServerOf(uint64_t incarnation) const;  // -1: none that runs
  // An older state of the coordinator is put back for a while, where all servers know a newer one.
  // `overtakes`: it is started so often that its revisions are greater than theirs.
  // `time_ns`: for how long; 0: less than a lease.
  void PutOldStateBack(bool overtakes, int64_t time_ns = 0);

 private:
  void Inject();
  void CrashServer();
  void StallCoordinator();
  void StallServer();
  void StallWorker();
  void SlowStore();
  void HoldWorker();
  void KeepState();
  bool AllHaveSeenMore(uint64_t revision) const;
  void Partition();
  void RailFault();
  void SlowLink();
  void Suspend();
  // Processes that have ended by themselves are started again.
  void RestartEnded();
  // Begins stalls and handovers when a learner catches up.
  void FollowLearners();
  void BeginHandover(const v1::Partition& partition);
  void ContinueHandover();
  // Whether another server has all data of that server, too, and will report it.
  bool MayCrash(int index) const;
  void RestartServer(int index);
  SwarmClient* AnyClient();
  int AnyServer() const;
  std::string AnyRail();
  int64_t StallTime() { return world_->plan.lease_ns() * world_->Between(10, 300) / 100; }

  SwarmWorld* const world_;
  std::vector<std::unique_ptr<SwarmClient>>* const clients_;
  const int slow_server_;
  int64_t next_at_;
  std::multimap<int64_t, std::function<void()>> later_;  // ends of faults
  std::deque<server::CoordinatorState> states_;          // kOldStates: the last ones, oldest first
  int64_t next_state_at_ = 0;
  int64_t next_learner_at_ = 0;  // when another learner is looked for
  struct Handover {
    uint64_t primary = 0, learner = 0;  // incarnations; 0: there is none
    int partition = 0;
    uint64_t revision = 0;  // in which it is one
    bool deaf = false;
    int64_t until_ns = 0;
  };
  Handover handover_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_FAULTS_H_
