// A planned move of all partitions, each to the next server.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_MIGRATE_MOVES_H_
#define VERBENA_BENCH_MIGRATE_MOVES_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cluster_view.h"

namespace verbena::bench {

class Moves {
 public:
  // Begins the moves. The cluster outlives it.
  static absl::StatusOr<Moves> Begin(const Cluster* cluster);

  size_t partitions() const { return targets_.size(); }
  // The number of partitions that are at their new servers alone, but for followers. ABORTED: a
  // move has ended without effect.
  absl::StatusOr<size_t> Done() const;

 private:
  explicit Moves(const Cluster* cluster) : cluster_(cluster) {}

  const Cluster* cluster_;
  std::map<uint32_t, uint64_t> targets_;  // of each partition; incarnations
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_MIGRATE_MOVES_H_
