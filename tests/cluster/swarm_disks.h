// Faults of the swarm's disks: that with the checkpoints and those of cold tiers are full or slow
// for a while; the former fails, crashes in the middle of a write, and has wrong bits.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_DISKS_H_
#define VERBENA_TESTS_CLUSTER_SWARM_DISKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "tests/cluster/swarm_checkpoints.h"
#include "tests/cluster/swarm_world.h"

namespace verbena::test {

class SwarmDisks {
 public:
  // Before the cluster is made. `checkpoints`: null where the seed has none.
  SwarmDisks(SwarmWorld* world, SwarmCheckpoints* checkpoints);
  void Run();
  // Ends all that has not ended by itself.
  void Stop();

 private:
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  size_t Pick(size_t count) {
    return static_cast<size_t>(Between(0, static_cast<int64_t>(count) - 1));
  }
  void Later(std::function<void()> what) {
    later_.emplace(world_->now() + Between(10, 3000) * kMilli, std::move(what));
  }
  void CheckpointFault();
  void ColdFault();
  void Fill();
  void WrongBit();
  // A checkpoint in the middle of a chain cannot be read while its base may be removed.
  void BreakChain();
  // The machine with the checkpoints crashes while shards read one.
  void CrashRestore();
  void Flip(const std::string& path, const std::string& file, uint64_t bit);

  SwarmWorld* const world_;
  SwarmCheckpoints* const checkpoints_;
  std::mt19937_64 random_;  // its own: it changes no other draw of a seed
  std::mt19937_64 aims_;    // for manifests with wrong bits, for the same reason
  int64_t next_at_ = 0, next_chain_at_ = 0;
  uint64_t restores_seen_ = 0;
  uint64_t damage_ = 0;                                  // counts WrongBit()
  int64_t file_io_ns_ = 0;                               // of slow files
  std::multimap<int64_t, std::function<void()>> later_;  // ends of faults
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_DISKS_H_
