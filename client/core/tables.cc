#include "client/core/tables.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/core/errors.h"
#include "client/core/failpoints.h"
#include "client/core/request_tracker.h"

namespace verbena::client {

TableState* Tables::FindTable(uint32_t id) {
  if (last_ != nullptr && last_->id() == id) return last_;
  const auto it = tables_.find(id);
  if (it != tables_.end()) {
    if (it->second->dropped) return nullptr;
    return last_ = it->second.get();
  }
  const v1::Table* info = tracker_.session->FindTable(id);
  const auto& partitions = tracker_.session->view().partitions();
  if (info == nullptr || partitions.empty()) return nullptr;
  auto table = std::make_unique<TableState>();
  table->Init(*info, static_cast<uint32_t>(partitions.size()));
  tracker_.failover.Route(table.get());
  // No other view may arrive, so partitions lost in this one must be known from the first call on.
  if (!VERBENA_FAILPOINT(client, learn_losses_late)) MarkLost(table.get());
  last_ = table.get();
  tables_[id] = std::move(table);
  tracker_.rails.Spread(*last_);
  tracker_.admissions.Begin(last_);
  return last_;
}

absl::Status Tables::CheckLost(const TableState& table, uint32_t first_chunk,
                               uint32_t chunks) const {
  const uint32_t count = std::min<uint32_t>(chunks, static_cast<uint32_t>(table.parts.size()));
  for (uint32_t c = first_chunk; c < first_chunk + count; ++c) {
    const uint32_t part = table.PartOf(c);
    if (table.parts[part].lost) return DataLossStatus(*tracker_.session, table, part);
  }
  return absl::OkStatus();
}

absl::Status Tables::CheckRowsLost(const TableState& table,
                                   absl::Span<const KeyPlan::Range> ranges) const {
  for (const KeyPlan::Range& range : ranges) {
    if (!table.parts[range.partition].lost) continue;
    return DataLossStatus(*tracker_.session, table, range.partition);
  }
  return absl::OkStatus();
}

// Whether its parts are elsewhere now.
bool Tables::FollowView(TableState* table) {
  if (table->dropped) return false;
  const v1::Table* info = tracker_.session->FindTable(table->id());
  if (info == nullptr) {
    DropTable(table, absl::NotFoundError("table '" + table->name() + "' was dropped"));
    return false;
  }
  table->info = *info;
  const bool moved = tracker_.failover.Route(table);
  if (moved) tracker_.failover.FollowMoved(table);
  MarkLost(table);
  return moved;
}

void Tables::OnView(const ViewDifference& what) {
  tracker_.ReadClock();
  bool moved = false, concerned = what.all || what.placement;
  if (!dropped_.empty()) ForgetDropped();
  if (concerned) {
    for (const auto& [id, table] : tables_) moved |= FollowView(table.get());
  } else {
    for (const uint32_t id : what.tables) {
      const auto it = tables_.find(id);
      if (it == tables_.end()) continue;
      concerned = true;
      moved |= FollowView(it->second.get());
    }
  }
  if (moved) tracker_.failover.LeaveOldLanes();
  tracker_.norms.FollowNormTables(what);
  tracker_.norms.Wake();
  if (!concerned) return;
  // Epochs have changed: records that waited for them may be posted.
  for (const auto& stream : tracker_.lanes->streams()) tracker_.queue.Touch(stream.get());
}

void Tables::DropQueued(TableState* table) {
  for (uint32_t p = 0; p < table->parts.size(); ++p) tracker_.commits.DropKept(table, p);
  tracker_.queue.Drop(table);
}

void Tables::DropAllQueued() {
  for (const auto& [id, table] : tables_) DropQueued(table.get());
}

void Tables::DropTable(TableState* table, const absl::Status& status) {
  if (table->dropped) return;
  table->dropped = true;
  dropped_.push_back(table->id());
  if (last_ == table) last_ = nullptr;
  for (Operation* operation = tracker_.operations->first_live(); operation != nullptr;) {
    Operation* next = Operations::next_live(operation);
    if (operation->table == table) tracker_.settlement.End(operation, status);
    operation = next;
  }
  DropQueued(table);
  table->residual.reset();  // it is as large as the table
  tracker_.norms.Wake();
}

bool Tables::Refers(const TableState& table) const {
  bool refers = table.entries > 0 || tracker_.norms.Refers(table);
  if (refers) return true;
  tracker_.operations->ForEach([&](const Operation& operation) {
    const bool used = operation.live || operation.buffers > 0 || !operation.entries.empty();
    refers |= used && operation.table == &table;
  });
  return refers;
}

// Otherwise a long-lived client would keep all dropped tables and check their lanes in every turn.
void Tables::ForgetDropped() {
  std::vector<uint32_t> kept;
  for (const uint32_t id : std::exchange(dropped_, {})) {
    const auto it = tables_.find(id);
    TableState* table = it->second.get();
    if (Refers(*table)) {
      kept.push_back(id);
      continue;
    }
    for (const auto& lane : table->lanes) std::erase(lane->stream->table_lanes, lane.get());
    tracker_.norms.Forget(table);
    tables_.erase(it);
  }
  dropped_ = std::move(kept);
  tracker_.norms.DropEmptyGroups();
}

bool Tables::Touches(const Operation& operation, uint32_t part) const {
  const auto waits = [&](const std::vector<Waiter>& waiters) {
    return std::any_of(waiters.begin(), waiters.end(), [&](const Waiter& waiter) {
      return waiter.operation.operation == &operation && waiter.operation.live();
    });
  };
  if (operation.commits > 0 &&
      (waits(operation.table->waiters) || waits(operation.table->parts[part].waiters))) {
    return true;
  }
  for (const PendingRequest* entry = operation.entries.front(); entry != nullptr;
       entry = entry->operation_links.next) {
    if (entry->parts.empty()
            ? entry->part == part
            : std::find(entry->parts.begin(), entry->parts.end(), part) != entry->parts.end()) {
      return true;
    }
  }
  return false;
}

void Tables::LosePart(TableState* table, uint32_t part) {
  if (!std::exchange(table->parts[part].lost, true)) ++table->lost_parts;
  tracker_.norms.Wake();
  for (Operation* operation = tracker_.operations->first_live(); operation != nullptr;) {
    Operation* next = Operations::next_live(operation);
    if (operation->table == table && Touches(*operation, part)) {
      tracker_.settlement.End(operation, DataLossStatus(*tracker_.session, *table, part));
    }
    operation = next;
  }
  tracker_.commits.DropKept(table, part);
}

void Tables::MarkLost(TableState* table) {
  const auto& lost = table->info.lost_partitions();
  if (lost.empty() && table->lost_parts == 0) return;
  for (uint32_t p = 0; p < table->parts.size(); ++p) {
    PartState& part = table->parts[p];
    if (std::find(lost.begin(), lost.end(), part.partition) != lost.end()) {
      LosePart(table, p);
    } else if (std::exchange(part.lost, false)) {
      --table->lost_parts;  // it was reset
    }
  }
}

}  // namespace verbena::client
