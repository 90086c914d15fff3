#include "server/checkpoint/shard_calls.h"

#include <algorithm>
#include <random>

namespace verbena::server {

bool MayPass(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsUnavailable(status) || absl::IsNotFound(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsFailedPrecondition(status);
}

std::vector<ShardAddress> PrimaryShards(const v1::ClusterView& view) {
  std::vector<ShardAddress> shards;
  for (const v1::Server& server : view.servers()) {
    for (uint32_t shard = 0; shard < server.shards(); ++shard) {
      const bool has = std::any_of(
          view.partitions().begin(), view.partitions().end(), [&](const v1::Partition& p) {
            return p.primary() == server.incarnation() && p.shard() == shard;
          });
      if (has) shards.push_back({server.address(), server.incarnation(), shard});
    }
  }
  return shards;
}

RandomIds::RandomIds(uint64_t seed) : state_(seed) {
  if (state_ != 0) return;
  std::random_device device;
  state_ = (uint64_t{device()} << 32) | device();
}

uint64_t RandomIds::Number() {
  std::mt19937_64 random(state_);
  state_ = random();
  return std::max<uint64_t>(1, state_);
}

std::string RandomIds::RequestId() {
  std::mt19937_64 random(state_);
  state_ = random();
  std::string id(16, '\0');
  for (char& byte : id) byte = static_cast<char>(random());
  return id;
}

}  // namespace verbena::server
