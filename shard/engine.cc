#include "shard/engine.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "shard/engine_core.h"

namespace verbena::shard {
namespace {

constexpr size_t kHotKeysReported = 10;
// A replica that found no memory is tried again after a lease or two.
constexpr uint32_t kMomentSeconds = 30;

// The step that all of the table that is this shard's has had.
uint64_t StepOf(const EngineCore& e, const PartitionedTable& table) {
  if (table.spec().consistency() != v1::CONSISTENCY_SYNC) return 0;
  uint64_t least = UINT64_MAX;
  for (uint32_t slice = 0; slice < table.slices(); ++slice) {
    if (!table.ready(slice) || !e.partitions[table.life(slice).partition].ours) continue;
    least = std::min(least, table.version(slice));
  }
  return least == UINT64_MAX ? 0 : least;
}

void FillOptimizer(const EngineCore& e, const PartitionedTable& table,
                   TableStatistics* statistics) {
  for (uint32_t s = 0; s < table.slices(); ++s) {
    if (!table.ready(s) || !e.partitions[table.life(s).partition].ours) continue;
    if (table.optimizer().Count(s) == 0) continue;
    uint64_t changes = 0;
    v1::Optimizer spec = table.optimizer().SpecAt(s, table.version(s), &changes);
    if (changes <= statistics->optimizer_changes) continue;
    statistics->optimizer_changes = changes;
    statistics->optimizer_from = table.optimizer().LastFrom(s);
    statistics->optimizer = std::move(spec);
  }
}

}  // namespace

bool Engine::TakeRoom() {
  core_->FollowRoom();
  return std::exchange(core_->room, false);
}

void Engine::SetSeconds(uint32_t seconds) {
  EngineCore& e = *core_;
  e.seconds = seconds;
  if (std::exchange(e.refusals_seen, e.sink.counters.memory_refusals) !=
      e.sink.counters.memory_refusals) {
    e.refused_seconds = seconds;
  }
  for (auto& [id, state] : core_->tables) {
    if (state.rows.table != nullptr) state.rows.table->SetSeconds(seconds);
  }
}

void Engine::Unpin(uint64_t pin) {
  if (core_->pool.Unpin(pin)) core_->RetryBlocked();
}

void Engine::ForgetLane(uint32_t lane) {
  EngineCore& e = *core_;
  const auto forget = [&](const Event& event) {
    if (event.token.lane != lane) return false;
    if (event.kind == Event::Kind::kPullReady) e.pool.Unpin(event.view.pin);
    return true;
  };
  std::vector<Event>& events = e.sink.events;
  events.erase(std::remove_if(events.begin(), events.end(), forget), events.end());
  for (auto& [id, state] : e.tables) {
    if (state.table == nullptr) continue;
    state.consistency->ForgetLane(lane);
    state.parking->ForgetLane(lane);
  }
  e.log.ForgetLane(lane);
  e.RetryBlocked();
}

void Engine::ReturnReads(uint32_t lane, absl::FunctionRef<bool(uint32_t)> which) {
  for (auto& [id, state] : core_->tables) {
    if (state.table != nullptr) state.parking->ReturnReads(lane, which);
  }
}

bool Engine::TakeEvents(std::vector<Event>* events) {
  if (core_->cold.has_store()) core_->cold_events.Run();
  core_->FollowRoom();
  core_->pool.FollowShortages();
  std::vector<Event>& pending = core_->sink.events;
  if (pending.empty()) return false;
  events->insert(events->end(), std::make_move_iterator(pending.begin()),
                 std::make_move_iterator(pending.end()));
  pending.clear();
  return true;
}

EngineCounters Engine::counters() const {
  const EngineCore& e = *core_;
  EngineCounters counters = e.sink.counters;
  counters.replica_log_bytes = e.log.bytes();
  counters.tables_placed = e.placement.placed();
  counters.tables_followed = e.placement.followed();
  counters.memory_refused =
      e.refused_seconds != 0 && e.seconds - e.refused_seconds <= kMomentSeconds;
  for (const auto& [id, state] : e.tables) {
    for (const auto& [partition, marks] : state.marks) {
      counters.replica_marks += marks.workers.size();
    }
  }
  for (uint32_t p = 0; p < e.partitions.size(); ++p) {
    counters.replica_log_partition_bytes =
        std::max(counters.replica_log_partition_bytes, e.log.bytes(p));
  }
  return counters;
}

std::vector<TableStatistics> Engine::tables() const {
  std::vector<TableStatistics> tables;
  for (const auto& [id, state] : core_->tables) {
    if (state.table == nullptr) continue;
    const PartitionedTable& table = *state.table;
    tables.push_back({id, table.spec().name(), table.parameter_bytes(), table.row_count(),
                      table.counters(), StepOf(*core_, table)});
    FillOptimizer(*core_, table, &tables.back());
    tables.back().restoring = state.restore != nullptr;
    tables.back().unserved = std::string(state.unserved.message());
    if (const EmbeddingTable* rows = state.rows.table.get()) {
      tables.back().hot_keys = rows->hot_keys().Top(kHotKeysReported);
      tables.back().sampled_keys = rows->hot_keys().sampled();
    }
  }
  return tables;
}

std::vector<JobStatistics> Engine::jobs() const { return core_->jobs.Statistics(); }

absl::Status Engine::ApplyView(const v1::ClusterView& view,
                               absl::Span<const v1::ViewChange> changes) {
  return core_->view.Apply(view, changes);
}
bool Engine::RetryStarved(const v1::ClusterView& view, absl::Status* applied) {
  return core_->view.RetryStarved(view, applied);
}
bool Engine::HasStarved() const { return core_->placement.HasStarved(); }

Replicas& Engine::replicas() { return core_->replicas; }
const Replicas& Engine::replicas() const { return core_->replicas; }
Proofs& Engine::proofs() { return core_->proofs; }
Copies& Engine::copies() { return core_->copies; }
const Copies& Engine::copies() const { return core_->copies; }
CopyReads& Engine::copy_reads() { return core_->copy_reads; }
Checkpoints& Engine::checkpoints() { return core_->checkpoints; }
const Checkpoints& Engine::checkpoints() const { return core_->checkpoints; }
Restores& Engine::restores() { return core_->restores; }
const Restores& Engine::restores() const { return core_->restores; }
ColdEvents& Engine::cold() { return core_->cold_events; }
const ColdEvents& Engine::cold() const { return core_->cold_events; }

Engine::Engine(EngineOptions options) : core_(std::make_unique<EngineCore>(std::move(options))) {}
Engine::~Engine() = default;

}  // namespace verbena::shard
