#include "shard/checkpoint/restores.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "proto/wire/row_applies.h"
#include "shard/engine_core.h"
#include "shard/failpoints.h"
#include "shard/kernel/convert.h"
#include "shard/kernel/prefetch.h"

namespace verbena::shard {
namespace {

// Rows whose parameters are on their way to the cache.
constexpr size_t kLoadAhead = 16;

bool IsAligned(absl::Span<const std::byte> numbers, ElementType type) {
  const uint32_t bytes = ElementBytes(type);
  return bytes > 0 && reinterpret_cast<uintptr_t>(numbers.data()) % bytes == 0;
}

absl::Status Malformed(const PartitionedTable& table, std::string_view what, uint64_t found,
                       uint64_t wanted) {
  return absl::InvalidArgumentError(absl::StrCat("table ", table.id(), " \"", table.spec().name(),
                                                 "\": ", std::string(what), ": ", found,
                                                 "; wanted: ", wanted));
}

}  // namespace

absl::Status Restores::FindRestoring(uint32_t table, TableState** state) const {
  const auto it = core_.tables.find(table);
  if (it == core_.tables.end()) {
    return absl::NotFoundError(absl::StrCat("table ", table, " is not known here"));
  }
  *state = &it->second;
  if (it->second.table == nullptr || it->second.restore == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("table ", table, " is not being restored"));
  }
  return absl::OkStatus();
}

absl::Status Restores::Begin(const RestoreRequest& request) {
  TableState* state = nullptr;
  if (absl::Status s = FindRestoring(request.table, &state); !s.ok()) return s;
  Restore& restore = *state->restore;
  const RestoreRequest& was = restore.request();
  if (restore.begun() && (was.version != request.version || was.applies != request.applies)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "table ", request.table, " is being restored to version ", was.version, " already"));
  }
  restore.Begin(request);
  return absl::OkStatus();
}

absl::Status Restores::LoadElements(const ElementsToRestore& elements) {
  TableState* state = nullptr;
  if (absl::Status s = FindRestoring(elements.table, &state); !s.ok()) return s;
  if (!state->restore->begun()) return absl::FailedPreconditionError("it has not begun");
  DenseTable* table = state->dense.table.get();
  if (table == nullptr) return Malformed(*state->table, "elements of an embedding table", 1, 0);
  const DenseLayout& layout = table->layout();
  if (elements.first_element > layout.elements ||
      elements.count > layout.elements - elements.first_element) {
    return Malformed(*table, "elements up to", elements.first_element + elements.count,
                     layout.elements);
  }
  const uint64_t bytes = elements.count * ElementBytes(elements.dtype);
  const bool has_master = !elements.master.empty();
  if (has_master ? elements.master.size() != elements.count
                 : elements.parameters.size() != bytes || bytes == 0 ||
                       !IsAligned(elements.parameters, elements.dtype)) {
    return Malformed(*table, "bytes of parameters, aligned", elements.parameters.size(), bytes);
  }
  if (!elements.state.empty() && elements.state.size() != table->state_arrays()) {
    return Malformed(*table, "arrays of state", elements.state.size(), table->state_arrays());
  }
  for (const auto& array : elements.state) {
    if (array.size() != elements.count) {
      return Malformed(*table, "numbers in an array of state", array.size(), elements.count);
    }
  }
  for (uint64_t done = 0; done < elements.count;) {
    const uint64_t at = elements.first_element + done;
    const auto chunk = static_cast<uint32_t>(at / layout.chunk_elements);
    const auto first = static_cast<uint32_t>(at - layout.first_element(chunk));
    const auto count = static_cast<uint32_t>(
        std::min<uint64_t>(layout.elements_of(chunk) - first, elements.count - done));
    const uint32_t partition = table->partition_of(chunk);
    const uint32_t index = table->local_chunk(chunk);
    if (core_.partitions[partition].ours && index != PartitionedTable::kNone) {
      if (core_.records.BehindOnCopies(partition) ||
          !LoadChunk(elements, state, index, first, count, done)) {
        return absl::UnavailableError("replicas lag behind; retry");
      }
    }
    done += count;
  }
  return absl::OkStatus();
}

