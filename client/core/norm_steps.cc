#include "client/core/norm_steps.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/errors.h"
#include "client/core/failpoints.h"
#include "client/core/request_tracker.h"
#include "proto/spec/optimizer_spec.h"

namespace verbena::client {
namespace {

using Part = NormTable::Part;

// Maximum size of one record's partial norms, unless one partition has more.
constexpr uint32_t kMaxNormBytes = 1 << 20;

// The lowest commit of the parts that are not lost; UINT64_MAX if all are lost.
uint64_t LeastCommitted(const TableState& table) {
  if (table.lost_parts == 0) return table.committed;
  uint64_t least = UINT64_MAX;
  for (const PartState& part : table.parts) {
    if (!part.lost) least = std::min(least, part.committed);
  }
  return least;
}

bool ById(const TableState* a, const TableState* b) { return a->id() < b->id(); }

}  // namespace

// ---- groups -------------------------------------------------------------------------------------

// A table that is being restored has no steps.
bool NormSteps::HasNorms(const v1::Table& table) const {
  return !table.restoring() && NeedsStepNorms(table.spec().optimizer()) &&
         table.spec().job() == tracker_.session->options().job;
}

void NormSteps::FollowNormTables(const ViewDifference& what) {
  stale_ |= what.all || what.placement;
  for (const uint32_t id : what.tables) {
    if (stale_) return;
    const v1::Table* table = tracker_.session->FindTable(id);
    stale_ = tables_.contains(id) || (table != nullptr && HasNorms(*table));
  }
}

// Updates the groups from the view: all clipped tables of the job form one group, and each table
// with a trust ratio forms another.
void NormSteps::FindNormGroups() {
  if (!stale_) return;
  stale_ = false;
  if (groups_.empty()) groups_.push_back(std::make_unique<NormGroup>());
  groups_[0]->tables.clear();
  tables_.clear();
  for (const v1::Table& info : tracker_.session->view().tables()) {
    if (!HasNorms(info)) continue;
    tables_.insert(info.id());
    TableState* table = tracker_.tables.FindTable(info.id());
    if (table == nullptr) continue;
    if (table->clipped) groups_[0]->tables.push_back(table);
    const bool known = std::any_of(groups_.begin() + 1, groups_.end(),
                                   [&](const auto& group) { return group->tables[0] == table; });
    if (!table->trust || known) continue;
    NormGroup& group = *groups_.emplace_back(std::make_unique<NormGroup>());
    group.kind = NormKind::kTrust;
    group.tables.push_back(table);
  }
  std::sort(groups_[0]->tables.begin(), groups_[0]->tables.end(), ById);
}

// The tables that take part now. A table that was created after other tables had steps does not
// take part (its steps are refused too): the step in progress continues without it.
std::vector<TableState*> NormSteps::NormTables(const NormGroup& group) {
  uint64_t newest = 0;
  for (const TableState* table : group.tables) {
    if (!table->dropped) newest = std::max(newest, table->step);
  }
  std::vector<TableState*> tables;
  for (TableState* table : group.tables) {
    if (!table->dropped && table->step + 1 >= newest) tables.push_back(table);
  }
  return tables;
}

absl::Status NormSteps::CheckNormStep(absl::string_view call, const TableState& table) {
  if (!table.clipped) return absl::OkStatus();
  FindNormGroups();
  for (const TableState* other : groups_[0]->tables) {
    if (other->dropped || other == &table) continue;
    if (other->step == table.step || other->step == table.step + 1) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        call, ": table '", table.name(), "' is at step ", table.step, " and table '", other->name(),
        "' at step ", other->step,
        " of this worker: one clip_global_norm spans all tables of job '", table.info.spec().job(),
        "' that set it, so a step ends on each of them before the next ends on any. Create them "
        "all before the first step; drop one that was created later"));
  }
  return absl::OkStatus();
}

absl::Status NormSteps::WithNormHint(const Operation& operation, absl::Status status) {
  const TableState& table = *operation.table;
  if (!table.clipped || status.code() != absl::StatusCode::kDeadlineExceeded) return status;
  if (groups_.empty() || table.step <= operation.step) return status;
  for (const TableState* other : groups_[0]->tables) {
    if (other->dropped || other->step > operation.step) continue;
    return absl::DeadlineExceededError(
        absl::StrCat(status.message(), "; the norm of step ", operation.step, " also spans table '",
                     other->name(), "', on which this worker has not ended it"));
  }
  return status;
}

