#include "shard/engine.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "shard/engine_impl.h"

namespace verbena::shard {
namespace {

constexpr size_t kHotKeysReported = 10;
// A replica that found no memory is tried again after a lease or two.
constexpr uint32_t kMomentSeconds = 30;

}  // namespace

Engine::Impl::Impl(EngineOptions o)
    : options(std::move(o)),
      pool(options.allocator != nullptr ? options.allocator : &heap, options.spare_buffers,
           &sink.counters.resident_bytes),
      cold(options.cold_store),
      log(&pool, &sink, options.replica_log) {
  sink.log = &log;
  if (options.commit_observer) {
    sink.commit_observer = [this](const Commit& commit) { Observe(commit); };
  }
  group_status.reserve(kMaxGroups);
  await_slices.reserve(kMaxGroups);
}

// Buffers of incomplete records go back to the pool, like those of tables and the log.
Engine::Impl::~Impl() {
  for (uint32_t p = 0; p < copies.size(); ++p) ForgetCopy(p);
}

void Engine::Impl::Observe(Commit commit) const {
  const DenseTable* dense = tables.at(commit.table).dense.table.get();
  const uint32_t partition = dense != nullptr ? dense->partition_of(commit.chunk) : commit.chunk;
  commit.server = options.server;
  commit.epoch = partitions[partition].ours ? partitions[partition].epoch : 0;
  options.commit_observer(commit);
}

void Engine::Impl::RetryBlocked() {
  if (sink.blocked == 0) return;
  for (auto& [id, state] : tables) {
    if (state.consistency != nullptr) state.consistency->Retry();
  }
}

void Engine::Impl::FollowRoom() {
  if (!log.TakeRoom()) return;
  room = true;
  RetryBlocked();
}

bool Engine::TakeRoom() {
  impl_->FollowRoom();
  return std::exchange(impl_->room, false);
}

void Engine::SetSeconds(uint32_t seconds) {
  Impl& e = *impl_;
  e.seconds = seconds;
  if (std::exchange(e.refusals_seen, e.sink.counters.memory_refusals) !=
      e.sink.counters.memory_refusals) {
    e.refused_seconds = seconds;
  }
  for (auto& [id, state] : impl_->tables) {
    if (state.rows.table != nullptr) state.rows.table->SetSeconds(seconds);
  }
}

void Engine::Unpin(uint64_t pin) {
  if (impl_->pool.Unpin(pin)) impl_->RetryBlocked();
}

void Engine::ForgetLane(uint32_t lane) {
  Impl& e = *impl_;
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
  for (auto& [id, state] : impl_->tables) {
    if (state.table != nullptr) state.parking->ReturnReads(lane, which);
  }
}

bool Engine::TakeEvents(std::vector<Event>* events) {
  if (impl_->cold.has_store()) impl_->RunCold();
  impl_->FollowRoom();
  impl_->pool.FollowShortages();
  std::vector<Event>& pending = impl_->sink.events;
  if (pending.empty()) return false;
  events->insert(events->end(), std::make_move_iterator(pending.begin()),
                 std::make_move_iterator(pending.end()));
  pending.clear();
  return true;
}

EngineCounters Engine::counters() const {
  const Impl& e = *impl_;
  EngineCounters counters = e.sink.counters;
  counters.replica_log_bytes = e.log.bytes();
  counters.tables_placed = e.tables_placed;
  counters.tables_followed = e.tables_followed;
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

uint64_t Engine::Impl::StepOf(const PartitionedTable& table) const {
  if (table.spec().consistency() != v1::CONSISTENCY_SYNC) return 0;
  uint64_t least = UINT64_MAX;
  for (uint32_t slice = 0; slice < table.slices(); ++slice) {
    if (!table.ready(slice) || !partitions[table.life(slice).partition].ours) continue;
    least = std::min(least, table.version(slice));
  }
  return least == UINT64_MAX ? 0 : least;
}

std::vector<TableStatistics> Engine::tables() const {
  std::vector<TableStatistics> tables;
  for (const auto& [id, state] : impl_->tables) {
    if (state.table == nullptr) continue;
    const PartitionedTable& table = *state.table;
    tables.push_back({id, table.spec().name(), table.parameter_bytes(), table.row_count(),
                      table.counters(), impl_->StepOf(table)});
    impl_->FillOptimizer(state, &tables.back());
    tables.back().restoring = state.restore != nullptr;
    tables.back().unserved = std::string(state.unserved.message());
    if (const EmbeddingTable* rows = state.rows.table.get()) {
      tables.back().hot_keys = rows->hot_keys().Top(kHotKeysReported);
      tables.back().sampled_keys = rows->hot_keys().sampled();
    }
  }
  return tables;
}

std::vector<JobStatistics> Engine::jobs() const {
  std::vector<JobStatistics> jobs;
  for (const auto& [name, account] : impl_->accounts) {
    jobs.push_back({name, account.bytes(), account.job().limit()});
  }
  return jobs;
}

Engine::Engine(EngineOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Engine::~Engine() = default;

}  // namespace verbena::shard
