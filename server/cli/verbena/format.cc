#include "server/cli/verbena/format.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/spec/table_spec.h"
#include "server/cli/verbena/spec_report.h"

namespace verbena::cli {
namespace {

constexpr size_t kMostHotKeys = 10;

}  // namespace

std::string TypesWord(const v1::TableSpec& spec) {
  const std::string parameters =
      HasPullCodec(spec) ? CodecName(spec.pull_codec()) : OptionWord("dtype", spec);
  const std::string gradients =
      HasPushCodec(spec) ? CodecName(spec.push_codec()) : OptionWord("gradient_dtype", spec);
  return parameters == gradients ? parameters : absl::StrCat(parameters, " / ", gradients);
}

std::string ShapeWord(const v1::TableSpec& spec) {
  return spec.dim() > 0 ? absl::StrCat("rows of ", spec.dim()) : ShapeString(spec);
}

namespace {

// Null: the shard has nothing of it. Shards list tables in the order of their ids.
const v1::TableStatistics* PartOf(const v1::Table& table, const v1::ShardStatistics& shard) {
  const auto& parts = shard.tables();
  const auto it = std::lower_bound(
      parts.begin(), parts.end(), table.id(),
      [](const v1::TableStatistics& part, uint32_t id) { return part.table() < id; });
  return it != parts.end() && it->table() == table.id() ? &*it : nullptr;
}

}  // namespace

v1::Optimizer OptimizerOf(const v1::Table& table, const ClusterState& state) {
  v1::Optimizer optimizer = table.spec().optimizer();
  uint64_t changes = 0;
  for (const ServerState& server : state.servers) {
    if (!server.statistics.ok()) continue;
    for (const v1::ShardStatistics& shard : server.statistics->shards()) {
      const v1::TableStatistics* part = PartOf(table, shard);
      if (part == nullptr || part->optimizer_changes() <= changes) continue;
      changes = part->optimizer_changes();
      optimizer = part->optimizer();
    }
  }
  return optimizer;
}

TableSize SizeOf(const v1::Table& table, const ClusterState& state) {
  if (table.spec().dim() == 0) {
    const DenseLayout layout = LayoutOf(table.spec());
    return {layout.elements * layout.parameter_bytes, 0};
  }
  TableSize size;
  for (const ServerState& server : state.servers) {
    if (!server.statistics.ok()) continue;
    for (const v1::ShardStatistics& shard : server.statistics->shards()) {
      const v1::TableStatistics* part = PartOf(table, shard);
      if (part == nullptr) continue;
      size.bytes += part->parameter_bytes();
      size.rows += part->rows();
    }
  }
  return size;
}

std::vector<HotKeyShare> HotKeysOf(const v1::Table& table, const ClusterState& state,
                                   double least) {
  std::vector<HotKeyShare> keys;
  for (const ServerState& server : state.servers) {
    if (!server.statistics.ok()) continue;
    for (const v1::ShardStatistics& shard : server.statistics->shards()) {
      const v1::TableStatistics* part = PartOf(table, shard);
      if (part == nullptr || part->sampled_keys() == 0) continue;
      for (const v1::HotKey& key : part->hot_keys()) {
        const double count =
            key.count() > key.error() ? static_cast<double>(key.count() - key.error()) : 0.0;
        const double share = count / static_cast<double>(part->sampled_keys());
        if (share < least) continue;
        keys.push_back({key.key(), server.server.name(), shard.shard(), std::min(share, 1.0)});
      }
    }
  }
  std::stable_sort(keys.begin(), keys.end(),
                   [](const HotKeyShare& a, const HotKeyShare& b) { return a.share > b.share; });
  if (keys.size() > kMostHotKeys) keys.resize(kMostHotKeys);
  return keys;
}

std::map<uint64_t, LaneCounts> LanesOfWorkers(const ClusterState& state) {
  std::map<uint64_t, LaneCounts> workers;
  for (const ServerState& server : state.servers) {
    if (!server.statistics.ok()) continue;
    for (const v1::ShardStatistics& shard : server.statistics->shards()) {
      for (const v1::LaneStatistics& lane : shard.lanes()) {
        if (!lane.of_server()) ++workers[lane.worker()][lane.transport()];
      }
    }
  }
  return workers;
}

bool HasRows(const ClusterState& state) {
  return std::any_of(state.view.tables().begin(), state.view.tables().end(),
                     [](const v1::Table& table) { return table.spec().dim() > 0; });
}

int Observers(const v1::Job& job) {
  return static_cast<int>(
      std::count_if(job.members().begin(), job.members().end(),
                    [](const v1::Worker& worker) { return worker.rank() < 0; }));
}

}  // namespace verbena::cli