absl::Status Restores::LoadRows(const RowsToRestore& rows, RowsLoaded* loaded) {
  TableState* state = nullptr;
  if (absl::Status s = FindRestoring(rows.table, &state); !s.ok()) return s;
  if (!state->restore->begun()) return absl::FailedPreconditionError("it has not begun");
  const EmbeddingTable* table = state->rows.table.get();
  if (table == nullptr) return Malformed(*state->table, "rows of a dense table", 1, 0);
  const size_t count = rows.keys.size();
  const uint64_t bytes = count * table->dim() * ElementBytes(rows.dtype);
  if (rows.parameters.size() != bytes || !IsAligned(rows.parameters, rows.dtype)) {
    return Malformed(*table, "bytes of parameters, aligned", rows.parameters.size(), bytes);
  }
  if (!rows.row_applies.empty() && rows.row_applies.size() != count) {
    return Malformed(*table, "counts of applies", rows.row_applies.size(), count);
  }
  if (!rows.state.empty() && rows.state.size() != table->state_arrays()) {
    return Malformed(*table, "arrays of state", rows.state.size(), table->state_arrays());
  }
  for (const auto& array : rows.state) {
    if (array.size() != count * table->state_width()) {
      return Malformed(*table, "numbers in an array of state", array.size(),
                       count * table->state_width());
    }
  }
  RowsLoaded from_start;
  RowsLoaded& at =
      loaded != nullptr && !VERBENA_FAILPOINT(shard, restart_windows) ? *loaded : from_start;
  while (at.rows < count) {
    // As many as may be in memory together: how many that is may change between two calls.
    if (at.end == at.rows) at.end = at.rows + std::min<size_t>(count - at.rows, table->most_rows());
    if (absl::Status s = LoadBatch(rows, state, &at); !s.ok()) return s;
    at = {.rows = at.end, .end = at.end};
  }
  return absl::OkStatus();
}

absl::Status Restores::Finish(uint32_t table) {
  const absl::StatusOr<RestoreProgress> progress = this->progress(table);
  if (!progress.ok()) return progress.status();
  TableState* state = nullptr;
  if (absl::Status s = FindRestoring(table, &state); !s.ok()) return s;
  if (!state->restore->begun()) return absl::FailedPreconditionError("it has not begun");
  if (progress->missing_elements > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("table ", table, " \"", state->table->spec().name(),
                     "\": ", progress->missing_elements, " elements were not loaded"));
  }
  if (state->starved) return absl::ResourceExhaustedError("there is no memory for all of it");
  for (uint32_t s = 0; s < state->table->slices(); ++s) {
    const bool ours = core_.partitions[state->table->life(s).partition].ours;
    if (!ours || !state->table->ready(s) || state->restore->finished(s)) continue;
    if (!FinishLocalPartition(state, s))
      return absl::UnavailableError("replicas lag behind; retry");
  }
  return absl::OkStatus();
}

absl::StatusOr<RestoreProgress> Restores::progress(uint32_t table) const {
  TableState* state = nullptr;
  if (absl::Status s = FindRestoring(table, &state); !s.ok()) return s;
  RestoreProgress progress;
  for (uint32_t s = 0; s < state->table->slices(); ++s) {
    const uint32_t p = state->table->life(s).partition;
    if (!core_.partitions[p].ours) continue;
    if (state->placement[p].lost) {
      return absl::AbortedError(
          absl::StrCat("table ", table, " \"", state->table->spec().name(), "\": partition ", p,
                       " was lost while it was restored; the table has to be made anew"));
    }
    if (!state->table->ready(s) || !state->restore->finished(s)) ++progress.unfinished;
    if (const DenseTable* dense = state->dense.table.get(); dense != nullptr) {
      for (const uint32_t index : dense->slice(s).chunks) {
        const DenseTable::Chunk& chunk = dense->chunk(index);
        progress.missing_elements += chunk.elements - state->restore->loaded(s, chunk.id);
      }
    }
    const bool copied = core_.log.mode(p) == ReplicaLog::Mode::kAlone ||
                        core_.log.copies(p).acknowledged() >= state->restore->last_record(s);
    if (!copied) ++progress.behind;
  }
  return progress;
}

