#include "shard/checkpoint/checkpoints.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "proto/control/view_tables.h"
#include "shard/checkpoint/chunk_checkpoint.h"
#include "shard/checkpoint/row_checkpoint.h"
#include "shard/engine_core.h"

namespace verbena::shard {
namespace {

std::string Named(const PartitionedTable& table) {
  return absl::StrCat("table ", table.id(), " \"", table.spec().name(), "\"");
}

// The step of the slice's farthest chunk.
uint64_t NewestOf(const TableState& state, uint32_t slice) {
  const DenseTable* dense = state.dense.table.get();
  if (dense == nullptr) return state.rows.table->slice(slice).version;
  uint64_t newest = 0;
  for (const uint32_t chunk : dense->slice(slice).chunks) {
    newest = std::max(newest, dense->chunk(chunk).version);
  }
  return newest;
}

}  // namespace

absl::Status Checkpoints::CheckCheckpoint(const PartitionCheckpointRequest& request) const {
  if (request.id == 0 || saves_.contains(request.id) || request.tables.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "save ", request.id, " of ", request.tables.size(),
        " tables: allowed: an id that is neither 0 nor in use, and at least one table"));
  }
  absl::flat_hash_set<uint32_t> named;
  for (size_t i = 0; i < request.tables.size(); ++i) {
    const uint32_t table = request.tables[i].table;
    if (!named.insert(table).second) {
      return absl::InvalidArgumentError(absl::StrCat("table ", table, " is named twice"));
    }
    const auto it = core_.tables.find(table);
    if (it == core_.tables.end()) {
      return absl::NotFoundError(absl::StrCat("table ", table, " is not known here"));
    }
    for (const auto& [id, save] : saves_) {
      if (!save->PartitionCheckpoints(table)) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("table ", table, " is being saved already, as save ", id,
                       ", or pieces of that are still being written: wait for its end"));
    }
  }
  return absl::OkStatus();
}

// That all of the table that is ours is there, and not past its step.
absl::Status Checkpoints::CheckSaved(const TableToCheckpoint& what, uint64_t* newest) const {
  const TableState& state = core_.tables.at(what.table);
  if (state.table == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("table ", what.table, " cannot be served"));
  }
  const PartitionedTable& table = *state.table;
  if (state.restore != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(Named(table), " is being restored"));
  }
  const auto refuse = [&](uint32_t partition, const char* why) {
    return absl::FailedPreconditionError(
        absl::StrCat(Named(table), ": partition ", partition, " ", why));
  };
  uint64_t farthest = 0;
  for (uint32_t p = 0; p < core_.partitions.size(); ++p) {
    if (!core_.partitions[p].ours) continue;
    if (state.placement[p].lost) return refuse(p, "is lost");
    const uint32_t slice = table.slice_of(p);
    if (slice == PartitionedTable::kNone && !state.starved) continue;  // it has no chunk there
    if (slice == PartitionedTable::kNone || !table.ready(slice)) {
      return refuse(p, state.starved ? "has no memory" : "was lost when it moved");
    }
    if (!core_.log.MayRead(p, what.table)) {
      return absl::UnavailableError(absl::StrCat(Named(table), ": the follower of partition ", p,
                                                 " does not have everything yet; retry"));
    }
    farthest = std::max(farthest, NewestOf(state, slice));
  }
  if (table.spec().consistency() != v1::CONSISTENCY_SYNC) return absl::OkStatus();
  *newest = farthest;
  if (farthest <= what.step) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat(Named(table), " is at step ", farthest, " already, past ", what.step));
}

void Checkpoints::AddToCheckpoint(const TableToCheckpoint& what, PartitionCheckpoint* save) {
  const TableState& state = core_.tables.at(what.table);
  std::unique_ptr<TableCheckpoint> table;
  if (DenseTable* dense = state.dense.table.get()) {
    table = std::make_unique<ChunkCheckpoint>(dense, what, save->parts());
  } else {
    table = std::make_unique<RowCheckpoint>(state.rows.table.get(), what, save->parts());
  }
  for (uint32_t slice = 0; slice < state.table->slices(); ++slice) {
    const uint32_t partition = state.table->life(slice).partition;
    if (!core_.partitions[partition].ours || !state.table->ready(slice)) continue;
    std::vector<SavedPrefix> prefix;
    for (const WorkerMark& mark : state.consistency->Applied(slice)) {
      prefix.push_back({mark.worker, mark.sequence});
    }
    table->AddLocalPartition(slice, partition, core_.partitions[partition].epoch,
                             std::move(prefix));
  }
  save->Add(std::move(table));
}

uint64_t Checkpoints::CheckpointMemory(const PartitionCheckpointRequest& request) const {
  uint64_t bytes = PartitionCheckpointRequest::kRowMemory;
  for (const TableToCheckpoint& what : request.tables) {
    const DenseTable* const dense = core_.tables.at(what.table).dense.table.get();
    if (dense == nullptr) continue;
    for (uint32_t s = 0; s < dense->slices(); ++s) {
      bytes += dense->slice(s).chunks.size() * uint64_t{dense->ContentBytes()};
    }
  }
  return bytes;
}

