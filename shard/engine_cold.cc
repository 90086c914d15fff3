// Rows that are not in memory: resumes requests that wait for them, and handles rows that are lost.
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard/engine_impl.h"

namespace verbena::shard {

void Engine::Impl::RunCold() {
  cold.Poll();
  for (const ColdIo::Failure& failure : cold.TakeFailures()) LoseRow(failure);
  if (cold.TakeNoMemory()) {
    for (auto& [id, state] : tables) {
      HotRows* const hot = state.rows.table == nullptr ? nullptr : state.rows.table->hot();
      if (hot != nullptr) hot->Advance();
    }
  }
  // A resumed request frees frames, which may resume further requests.
  while (cold.TakeWoken()) {
    RetryBlocked();
    for (auto& [id, state] : tables) {
      if (state.rows.table == nullptr || !state.rows.table->tiered()) continue;
      const RowConsistency& rules = *state.rows.consistency;
      state.rows.parking->RowsCame(
          [&](uint64_t worker, uint32_t slice, uint64_t min_version, Answer* answer) {
            return rules.Readable(worker, slice, min_version, answer);
          });
    }
  }
}

// No other content may replace the lost row, so its partition is lost, as after a server failure.
void Engine::Impl::LoseRow(const ColdIo::Failure& failure) {
  for (auto& [id, state] : tables) {
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
    cold_errors.emplace_back(why.message());
    for (auto& [checkpoint_id, save] : saves) {
      save->Abort(id, [&](uint32_t, const TableCheckpoint::LocalPartition& s) {
        return s.partition == partition ? why : absl::OkStatus();
      });
    }
    LeaveLocalPartition(&state, slice, ReplyStatus::kDataLoss);
    state.parking->FailLocalPartition(slice, ReplyStatus::kDataLoss);
    table->Release(slice, /*gone=*/true);
    state.marks.erase(partition);
    copies[partition].announced.erase(id);
    return;
  }
}

std::vector<std::string> Engine::TakeColdErrors() { return std::exchange(impl_->cold_errors, {}); }

absl::Status Engine::cold_health() const { return impl_->cold.health(); }

ColdCounters Engine::cold_counters() const {
  ColdCounters counters = impl_->cold.all_counters();
  for (const auto& [id, state] : impl_->tables) {
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