// Loads elements first.. of a chunk from elements from.. of `elements`. False: no memory for the
// replica's record.
bool Restores::LoadChunk(const ElementsToRestore& elements, TableState* state, uint32_t index,
                         uint32_t first, uint32_t count, uint64_t from) {
  DenseTable& table = *state->dense.table;
  const DenseTable::Chunk& chunk = table.chunk(index);
  if (!elements.master.empty()) {
    table.WriteElements(index, first, elements.master.subspan(from, count), {}, ElementType::kF32);
  } else if (elements.dtype == ElementType::kF32) {
    const auto* floats = reinterpret_cast<const float*>(elements.parameters.data());
    table.WriteElements(index, first, {floats + from, count}, {}, ElementType::kF32);
  } else {
    const auto* halves = reinterpret_cast<const uint16_t*>(elements.parameters.data());
    table.WriteElements(index, first, {}, {halves + from, count}, elements.dtype);
  }
  for (size_t i = 0; i < elements.state.size(); ++i) {
    table.WriteState(index, first, i, elements.state[i].subspan(from, count));
  }
  table.SetApplies(index, std::max(chunk.applies, elements.applies));
  core_.checkpoints.counters().restored_elements += count;
  const uint32_t loaded = state->restore->Loaded(chunk.slice, chunk.id, first, first + count);
  if (loaded < chunk.elements) return true;
  if (!ReplicateLoaded(table.partition_of(chunk.id), *state, index)) return false;
  state->restore->SetReplicated(chunk.slice, chunk.id);
  return true;
}

absl::Status Restores::LoadBatch(const RowsToRestore& rows, TableState* state, RowsLoaded* at) {
  const EmbeddingTable& table = *state->rows.table;
  const auto all = static_cast<uint32_t>(core_.partitions.size());
  std::vector<std::vector<uint32_t>>& which = scratch_.which;
  std::vector<uint32_t>& which_partitions = scratch_.partitions;
  which.resize(all);
  for (const uint32_t p : which_partitions) which[p].clear();
  which_partitions.clear();
  for (size_t i = at->rows; i < at->end; ++i) {
    const uint32_t p = PartitionOfKey(table.id(), rows.keys[i], all);
    const uint32_t slice = table.slice_of(p);
    const bool here =
        core_.partitions[p].ours && slice != PartitionedTable::kNone && table.ready(slice);
    if (!here || p < at->partitions) continue;
    if (which[p].empty()) which_partitions.push_back(p);
    which[p].push_back(static_cast<uint32_t>(i));
  }
  std::sort(which_partitions.begin(), which_partitions.end());
  for (const uint32_t p : which_partitions) {
    if (p != at->partitions) *at = {at->rows, at->end, p, 0};
    // A record for the replicas at a time: there is room for one.
    const size_t most = core_.records.RowsOfRecord(table);
    while (at->of_partition < which[p].size()) {
      const auto some = absl::MakeConstSpan(which[p]).subspan(at->of_partition, most);
      if (absl::Status s = LoadPartition(rows, state, p, some); !s.ok()) return s;
      at->of_partition += some.size();
    }
    *at = {at->rows, at->end, p + 1, 0};
  }
  return absl::OkStatus();
}

absl::Status Restores::LoadPartition(const RowsToRestore& rows, TableState* state,
                                     uint32_t partition, absl::Span<const uint32_t> which) {
  if (core_.records.BehindOnCopies(partition) && !VERBENA_FAILPOINT(shard, load_unbounded)) {
    return absl::UnavailableError("replicas lag behind; retry");
  }
  EmbeddingTable& table = *state->rows.table;
  if (table.behind()) return absl::UnavailableError("cold rows are still being written; retry");
  const uint32_t slice = table.slice_of(partition);
  std::vector<uint64_t>& keys = scratch_.keys;
  std::vector<uint32_t>& numbers = scratch_.numbers;
  keys.clear();
  for (const uint32_t i : which) keys.push_back(rows.keys[i]);
  numbers.resize(keys.size());
  table.Expect(slice, rows.expected / core_.partitions.size());
  RowGrowth growth;
  growth.room = core_.log.rooms().RoomFor(core_.log.copies(partition));
  if (!table.FindOrCreate(slice, keys, numbers.data(), {}, RowStore::Fresh::kBlank, &growth)) {
    const CopyId copy = core_.log.rooms().Fullest(core_.log.copies(partition));
    if (growth.refused && core_.log.rooms().MayFit(copy, growth.bytes)) {
      return absl::UnavailableError("replicas lag behind; retry");
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("table ", table.id(), " \"", table.spec().name(), "\": no memory for rows",
                     growth.refused                ? " where their replicas are"
                     : core_.pool.refused_by_job() ? " within its job's limit"
                                                   : ""));
  }
  core_.log.rooms().Grow(core_.log.copies(partition), partition, table.id(), growth.bytes);
  const size_t dim = table.dim();
  const uint64_t restored_applies = state->restore->request().applies;
  std::vector<float> widened(dim);
  std::vector<const float*> arrays(rows.state.size());
  const auto parameters_of = [&](size_t i) {
    return rows.parameters.data() + i * dim * ElementBytes(rows.dtype);
  };
  for (size_t k = 0; k < which.size(); ++k) {
    const size_t i = which[k];
    if (k + kLoadAhead < which.size()) PrefetchToRead(parameters_of(which[k + kLoadAhead]));
    const std::byte* const from = parameters_of(i);
    const auto* parameters = reinterpret_cast<const float*>(from);
    if (rows.dtype != ElementType::kF32) {
      Widen(BestIsa(), rows.dtype, reinterpret_cast<const uint16_t*>(from), widened.data(), dim);
      parameters = widened.data();
    }
    for (size_t a = 0; a < arrays.size(); ++a) {
      arrays[a] = rows.state[a].data() + i * table.state_width();
    }
    const uint32_t uncounted = rows.state.empty() ? kAppliesOfNewState : 1;
    const uint32_t applies = rows.row_applies.empty() ? uncounted : rows.row_applies[i];
    if (!table.LoadRow(slice, numbers[k], applies, parameters, arrays, restored_applies)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("table ", table.id(), " \"", table.spec().name(), "\": no memory for rows"));
    }
  }
  core_.checkpoints.counters().restored_rows += which.size();
  if (ReplicateLoadedRows(partition, *state, slice, numbers)) return absl::OkStatus();
  return absl::UnavailableError("replicas lag behind; retry");
}

