// The operator of a swarm who moves partitions and drains servers while everything goes on.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_MOVES_H_
#define VERBENA_TESTS_CLUSTER_SWARM_MOVES_H_

#include <memory>
#include <random>
#include <string>

#include "proto/control/control_channel.h"
#include "tests/cluster/swarm_world.h"

namespace verbena::test {

class SwarmMoves {
 public:
  explicit SwarmMoves(SwarmWorld* world);
  void Run();
  // No server is drained any more, and no call is under way.
  bool idle() const;

 private:
  uint64_t Pick(uint64_t count) { return random_() % count; }
  template <typename Response, typename Request>
  void Call(const char* method, Request request);
  void Move();
  void Drain(const std::string& name, bool cancel);

  SwarmWorld* const world_;
  std::unique_ptr<ControlChannel> channel_;
  std::mt19937_64 random_;  // of its own: it changes no other draw of a seed
  bool calls_ = false;
  int64_t next_at_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_MOVES_H_
