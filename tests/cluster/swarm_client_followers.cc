// Reads of a swarm's observers that followers may answer (read_followers): what they may show.
#include <algorithm>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "proto/control/view_difference.h"
#include "tests/cluster/replica_compare.h"
#include "tests/cluster/swarm_client.h"

namespace verbena::test {

// Of its own draws: seeds without the feature run as before.
void SwarmClient::DrawReplicas(const SwarmTable& table, Operation* operation) {
  if (!world_->has(SwarmFeature::kReadFollowers) || !observer_ || table.embedding()) return;
  // At the end every acknowledged push is looked for.
  if (reads_all_ || !std::bernoulli_distribution(0.85)(own_)) return;
  const int64_t lease_ms = world_->plan.lease_ns() / kMilli;
  operation->staleness_ms = static_cast<uint32_t>(
      std::uniform_int_distribution<int64_t>(lease_ms / 4, kLongestStaleness * lease_ms)(own_));
}

uint32_t SwarmClient::RunOf(const SwarmTable& table) const {
  const v1::Job* job = FindJobNamed(table.spec().job(), world_->cluster->view());
  return job == nullptr ? 0 : job->generation();
}

// Called with the unit's life and its least value in place, those of a read from the primary.
void SwarmClient::AllowPast(const SwarmTable& table, uint32_t unit, Operation* operation) const {
  if (operation->staleness_ms == 0) return;
  const std::optional<double> past =
      world_->past.Least(table, unit, world_->now() - int64_t{operation->staleness_ms} * kMilli);
  if (!past.has_value()) {
    operation->lives.back() = UINT32_MAX;  // the value is not checked
    return;
  }
  operation->least.back() = *past;
  const auto own = read_.find({table.id(), unit});
  if (own == read_.end() || own->second.life != operation->lives.back() ||
      own->second.run != operation->run) {
    return;
  }
  operation->least.back() = std::max(operation->least.back(), own->second.value);
}

void SwarmClient::CheckRead(const Operation& operation, const SwarmTable& table, size_t i,
                            float value) {
  if (!world_->has(SwarmFeature::kReadFollowers) || !observer_ || table.embedding()) return;
  const uint32_t unit = operation.units[i], partition = table.units()[unit].partition;
  if (operation.lives[i] != table.life(partition) || table.lost(partition)) return;
  // Versions of another run do not bound those of this one.
  if (operation.run == RunOf(table)) {
    Read& read = read_[{table.id(), unit}];
    const bool same = read.life == operation.lives[i] && read.run == operation.run;
    read.value =
        same ? std::max(read.value, static_cast<double>(value)) : static_cast<double>(value);
    read.life = operation.lives[i], read.run = operation.run;
  }
  if (operation.staleness_ms == 0 || !table.exact() || table.clipped()) return;
  const std::optional<float> applied = AppliedAtPrimary(table, unit);
  if (!applied.has_value() || !table.ShowsMore(value, *applied)) return;
  world_->Violation(absl::StrCat(process_->host(), ": table ", table.id(), " '",
                                 table.spec().name(), "' chunk ", unit, " (partition ", partition,
                                 "): read ", value, ", which its primary has not applied: it has ",
                                 *applied));
}

// The first number of the chunk at the primary that the coordinator has. Nothing: it is not there.
std::optional<float> SwarmClient::AppliedAtPrimary(const SwarmTable& table, uint32_t unit) const {
  const uint32_t partition = table.units()[unit].partition;
  const v1::ClusterView& view = world_->cluster->view();
  if (world_->old_state || partition >= static_cast<uint32_t>(view.partitions_size())) {
    return std::nullopt;
  }
  const v1::Partition& p = view.partitions(static_cast<int>(partition));
  for (int s = 0; s < world_->cluster->servers(); ++s) {
    const SimServer* const server = world_->cluster->server(s);
    if (server == nullptr || server->incarnation() != p.primary()) continue;
    const shard::Engine* const engine =
        p.shard() < server->shards() ? server->shard(p.shard()).engine() : nullptr;
    return engine == nullptr ? std::nullopt : FirstOfChunk(*engine, table.id(), unit);
  }
  return std::nullopt;
}

}  // namespace verbena::test
