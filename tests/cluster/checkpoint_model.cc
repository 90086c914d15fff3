#include "tests/cluster/checkpoint_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "server/checkpoint/files/manifest.h"
#include "tests/cluster/reference.h"
#include "tests/cluster/sim_cluster.h"

namespace verbena::test {
namespace {

constexpr uint32_t kChunkBytes = 256;  // several chunks of a table in most partitions
constexpr size_t kKeys = 48;
constexpr uint32_t kDim = 2;
constexpr uint32_t kPerWorker = 4096;  // a float has room for so many pushes of either worker

v1::TableSpec Spec(size_t table, v1::Consistency other) {
  static constexpr const char* kNames[kCheckpointTables] = {"sync", "sync-rows", "async",
                                                            "async-rows"};
  v1::TableSpec spec;
  spec.set_name(kNames[table]);
  spec.set_job("job");
  if (table % 2 == 1) {
    spec.set_dim(kDim);
  } else {
    spec.add_shape(table == 0 ? 9 * kChunkBytes / 4 + 7 : 20 * kChunkBytes / 4 + 7);
  }
  spec.set_consistency(table < 2 ? v1::CONSISTENCY_SYNC : other);
  if (spec.consistency() == v1::CONSISTENCY_SSP) spec.set_staleness(2);
  spec.set_reduction(v1::REDUCTION_SUM);
  spec.set_chunk_bytes(table % 2 == 1 ? kSimChunkBytes : kChunkBytes);
  spec.mutable_optimizer()->set_name(table == 0 ? "momentum" : "sgd");
  if (table == 0) (*spec.mutable_optimizer()->mutable_parameters())["momentum"] = 0.5;
  spec.mutable_optimizer()->set_rate(1);
  return *NormalizeTableSpec(spec);
}

std::string Differs(const std::string& what, uint64_t number, float is, float wanted) {
  return absl::StrCat(what, ": number ", number, " is ", is, ", the reference has ", wanted);
}

}  // namespace

CheckpointModel::CheckpointModel(bool ssp) {
  const v1::Consistency other = ssp ? v1::CONSISTENCY_SSP : v1::CONSISTENCY_ASYNC;
  for (size_t table = 0; table < kCheckpointTables; ++table) specs_.push_back(Spec(table, other));
  for (uint64_t key = 0; key < kKeys; ++key) keys_.push_back(key * key * 1'000'003);
  for (size_t table = 0; table < sync_.size(); ++table)
    sync_[table] = {TableValues(numbers(table))};
  momentum_ = {TableValues(numbers(0))};
}

uint64_t CheckpointModel::numbers(size_t table) const {
  return rows(table) ? kKeys * kDim : static_cast<uint64_t>(specs_[table].shape(0));
}

float CheckpointModel::Gradient(size_t table, size_t rank, uint64_t step, uint64_t number) const {
  if (sync(table)) return SyncGradient(static_cast<int>(rank), step, number);
  return rank == 0 ? 1.0f : static_cast<float>(kPerWorker);
}

std::vector<size_t> CheckpointModel::StepKeys(uint64_t step) const {
  std::vector<size_t> named;
  for (size_t key = 0; key < kKeys; ++key) {
    if ((key * 7 + step) % 3 == 0) named.push_back(key);
  }
  return named;
}

size_t CheckpointModel::NextGroup(const TableLife& life, size_t rank) const {
  if (!rows(life.table)) return 0;
  uint32_t pushes = 0;
  for (const PushCounts& counts : life.attempted) pushes += counts[rank];
  return pushes % kKeyGroups;
}

std::vector<size_t> CheckpointModel::GroupKeys(size_t group) const {
  std::vector<size_t> named;
  for (size_t key = group; key < kKeys; key += kKeyGroups) named.push_back(key);
  return named;
}

// ---- values -------------------------------------------------------------------------------------

const TableValues& CheckpointModel::SyncValues(size_t table, uint64_t steps) {
  std::vector<TableValues>& all = sync_[table];
  while (all.size() <= steps) {
    const uint64_t step = all.size() - 1;
    TableValues next = all.back();
    TableValues gradient(next.size());
    const auto add = [&](uint64_t number) {
      for (size_t rank = 0; rank < kCheckpointWorkers; ++rank) {
        gradient[number] += Gradient(table, rank, step, number);
      }
    };
    if (rows(table)) {
      for (const size_t key : StepKeys(step)) {
        for (uint64_t d = 0; d < kDim; ++d) add(key * kDim + d);
      }
    } else {
      for (uint64_t number = 0; number < next.size(); ++number) add(number);
      TableValues velocity = momentum_.back();
      // Halves are exact: the same bits with and without a fused multiply-add.
      for (uint64_t i = 0; i < next.size(); ++i) velocity[i] = 0.5f * velocity[i] + gradient[i];
      gradient = velocity;
      momentum_.push_back(std::move(velocity));
    }
    for (uint64_t i = 0; i < next.size(); ++i) next[i] -= gradient[i];
    all.push_back(std::move(next));
  }
  return all[steps];
}

std::string CheckpointModel::Check(const TableLife& life, const TableValues& values, uint64_t steps,
                                   const GroupCounts& least, bool one_moment) {
  const std::string& name = specs_[life.table].name();
  if (!sync(life.table)) return CheckAsync(life, values, least, one_moment);
  const TableValues& wanted = SyncValues(life.table, steps);
  for (uint64_t i = 0; i < wanted.size(); ++i) {
    if (values[i] == wanted[i]) continue;
    return Differs(absl::StrCat(name, " (id ", life.id, ") after ", steps, " steps"), i, values[i],
                   wanted[i]);
  }
  return "";
}

std::string CheckpointModel::CheckAsync(const TableLife& life, const TableValues& values,
                                        const GroupCounts& least, bool one_moment) const {
  const std::string who = absl::StrCat(specs_[life.table].name(), " (id ", life.id, ")");
  const DenseLayout layout = rows(life.table) ? DenseLayout() : LayoutOf(specs_[life.table]);
  // The pushed sum of each unit: a chunk, or a partition's rows of a group.
  std::map<uint64_t, float> units;
  for (uint64_t i = 0; i < values.size(); ++i) {
    const uint64_t key = i / kDim;
    const uint64_t unit =
        rows(life.table)
            ? PartitionOfKey(life.id, keys_[key], kSimPartitions) * kKeyGroups + key % kKeyGroups
            : i / layout.chunk_elements;
    const float pushed = (life.base.empty() ? 0 : life.base[i]) - values[i];
    const float whole = units.try_emplace(unit, pushed).first->second;
    if (pushed != whole) return Differs(who + ": half a push", i, pushed, whole);
  }
  std::map<std::pair<uint32_t, size_t>, std::pair<uint32_t, uint32_t>> ranges;
  for (const auto& [unit, pushed] : units) {
    if (pushed < 0 || pushed != std::floor(pushed)) return absl::StrCat(who, " has ", pushed);
    const auto total = static_cast<uint32_t>(pushed);
    const PushCounts counts = {total % kPerWorker, total / kPerWorker};
    const uint32_t partition =
        rows(life.table) ? static_cast<uint32_t>(unit / kKeyGroups)
                         : PartitionOfChunk(life.id, static_cast<uint32_t>(unit), kSimPartitions);
    const size_t group = rows(life.table) ? unit % kKeyGroups : 0;
    for (size_t rank = 0; rank < kCheckpointWorkers; ++rank) {
      const uint32_t low_limit = least[group][rank], high_limit = life.attempted[group][rank];
      if (counts[rank] < low_limit || counts[rank] > high_limit) {
        return absl::StrCat(who, ": chunk ", unit, " or partition ", partition, " has ",
                            counts[rank], " pushes of rank ", rank, "; ", low_limit,
                            " had been acknowledged, and ", high_limit, " attempted");
      }
      // A partition's records are in order: its chunks and groups are a push apart at most, and
      // those that were given up while they were in progress.
      auto& [low, high] =
          ranges.try_emplace({partition, rank}, counts[rank], counts[rank]).first->second;
      low = std::min(low, counts[rank]), high = std::max(high, counts[rank]);
      if (one_moment && high - low > 1 + life.failed[rank]) {
        return absl::StrCat(who, ": partition ", partition, " has ", low, " to ", high,
                            " pushes of rank ", rank, ", no prefix");
      }
    }
  }
  return "";
}

// ---- checkpoints --------------------------------------------------------------------------------

absl::StatusOr<TableValues> CheckpointModel::Read(const checkpoint::CheckpointReader& reader,
                                                  size_t table, const std::string& array) const {
  TableValues values(numbers(table));
  const std::string& name = specs_[table].name();
  if (rows(table)) {
    const absl::Status status = reader.ReadRows(name, [&](const checkpoint::RowBatch& batch) {
      for (uint64_t i = 0; i < batch.count; ++i) {
        const auto key = std::find(keys_.begin(), keys_.end(), batch.keys()[i]);
        if (key == keys_.end()) {
          return absl::InternalError(absl::StrCat("row ", batch.keys()[i], " was never pushed"));
        }
        std::memcpy(&values[static_cast<size_t>(key - keys_.begin()) * kDim],
                    batch.columns[1].data() + i * kDim * sizeof(float), kDim * sizeof(float));
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return values;
  }
  const absl::Status status =
      reader.ReadArray(name, array, [&](uint64_t first, absl::Span<const std::byte> bytes) {
        std::memcpy(values.data() + first, bytes.data(), bytes.size());
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return values;
}

absl::StatusOr<CheckpointContent> CheckpointModel::CheckCheckpoint(
    const checkpoint::CheckpointReader& reader, const std::map<uint32_t, GroupCounts>& least) {
  absl::Status status = reader.CheckSizes();
  if (status.ok()) status = reader.Verify([](uint64_t) { return absl::OkStatus(); });
  if (!status.ok()) return status;
  CheckpointContent content;
  for (size_t table = 0; table < kCheckpointTables; ++table) {
    const v1::CheckpointTable* saved = reader.FindTable(specs_[table].name());
    if (saved == nullptr) return absl::InternalError("it has no " + specs_[table].name());
    const auto life = lives_.find(saved->id());
    if (life == lives_.end()) return absl::InternalError("it is of an unknown table");
    // A table whose training stood still for long is saved where it stood.
    if (sync(table) && saved->steps() != reader.manifest().step()) content.uneven = true;
    if (sync(table) && saved->steps() > reader.manifest().step()) {
      return absl::InternalError(absl::StrCat(specs_[table].name(), " has ", saved->steps(),
                                              " steps, the checkpoint ", reader.manifest().step()));
    }
    auto values = Read(reader, table, checkpoint::kParameters);
    if (!values.ok()) return values.status();
    const auto pushed = least.find(saved->id());
    std::string wrong =
        Check(life->second, *values, saved->steps(),
              pushed == least.end() ? GroupCounts{} : pushed->second, /*one_moment=*/true);
    if (wrong.empty() && table == 0) {
      const auto state = Read(reader, table, "momentum_buffer");
      if (!state.ok()) return state.status();
      if (*state != momentum_[saved->steps()]) wrong = "the momentum is of another step";
    }
    if (!wrong.empty()) return absl::InternalError(wrong);
    content.steps[table] = saved->steps();
    content.values[table] = *std::move(values);
  }
  return content;
}

}  // namespace verbena::test