bool NormSteps::Refers(const TableState& table) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const auto& group) {
    return group->active != nullptr && group->active->Find(&table) != nullptr;
  });
}

void NormSteps::Forget(const TableState* table) {
  for (const auto& group : groups_) std::erase(group->tables, table);
}

void NormSteps::DropEmptyGroups() {
  // The first group has all clipped tables; the others have one table each.
  for (size_t i = groups_.size(); i-- > 1;) {
    if (!groups_[i]->tables.empty()) continue;
    groups_.erase(groups_.begin() + static_cast<ptrdiff_t>(i));
  }
}

bool NormSteps::any() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return !group->tables.empty(); });
}

void NormSteps::Over(const NormStep* step) {
  for (const auto& group : groups_) {
    if (group->active.get() == step) EndNormStep(group.get(), /*over=*/true);
  }
}

// ---- steps --------------------------------------------------------------------------------------

void NormSteps::RunNorms() {
  due_ = false;
  if (tracker_.closed) return;
  FindNormGroups();
  for (const auto& group : groups_) RunNormGroup(group.get(), NormTables(*group));
}

void NormSteps::RunNormGroup(NormGroup* group, const std::vector<TableState*>& tables) {
  FollowTables(group, tables);
  while (true) {
    if (NormStep* active = group->active.get()) {
      const bool same =
          std::equal(tables.begin(), tables.end(), active->tables.begin(), active->tables.end(),
                     [](const TableState* a, const auto& b) { return a == b.table; });
      // Another worker's totals may have arrived first.
      const bool over = std::all_of(tables.begin(), tables.end(), [&](const TableState* table) {
        return table->committed > active->step;
      });
      if (same && !over && KeepsTotals(*active)) {
        due_ |= group->next <= active->step;
        group->next = std::max(group->next, active->step + 1);
        return;
      }
      if (!same || over || active->PhaseDone()) {
        if (same && !over && !active->telling) {
          active->Sum();
        } else {
          EndNormStep(group, /*over=*/same);
        }
      }
    }
    if (group->active == nullptr) {
      uint64_t step = 0;
      if (!MayStart(*group, tables, &step)) return;
      group->active = std::make_unique<NormStep>(++steps_, group->kind, step, tables);
    }
    IssueNorms(group->active.get());
    if (!group->active->PhaseDone()) return;
  }
}

// A step that is over is over only for the tables that took part in it: the steps of a new table
// are still to come.
void NormSteps::FollowTables(NormGroup* group, const std::vector<TableState*>& tables) {
  std::vector<uint32_t> ids;
  for (const TableState* table : tables) {
    ids.push_back(table->id());
    const bool took_part =
        std::binary_search(group->took_part.begin(), group->took_part.end(), table->id());
    const uint64_t committed = took_part ? group->next : LeastCommitted(*table);
    if (committed < group->next && !VERBENA_FAILPOINT(client, keep_norm_steps))
      group->next = committed;
  }
  group->took_part = std::move(ids);
}

// The open step, after this worker has ended it on all tables.
bool NormSteps::MayStart(const NormGroup& group, const std::vector<TableState*>& tables,
                         uint64_t* step) const {
  uint64_t least = UINT64_MAX;
  for (const TableState* table : tables) least = std::min(least, LeastCommitted(*table));
  // The totals were sent, but the commit is not known yet.
  if (least == UINT64_MAX || least < group.next) return false;
  for (const TableState* table : tables) {
    if (table->step <= least) return false;
    // The norm of a clipped gradient's update is known only after the gradient's total norm was
    // sent.
    if (group.kind == NormKind::kTrust && table->clipped && groups_[0]->next <= least) {
      return false;
    }
  }
  *step = least;
  return true;
}

void NormSteps::EndNormStep(NormGroup* group, bool over) {
  if (over) group->next = std::max(group->next, group->active->step + 1);
  group->active.reset();
  due_ = true;
  // Removes its queued records.
  for (const auto& stream : tracker_.lanes->streams()) {
    if (!stream->norms.empty()) tracker_.queue.Touch(stream.get());
  }
}

bool NormSteps::KeepsTotals(const NormStep& step) {
  return step.telling && step.PhaseDone() &&
         std::any_of(step.tables.begin(), step.tables.end(),
                     [](const NormTable& t) { return t.table->copies; }) &&
         !std::all_of(step.tables.begin(), step.tables.end(),
                      [&](const NormTable& t) { return LeastCommitted(*t.table) > step.step; });
}

