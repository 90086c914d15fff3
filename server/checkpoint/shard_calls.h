// Calls to the shards of a cluster, to make and to restore checkpoints.
//
// **Thread safety**: RandomIds has one owner; the functions are of any thread.
#ifndef VERBENA_SERVER_CHECKPOINT_SHARD_CALLS_H_
#define VERBENA_SERVER_CHECKPOINT_SHARD_CALLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

inline constexpr int64_t kShardCallMillis = 5000;
// Time in ms after which a shard must answer, if only that it is not done yet.
inline constexpr int64_t kShardWaitMillis = 1000;
// How long a shard continues without a call in ms: longer than a few lost answers take. An
// abandoned operation may hold up a partition no longer than this.
inline constexpr uint32_t kShardPatienceMillis = 5000;

// Whether another try, with a newer view, may do better.
bool MayPass(const absl::Status& status);

struct ShardAddress {
  std::string address;  // of its server
  uint64_t server = 0;  // incarnation
  uint32_t shard = 0;
};

// Shards that are the primary of some partition.
std::vector<ShardAddress> PrimaryShards(const v1::ClusterView& view);

// Generates unique random ids.
class RandomIds {
 public:
  explicit RandomIds(uint64_t seed);  // 0: from the system's random source
  uint64_t Number();                  // not 0
  std::string RequestId();

 private:
  uint64_t state_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_SHARD_CALLS_H_
