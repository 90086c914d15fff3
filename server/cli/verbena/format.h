// Formats that the text and the JSON reports share.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_FORMAT_H_
#define VERBENA_SERVER_CLI_VERBENA_FORMAT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/cli/verbena/cluster_state.h"

namespace verbena::cli {

// "bf16", or "bf16 / f32" if gradients have another type than parameters; codecs, if there are any.
std::string TypesWord(const v1::TableSpec& spec);

// "[100, 10]" for a dense table, "rows of 16" for an embedding table.
std::string ShapeWord(const v1::TableSpec& spec);

// Size of a table's parameters, without optimizer state. For an embedding table: the sum of its
// servers' reports.
struct TableSize {
  uint64_t bytes = 0;
  uint64_t rows = 0;  // of an embedding table
};
TableSize SizeOf(const v1::Table& table, const ClusterState& state);

// Its optimizer with the values in force on the shard with most changes; those of its specification
// if none was changed, or that shard does not answer.
v1::Optimizer OptimizerOf(const v1::Table& table, const ClusterState& state);

// A key of an embedding table, and a lower bound of its share in the requests to the table on its
// shard.
struct HotKeyShare {
  uint64_t key = 0;
  std::string server;
  uint32_t shard = 0;
  double share = 0;
};
// Keys with a share of `least` or more, by share; at most ten.
std::vector<HotKeyShare> HotKeysOf(const v1::Table& table, const ClusterState& state, double least);

// Open lanes of each worker by transport.
using LaneCounts = std::map<std::string, uint64_t>;
std::map<uint64_t, LaneCounts> LanesOfWorkers(const ClusterState& state);

bool HasRows(const ClusterState& state);  // an embedding table

int Observers(const v1::Job& job);  // members that only pull

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_FORMAT_H_
