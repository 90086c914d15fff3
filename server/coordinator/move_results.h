// How planned moves of partitions ended: counts, and a line of log for those without effect, which
// nobody may wait for.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_COORDINATOR_MOVE_RESULTS_H_
#define VERBENA_SERVER_COORDINATOR_MOVE_RESULTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// Of this term.
struct MoveCounters {
  uint64_t moved = 0;
  uint64_t cancelled = 0;  // by a call, or for another target
  uint64_t target_gone = 0, primary_gone = 0, no_memory = 0;
};

class MoveResults {
 public:
  using Log = std::function<void(const std::string&)>;

  // `view`: of a new term, in which moves go on. `log`: for a line; empty: none.
  void Begin(const v1::ClusterView& view, Log log);
  // After a change is saved: the partitions of `changed` as they are now.
  template <typename Partitions>
  void Follow(const Partitions& changed, const v1::ClusterView& view) {
    std::map<v1::MoveEnd, std::map<std::string, std::string>> failed;
    for (const v1::Partition& partition : changed) FollowOne(partition, view, &failed);
    LogFailed(failed);
  }
  const MoveCounters& counters() const { return counters_; }

 private:
  struct Move {
    uint64_t to = 0, from = 0;
    std::string target;  // its name: the server may be gone at the end
  };
  // Partitions by reason and target.
  using Failed = std::map<v1::MoveEnd, std::map<std::string, std::string>>;

  void Keep(const v1::Partition& partition, const v1::ClusterView& view);
  void FollowOne(const v1::Partition& partition, const v1::ClusterView& view, Failed* failed);
  void LogFailed(const Failed& failed) const;

  Log log_;
  std::map<uint32_t, Move> moves_;  // that go on, by partition
  MoveCounters counters_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_MOVE_RESULTS_H_
