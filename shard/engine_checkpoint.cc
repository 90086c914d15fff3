// Checkpoints: which slices of a table they contain, and what ends them early. The rest is
// shard/checkpoint.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "proto/control/view_tables.h"
#include "shard/checkpoint/chunk_checkpoint.h"
#include "shard/checkpoint/row_checkpoint.h"
#include "shard/engine_impl.h"

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

absl::Status Engine::Impl::CheckCheckpoint(const PartitionCheckpointRequest& request) const {
  if (request.id == 0 || saves.contains(request.id) || request.tables.empty()) {
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
    const auto it = tables.find(table);
    if (it == tables.end()) {
      return absl::NotFoundError(absl::StrCat("table ", table, " is not known here"));
    }
    for (const auto& [id, save] : saves) {
      if (!save->PartitionCheckpoints(table)) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("table ", table, " is being saved already, as save ", id,
                       ", or pieces of that are still being written: wait for its end"));
    }
  }
  return absl::OkStatus();
}

// That all of the table that is ours is there, and not past its step.
absl::Status Engine::Impl::CheckSaved(const TableToCheckpoint& what, uint64_t* newest) const {
  const TableState& state = tables.at(what.table);
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
  for (uint32_t p = 0; p < partitions.size(); ++p) {
    if (!partitions[p].ours) continue;
    if (state.placement[p].lost) return refuse(p, "is lost");
    const uint32_t slice = table.slice_of(p);
    if (slice == PartitionedTable::kNone && !state.starved) continue;  // it has no chunk there
    if (slice == PartitionedTable::kNone || !table.ready(slice)) {
      return refuse(p, state.starved ? "has no memory" : "was lost when it moved");
    }
    if (!log.MayRead(p, what.table)) {
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

void Engine::Impl::AddToCheckpoint(const TableToCheckpoint& what, PartitionCheckpoint* save) {
  const TableState& state = tables.at(what.table);
  std::unique_ptr<TableCheckpoint> table;
  if (DenseTable* dense = state.dense.table.get()) {
    table = std::make_unique<ChunkCheckpoint>(dense, what, save->parts());
  } else {
    table = std::make_unique<RowCheckpoint>(state.rows.table.get(), what, save->parts());
  }
  for (uint32_t slice = 0; slice < state.table->slices(); ++slice) {
    const uint32_t partition = state.table->life(slice).partition;
    if (!partitions[partition].ours || !state.table->ready(slice)) continue;
    std::vector<SavedPrefix> prefix;
    for (const WorkerMark& mark : state.consistency->Applied(slice)) {
      prefix.push_back({mark.worker, mark.sequence});
    }
    table->AddLocalPartition(slice, partition, partitions[partition].epoch, std::move(prefix));
  }
  save->Add(std::move(table));
}

uint64_t Engine::Impl::CheckpointMemory(const PartitionCheckpointRequest& request) const {
  uint64_t bytes = PartitionCheckpointRequest::kRowMemory;
  for (const TableToCheckpoint& what : request.tables) {
    const DenseTable* const dense = tables.at(what.table).dense.table.get();
    if (dense == nullptr) continue;
    for (uint32_t s = 0; s < dense->slices(); ++s) {
      bytes += dense->slice(s).chunks.size() * uint64_t{dense->ContentBytes()};
    }
  }
  return bytes;
}

absl::Status Engine::BeginCheckpoint(const PartitionCheckpointRequest& request,
                                     std::vector<uint64_t>* newest) {
  Impl& e = *impl_;
  newest->clear();
  if (absl::Status s = e.CheckCheckpoint(request); !s.ok()) return s;
  absl::Status status;
  for (const TableToCheckpoint& what : request.tables) {
    status.Update(e.CheckSaved(what, &newest->emplace_back()));
  }
  if (!status.ok()) return status;
  auto save = std::make_unique<PartitionCheckpoint>(
      request, request.memory_bytes.value_or(e.CheckpointMemory(request)), &e.pool,
      &e.checkpoint_counters);
  for (const TableToCheckpoint& what : request.tables) e.AddToCheckpoint(what, save.get());
  save->Start();
  e.saves[request.id] = std::move(save);
  return absl::OkStatus();
}

bool Engine::TakePiece(uint64_t save, CheckpointPiece* piece) {
  const auto it = impl_->saves.find(save);
  return it != impl_->saves.end() && it->second->Take(piece);
}

void Engine::ReleasePiece(uint64_t save, uint64_t piece) {
  Impl& e = *impl_;
  const auto it = e.saves.find(save);
  if (it == e.saves.end() || !it->second->Release(piece)) return;
  if (it->second->over()) e.saves.erase(it);
  e.RetryBlocked();
}

absl::StatusOr<CheckpointProgress> Engine::checkpoint_progress(uint64_t save) const {
  const auto it = impl_->saves.find(save);
  if (it == impl_->saves.end() || it->second->ended()) {
    return absl::NotFoundError(absl::StrCat("no save ", save, " is in progress here"));
  }
  return it->second->progress();
}

void Engine::Impl::EndCheckpoint(uint64_t save, bool committed) {
  const auto it = saves.find(save);
  if (it == saves.end()) return;
  it->second->End(committed);
  if (it->second->over()) saves.erase(it);
  RetryBlocked();
}

void Engine::CommitCheckpoint(uint64_t save) { impl_->EndCheckpoint(save, /*committed=*/true); }
void Engine::AbortCheckpoint(uint64_t save) { impl_->EndCheckpoint(save, /*committed=*/false); }
const CheckpointCounters& Engine::checkpoint_counters() const { return impl_->checkpoint_counters; }

// ---- the view -----------------------------------------------------------------------------------

void Engine::Impl::AbortCheckpoints(uint32_t table, const absl::Status& why) {
  for (auto& [id, save] : saves) {
    save->Abort(table, [&](uint32_t, const TableCheckpoint::LocalPartition& s) {
      return absl::Status(why.code(), absl::StrCat("table ", table, ", partition ", s.partition,
                                                   ": ", why.message()));
    });
  }
}

void Engine::Impl::FollowCheckpoints(const v1::ClusterView& view, const ViewDifference& what) {
  if (saves.empty()) return;
  if (!what.all) {
    for (const uint32_t id : what.tables) {
      if (tables.contains(id)) FollowCheckpoints(id, FindTableById(id, view));
    }
    return;
  }
  absl::flat_hash_map<uint32_t, const v1::Table*> present;
  for (const v1::Table& t : view.tables()) present[t.id()] = &t;
  for (const auto& entry : tables) {
    const auto it = present.find(entry.first);
    FollowCheckpoints(entry.first, it == present.end() ? nullptr : it->second);
  }
}

void Engine::Impl::FollowCheckpoints(uint32_t table, const v1::Table* now) {
  if (now == nullptr) {
    AbortCheckpoints(table, absl::NotFoundError("the table was dropped"));
    for (auto& [id, save] : saves) save->Leave(table);
    return;
  }
  const auto& lost = now->lost_partitions();
  for (auto& [id, save] : saves) {
    save->Abort(table, [&](uint32_t, const TableCheckpoint::LocalPartition& s) {
      const PartitionInfo& p = partitions[s.partition];
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