absl::Status Checkpoints::Begin(const PartitionCheckpointRequest& request,
                                std::vector<uint64_t>* newest) {
  newest->clear();
  if (absl::Status s = CheckCheckpoint(request); !s.ok()) return s;
  absl::Status status;
  for (const TableToCheckpoint& what : request.tables) {
    status.Update(CheckSaved(what, &newest->emplace_back()));
  }
  if (!status.ok()) return status;
  auto save = std::make_unique<PartitionCheckpoint>(
      request, request.memory_bytes.value_or(CheckpointMemory(request)), &core_.pool, &counters_);
  for (const TableToCheckpoint& what : request.tables) AddToCheckpoint(what, save.get());
  save->Start();
  saves_[request.id] = std::move(save);
  return absl::OkStatus();
}

bool Checkpoints::HasOpenStep(uint32_t table) const {
  const auto it = core_.tables.find(table);
  if (it == core_.tables.end() || it->second.table == nullptr) return false;
  const TableState& state = it->second;
  for (uint32_t slice = 0; slice < state.table->slices(); ++slice) {
    const uint32_t partition = state.table->life(slice).partition;
    if (!core_.partitions[partition].ours || !state.table->ready(slice)) continue;
    if (state.consistency->HasOpenStep(slice)) return true;
  }
  return false;
}

bool Checkpoints::Take(uint64_t save, CheckpointPiece* piece) {
  const auto it = saves_.find(save);
  return it != saves_.end() && it->second->Take(piece);
}

void Checkpoints::Release(uint64_t save, uint64_t piece) {
  const auto it = saves_.find(save);
  if (it == saves_.end() || !it->second->Release(piece)) return;
  if (it->second->over()) saves_.erase(it);
  core_.RetryBlocked();
}

absl::StatusOr<CheckpointProgress> Checkpoints::progress(uint64_t save) const {
  const auto it = saves_.find(save);
  if (it == saves_.end() || it->second->ended()) {
    return absl::NotFoundError(absl::StrCat("no save ", save, " is in progress here"));
  }
  return it->second->progress();
}

void Checkpoints::End(uint64_t save, bool committed) {
  const auto it = saves_.find(save);
  if (it == saves_.end()) return;
  it->second->End(committed);
  if (it->second->over()) saves_.erase(it);
  core_.RetryBlocked();
}

void Checkpoints::Commit(uint64_t save) { End(save, /*committed=*/true); }

void Checkpoints::Abort(uint64_t save) { End(save, /*committed=*/false); }

void Checkpoints::AbortTable(uint32_t table, const absl::Status& why) {
  for (auto& [id, save] : saves_) {
    save->Abort(table, [&](uint32_t, const TableCheckpoint::LocalPartition& s) {
      return absl::Status(why.code(), absl::StrCat("table ", table, ", partition ", s.partition,
                                                   ": ", why.message()));
    });
  }
}

void Checkpoints::AbortPartition(uint32_t table, uint32_t partition, const absl::Status& why) {
  for (auto& [id, save] : saves_) {
    save->Abort(table, [&](uint32_t, const TableCheckpoint::LocalPartition& s) {
      return s.partition == partition ? why : absl::OkStatus();
    });
  }
}

void Checkpoints::FollowView(const v1::ClusterView& view, const ViewDifference& what) {
  if (saves_.empty()) return;
  if (!what.all) {
    for (const uint32_t id : what.tables) {
      if (core_.tables.contains(id)) FollowTable(id, FindTableById(id, view));
    }
    return;
  }
  absl::flat_hash_map<uint32_t, const v1::Table*> present;
  for (const v1::Table& t : view.tables()) present[t.id()] = &t;
  for (const auto& entry : core_.tables) {
    const auto it = present.find(entry.first);
    FollowTable(entry.first, it == present.end() ? nullptr : it->second);
  }
}

void Checkpoints::FollowTable(uint32_t table, const v1::Table* now) {
  if (now == nullptr) {
    AbortTable(table, absl::NotFoundError("the table was dropped"));
    for (auto& [id, save] : saves_) save->Leave(table);
    return;
  }
  const auto& lost = now->lost_partitions();
  for (auto& [id, save] : saves_) {
    save->Abort(table, [&](uint32_t, const TableCheckpoint::LocalPartition& s) {
      const PartitionInfo& p = core_.partitions[s.partition];
      const bool is_lost = std::find(lost.begin(), lost.end(), s.partition) != lost.end();
      if (p.ours && p.epoch == s.epoch && !is_lost) return absl::OkStatus();
      return absl::AbortedError(absl::StrCat("table ", table, ", partition ", s.partition,
                                             is_lost   ? " is lost"
                                             : !p.ours ? " has another primary"
                                                       : " is in a new epoch"));
    });
  }
}

}  // namespace verbena::shard
