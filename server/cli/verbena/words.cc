#include "server/cli/verbena/words.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/table_spec.h"

namespace verbena::cli {
namespace {

std::string Word(const std::string& name, std::string_view prefix, int number) {
  if (name.size() <= prefix.size()) return absl::StrCat(number);
  return absl::AsciiStrToLower(name.substr(prefix.size()));
}

}  // namespace

std::string TypeWord(v1::DType dtype) {
  return Word(v1::DType_Name(dtype), "DTYPE_", static_cast<int>(dtype));
}

std::string ConsistencyWord(v1::Consistency consistency) {
  return Word(v1::Consistency_Name(consistency), "CONSISTENCY_", static_cast<int>(consistency));
}

uint64_t TableBytes(const v1::TableSpec& spec) {
  const DenseLayout layout = LayoutOf(spec);
  return layout.elements * layout.element_bytes;
}

std::map<uint64_t, LaneCounts> LanesOfWorkers(const ClusterState& state) {
  std::map<uint64_t, LaneCounts> workers;
  for (const ServerState& server : state.servers) {
    if (!server.statistics.ok()) continue;
    for (const v1::ShardStatistics& shard : server.statistics->shards()) {
      for (const v1::LaneStatistics& lane : shard.lanes()) {
        ++workers[lane.worker()][lane.transport()];
      }
    }
  }
  return workers;
}

int Observers(const v1::Job& job) {
  return static_cast<int>(
      std::count_if(job.members().begin(), job.members().end(),
                    [](const v1::Worker& worker) { return worker.rank() < 0; }));
}

}  // namespace verbena::cli