// A new server has no state of the open step. It gets the same totals after it has computed its
// partial norms again: others may have committed with these totals and dropped their own.
void NormSteps::RestartNorms(const TableState& table) {
  const uint64_t revision = tracker_.session->view().revision();
  for (const auto& group : groups_) {
    if (std::find(group->tables.begin(), group->tables.end(), &table) == group->tables.end()) {
      continue;
    }
    due_ = true;
    NormStep* active = group->active.get();
    if (active == nullptr) {
      // Another worker's totals had arrived first; now they may be requested again.
      group->next = std::min(group->next, table.committed);
      continue;
    }
    NormTable* t = active->Find(&table);
    // Partial norms from the old primary are valid for the new one, because they come from the same
    // pushes.
    if (t == nullptr || !active->telling) continue;
    for (uint32_t p = 0; p < t->parts.size(); ++p) {
      if (table.parts[p].moved == revision && t->parts[p] == Part::kDone) t->Set(p, Part::kTodo);
    }
  }
}

// Creates records for parts to request or send, one for each lane if they fit.
void NormSteps::IssueNorms(NormStep* step) {
  RequestHandler* const handler = step->telling
                                      ? static_cast<RequestHandler*>(&tracker_.requests.totals)
                                      : &tracker_.requests.norms;
  std::vector<std::pair<Stream*, PendingRequest*>> open;
  for (NormTable& t : step->tables) {
    open.clear();
    for (uint32_t p = 0; p < t.parts.size() && t.left > 0; ++p) {
      if (t.parts[p] != Part::kTodo) continue;
      const PartState& part = t.table->parts[p];
      if (part.lost) {
        t.Set(p, Part::kDone);
        continue;
      }
      const uint32_t bytes = step->telling ? 0 : step->BytesOf(*t.table, p);
      auto it = std::find_if(open.begin(), open.end(),
                             [&](const auto& o) { return o.first == part.stream; });
      if (it == open.end()) it = open.insert(open.end(), {part.stream, nullptr});
      PendingRequest*& entry = it->second;
      if (entry != nullptr && (entry->parts.size() == kMaxGroups ||
                               entry->elements * sizeof(float) + bytes > kMaxNormBytes)) {
        EnqueueNorms(std::exchange(entry, nullptr));
      }
      if (entry == nullptr) {
        entry = tracker_.entries.NewRequest(handler, t.table, nullptr);
        entry->step = step->step;
        entry->norm = step->id;
        entry->norm_kind = step->kind;
      }
      entry->parts.push_back(p);
      entry->elements += bytes / sizeof(float);
      t.Set(p, Part::kOut);
    }
    for (const auto& [stream, entry] : open) EnqueueNorms(entry);
  }
}

// ---- records ------------------------------------------------------------------------------------

void NormSteps::EnqueueNorms(PendingRequest* entry) {
  Stream* stream = entry->table->parts[entry->parts[0]].stream;
  entry->state = PendingRequest::State::kQueued;
  entry->stream = stream;
  stream->norms.PushBack(entry);
  tracker_.queue.Touch(stream);
  tracker_.lanes->Want(stream);
}

// Null: that step is over, or was restarted.
NormStep* NormSteps::NormStepOf(const PendingRequest& entry) const {
  for (const auto& group : groups_) {
    if (group->active != nullptr && group->active->id == entry.norm) return group->active.get();
  }
  return nullptr;
}

void NormSteps::ReturnNorms(PendingRequest* entry) {
  if (NormStep* step = NormStepOf(*entry)) {
    NormTable* t = step->Find(entry->table);
    for (const uint32_t p : entry->parts) t->Set(p, Part::kTodo);
  }
  due_ = true;
  tracker_.entries.Free(entry);
}

bool NormSteps::PumpNorms(Stream* stream) {
  bool worked = false;
  for (PendingRequest* entry = stream->norms.front(); entry != nullptr && stream->open();) {
    PendingRequest* next = PendingRequestQueue::Next(entry);
    if (NormStepOf(*entry) == nullptr) {
      stream->norms.Remove(entry);
      tracker_.entries.Free(entry);
      worked = true;
    } else {
      worked |= entry->handler->Post(stream, entry);
    }
    entry = next;
  }
  return worked;
}

}  // namespace verbena::client
