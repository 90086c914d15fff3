// The contents that the tables of a checkpoint scenario must have, on servers and in checkpoints.
// Gradients are integers: a sync table is, bit for bit, a function of the number of steps in it,
// whichever table of the cluster they were made on; an async one shows the number of pushes of each
// worker in it.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_CHECKPOINT_MODEL_H_
#define VERBENA_TESTS_CLUSTER_CHECKPOINT_MODEL_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::test {

inline constexpr size_t kCheckpointWorkers = 2;
// Sync and dense, with momentum; sync rows; async, or ssp, and dense; such rows.
inline constexpr size_t kCheckpointTables = 4;

// A push of async rows names the keys of one group, so that there are rows that did not change.
inline constexpr size_t kKeyGroups = 3;

using PushCounts = std::array<uint32_t, kCheckpointWorkers>;
using GroupCounts = std::array<PushCounts, kKeyGroups>;  // of other tables all in the first
using TableValues = std::vector<float>;  // elements, or rows in the order of the keys

// A table of the cluster, from its creation until it is dropped or another takes its place.
struct TableLife {
  uint32_t id = 0;
  size_t table = 0;       // which of the four
  int restore = 0;        // that made it; 0: a worker did
  uint64_t steps = 0;     // sync: in its initial contents
  TableValues base = {};  // async: its initial contents
  bool served = false, gone = false;
  GroupCounts attempted = {}, acknowledged = {};
  PushCounts failed = {};
};

// The contents of a checkpoint, as read.
struct CheckpointContent {
  std::array<uint64_t, kCheckpointTables> steps = {};
  std::array<TableValues, kCheckpointTables> values = {};
  bool uneven = false;  // sync tables are at different steps
};

class CheckpointModel {
 public:
  explicit CheckpointModel(bool ssp = false);

  const v1::TableSpec& spec(size_t table) const { return specs_[table]; }
  bool sync(size_t table) const { return table < 2; }
  bool ssp(size_t table) const { return specs_[table].consistency() == v1::CONSISTENCY_SSP; }
  bool rows(size_t table) const { return specs_[table].dim() > 0; }
  uint64_t numbers(size_t table) const;
  const std::vector<uint64_t>& keys() const { return keys_; }

  // The gradient of `rank`: for sync rows in step `step`, which does not name all keys, see
  // StepKeys().
  float Gradient(size_t table, size_t rank, uint64_t step, uint64_t number) const;
  // Indices of the keys that step `step` names.
  std::vector<size_t> StepKeys(uint64_t step) const;
  // The keys of the next push of `rank` to an async table, and their indices.
  size_t NextGroup(const TableLife& life, size_t rank) const;
  std::vector<size_t> GroupKeys(size_t group) const;

  std::map<uint32_t, TableLife>& lives() { return lives_; }

  // Whether `values` is a valid state of the table; names the first difference. Sync: after `steps`
  // steps in all. Async: at least the given pushes, and no more than were attempted; `one_moment`:
  // each partition as of one moment, as in checkpoints.
  std::string Check(const TableLife& life, const TableValues& values, uint64_t steps,
                    const GroupCounts& least, bool one_moment);

  // Reads and checks all of a checkpoint. `least`: of async tables, by id, the pushes that were
  // acknowledged before the save began.
  absl::StatusOr<CheckpointContent> CheckCheckpoint(const checkpoint::CheckpointReader& reader,
                                                    const std::map<uint32_t, GroupCounts>& least);

 private:
  const TableValues& SyncValues(size_t table, uint64_t steps);
  std::string CheckAsync(const TableLife& life, const TableValues& values, const GroupCounts& least,
                         bool one_moment) const;
  absl::StatusOr<TableValues> Read(const checkpoint::CheckpointReader& reader, size_t table,
                                   const std::string& array) const;

  std::vector<v1::TableSpec> specs_;
  std::vector<uint64_t> keys_;
  std::map<uint32_t, TableLife> lives_;           // by id
  std::array<std::vector<TableValues>, 2> sync_;  // by steps
  std::vector<TableValues> momentum_;             // of the first, by steps
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_CHECKPOINT_MODEL_H_
