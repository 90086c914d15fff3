#include "shard/cold_events.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "shard/engine_core.h"

namespace verbena::shard {

void ColdEvents::Run() {
  core_.cold.Poll();
  for (const ColdIo::Failure& failure : core_.cold.TakeFailures()) LoseRow(failure);
  if (core_.cold.TakeNoMemory()) {
    for (auto& [id, state] : core_.tables) {
      HotRows* const hot = state.rows.table == nullptr ? nullptr : state.rows.table->hot();
      if (hot != nullptr) hot->Advance();
    }
  }
  // A resumed request frees frames, which may resume further requests.
  while (core_.cold.TakeWoken()) {
    core_.RetryBlocked();
    for (auto& [id, state] : core_.tables) {
      if (state.rows.table == nullptr || !state.rows.table->tiered()) continue;
      const RowConsistency& rules = *state.rows.consistency;
      state.rows.parking->RowsCame(
          [&](uint64_t worker, uint32_t slice, uint64_t min_version, Answer* answer) {
            return rules.Readable(worker, slice, min_version, answer);
          });
    }
  }
}

void ColdEvents::LoseRow(const ColdIo::Failure& failure) {
  for (auto& [id, state] : core_.tables) {
    EmbeddingTable* const table = state.rows.table.get();
    const uint32_t slice = table == nullptr || !table->tiered()
                               ? PartitionedTable::kNone
                               : table->LocalPartitionOfLife(failure.life);
    if (slice == PartitionedTable::kNone) continue;
    const uint32_t partition = table->life(slice).partition;
    const uint64_t key = table->rows(slice).key(failure.row);
    const absl::Status why = absl::DataLossError(absl::StrCat(
        "table ", id, " \"", table->spec().name(), "\", partition ", partition, ": the row of key ",
        key,
        " cannot be read back, so the partition is lost: ", std::string(failure.status.message())));
    errors_.emplace_back(why.message());
    core_.checkpoints.AbortPartition(id, partition, why);
    core_.LeaveLocalPartition(&state, slice, ReplyStatus::kDataLoss);
    state.parking->FailLocalPartition(slice, ReplyStatus::kDataLoss);
    table->Release(slice, /*gone=*/true);
    state.marks.erase(partition);
    core_.copies.ForgetTable(partition, id);
    return;
  }
}

std::vector<std::string> ColdEvents::TakeErrors() { return std::exchange(errors_, {}); }

absl::Status ColdEvents::health() const { return core_.cold.health(); }

ColdCounters ColdEvents::counters() const {
  ColdCounters counters = core_.cold.all_counters();
  for (const auto& [id, state] : core_.tables) {
    const HotRows* const hot = state.rows.table == nullptr ? nullptr : state.rows.table->hot();
    if (hot == nullptr) continue;
    counters.hot_rows += hot->hot_rows();
    counters.hot_bytes += hot->bytes();
    counters.hot_limit_bytes += hot->limit_bytes();
    counters.waiting += hot->waiting();
  }
  return counters;
}

}  // namespace verbena::shard