bool Restores::ReplicateLoaded(uint32_t partition, const TableState& state, uint32_t index) {
  if (core_.log.mode(partition) == ReplicaLog::Mode::kAlone ||
      !core_.log.Replicated(partition, state.table->id(), index)) {
    return true;
  }
  return core_.records.AddChunk(partition, state, index, state.restore->request().version,
                                /*for_learner=*/false) != 0;
}

bool Restores::ReplicateLoadedRows(uint32_t partition, const TableState& state, uint32_t slice,
                                   absl::Span<const uint32_t> rows) {
  return core_.log.mode(partition) == ReplicaLog::Mode::kAlone ||
         !core_.log.Replicated(partition, state.table->id()) ||
         core_.records.AddRows(partition, state, slice, rows, /*for_learner=*/false) != 0;
}

bool Restores::FinishLocalPartition(TableState* state, uint32_t slice) {
  const uint32_t p = state->table->life(slice).partition;
  const RestoreRequest& request = state->restore->request();
  const bool replicates =
      core_.log.mode(p) != ReplicaLog::Mode::kAlone && core_.log.Replicated(p, state->table->id());
  state->table->SetVersions(slice, request.version);
  if (const DenseTable* dense = state->dense.table.get()) {
    for (const uint32_t index : dense->slice(slice).chunks) {
      if (state->restore->appended(slice, dense->chunk(index).id)) continue;
      if (core_.records.BehindOnCopies(p) || !ReplicateLoaded(p, *state, index)) return false;
      state->restore->SetReplicated(slice, dense->chunk(index).id);
    }
  } else {
    // The table's kFresh may still be noted, and replicas take nothing before it.
    if (replicates && core_.records.BehindOnCopies(p) &&
        !VERBENA_FAILPOINT(shard, end_before_notes))
      return false;
    state->rows.table->SetVersion(slice, request.version, request.applies);
    if (replicates) {
      ReplicaLog::Append appended =
          core_.records.HeaderFor(ReplicaKind::kBeginPartition, p, *state);
      appended.header.version = request.version;
      appended.header.applies = request.applies;
      core_.log.Add(appended);
    }
  }
  state->restore->SetFinished(slice, replicates ? core_.log.last(p) : 0);
  return true;
}

// The view ends a restore after every shard has reported that everything is loaded. A slice that is
// not loaded here must not pass for loaded.
void Restores::End(TableState* state) {
  for (uint32_t s = 0; s < state->table->slices(); ++s) {
    if (!state->table->ready(s) || state->restore->finished(s)) continue;
    const PartitionInfo& p = core_.partitions[state->table->life(s).partition];
    // A shard that became the primary, by this view or before, had everything at the time of that
    // report.
    if (!p.ours || p.promoted || state->restore->inherited(s)) continue;
    // A table is reset only when it is served, which this shard may hear together with the reset.
    if (state->restore->reset(s)) continue;
    core_.LeaveLocalPartition(state, s, ReplyStatus::kDataLoss);
    state->table->Release(s, /*gone=*/true);
  }
  state->restore = nullptr;
  state->table->set_initialises(true);
}

}  // namespace verbena::shard
