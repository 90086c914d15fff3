// Norms over several chunks: the first phase of a step that commits in two phases.
#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/errors.h"
#include "client/core/journal.h"
#include "client/core/planted_bugs.h"
#include "proto/optimizer_spec.h"

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
bool Journal::HasNorms(const v1::Table& table) const {
  return !table.restoring() && NeedsStepNorms(table.spec().optimizer()) &&
         table.spec().job() == session_->options().job;
}

void Journal::FollowNormTables(const ViewDifference& what) {
  norm_groups_stale_ |= what.all || what.placement;
  for (const uint32_t id : what.tables) {
    if (norm_groups_stale_) return;
    const v1::Table* table = session_->FindTable(id);
    norm_groups_stale_ = norm_tables_.contains(id) || (table != nullptr && HasNorms(*table));
  }
}

// Updates the groups from the view: all clipped tables of the job form one group, and each table
// with a trust ratio forms another.
void Journal::FindNormGroups() {
  if (!norm_groups_stale_) return;
  norm_groups_stale_ = false;
  if (norm_groups_.empty()) norm_groups_.push_back(std::make_unique<NormGroup>());
  norm_groups_[0]->tables.clear();
  norm_tables_.clear();
  for (const v1::Table& info : session_->view().tables()) {
    if (!HasNorms(info)) continue;
    norm_tables_.insert(info.id());
    TableState* table = FindTable(info.id());
    if (table == nullptr) continue;
    if (table->clipped) norm_groups_[0]->tables.push_back(table);
    const bool known = std::any_of(norm_groups_.begin() + 1, norm_groups_.end(),
                                   [&](const auto& group) { return group->tables[0] == table; });
    if (!table->trust || known) continue;
    NormGroup& group = *norm_groups_.emplace_back(std::make_unique<NormGroup>());
    group.kind = NormKind::kTrust;
    group.tables.push_back(table);
  }
  std::sort(norm_groups_[0]->tables.begin(), norm_groups_[0]->tables.end(), ById);
}

// The tables that take part now. A table that was created after other tables had steps does not
// take part (its steps are refused too): the step in progress continues without it.
std::vector<TableState*> Journal::NormTables(const NormGroup& group) {
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

absl::Status Journal::CheckNormStep(absl::string_view call, const TableState& table) {
  if (!table.clipped) return absl::OkStatus();
  FindNormGroups();
  for (const TableState* other : norm_groups_[0]->tables) {
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

absl::Status Journal::WithNormHint(const Operation& operation, absl::Status status) {
  const TableState& table = *operation.table;
  if (!table.clipped || status.code() != absl::StatusCode::kDeadlineExceeded) return status;
  if (norm_groups_.empty() || table.step <= operation.step) return status;
  for (const TableState* other : norm_groups_[0]->tables) {
    if (other->dropped || other->step > operation.step) continue;
    return absl::DeadlineExceededError(
        absl::StrCat(status.message(), "; the norm of step ", operation.step, " also spans table '",
                     other->name(), "', on which this worker has not ended it"));
  }
  return status;
}

// ---- steps --------------------------------------------------------------------------------------

void Journal::RunNorms() {
  norms_dirty_ = false;
  if (closed_) return;
  FindNormGroups();
  for (const auto& group : norm_groups_) RunNormGroup(group.get(), NormTables(*group));
}

void Journal::RunNormGroup(NormGroup* group, const std::vector<TableState*>& tables) {
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
        norms_dirty_ |= group->next <= active->step;
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
      group->active = std::make_unique<NormStep>(++norm_steps_, group->kind, step, tables);
    }
    IssueNorms(group->active.get());
    if (!group->active->PhaseDone()) return;
  }
}

// A step that is over is over only for the tables that took part in it: the steps of a new table
// are still to come.
void Journal::FollowTables(NormGroup* group, const std::vector<TableState*>& tables) {
  std::vector<uint32_t> ids;
  for (const TableState* table : tables) {
    ids.push_back(table->id());
    const bool took_part =
        std::binary_search(group->took_part.begin(), group->took_part.end(), table->id());
    const uint64_t committed = took_part ? group->next : LeastCommitted(*table);
    if (committed < group->next && !planted_bugs().keep_norm_steps) group->next = committed;
  }
  group->took_part = std::move(ids);
}

// The open step, after this worker has ended it on all tables.
bool Journal::MayStart(const NormGroup& group, const std::vector<TableState*>& tables,
                       uint64_t* step) const {
  uint64_t least = UINT64_MAX;
  for (const TableState* table : tables) least = std::min(least, LeastCommitted(*table));
  // The totals were sent, but the commit is not known yet.
  if (least == UINT64_MAX || least < group.next) return false;
  for (const TableState* table : tables) {
    if (table->step <= least) return false;
    // The norm of a clipped gradient's update is known only after the gradient's total norm was
    // sent.
    if (group.kind == NormKind::kTrust && table->clipped && norm_groups_[0]->next <= least) {
      return false;
    }
  }
  *step = least;
  return true;
}

void Journal::EndNormStep(NormGroup* group, bool over) {
  if (over) group->next = std::max(group->next, group->active->step + 1);
  group->active.reset();
  norms_dirty_ = true;
  // Removes its queued records.
  for (const auto& stream : lanes_->streams()) {
    if (!stream->norms.empty()) Touch(stream.get());
  }
}

bool Journal::KeepsTotals(const NormStep& step) {
  return step.telling && step.PhaseDone() &&
         std::any_of(step.tables.begin(), step.tables.end(),
                     [](const NormTable& t) { return t.table->copies; }) &&
         !std::all_of(step.tables.begin(), step.tables.end(),
                      [&](const NormTable& t) { return LeastCommitted(*t.table) > step.step; });
}

// A new server has no state of the open step. It gets the same totals after it has computed its
// partial norms again: others may have committed with these totals and dropped their own.
void Journal::RestartNorms(const TableState& table) {
  const uint64_t revision = session_->view().revision();
  for (const auto& group : norm_groups_) {
    if (std::find(group->tables.begin(), group->tables.end(), &table) == group->tables.end()) {
      continue;
    }
    norms_dirty_ = true;
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
void Journal::IssueNorms(NormStep* step) {
  const RecordType type = step->telling ? RecordType::kTotals : RecordType::kNorms;
  std::vector<std::pair<Stream*, Entry*>> open;
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
      Entry*& entry = it->second;
      if (entry != nullptr && (entry->parts.size() == kMaxGroups ||
                               entry->elements * sizeof(float) + bytes > kMaxNormBytes)) {
        EnqueueNorms(std::exchange(entry, nullptr));
      }
      if (entry == nullptr) {
        entry = NewEntry(type, t.table, nullptr);
        entry->step = step->step;
        entry->norm = step->id;
        entry->chunk = static_cast<uint32_t>(step->kind);
      }
      entry->parts.push_back(p);
      entry->elements += bytes / sizeof(float);
      t.Set(p, Part::kOut);
    }
    for (const auto& [stream, entry] : open) EnqueueNorms(entry);
  }
}

void Journal::EnqueueNorms(Entry* entry) {
  Stream* stream = entry->table->parts[entry->parts[0]].stream;
  entry->state = Entry::State::kQueued;
  entry->stream = stream;
  stream->norms.PushBack(entry);
  Touch(stream);
  lanes_->Want(stream);
}

// Null: that step is over, or was restarted.
NormStep* Journal::NormStepOf(const Entry& entry) const {
  for (const auto& group : norm_groups_) {
    if (group->active != nullptr && group->active->id == entry.norm) return group->active.get();
  }
  return nullptr;
}

void Journal::ReturnNorms(Entry* entry) {
  if (NormStep* step = NormStepOf(*entry)) {
    NormTable* t = step->Find(entry->table);
    for (const uint32_t p : entry->parts) t->Set(p, Part::kTodo);
  }
  norms_dirty_ = true;
  Free(entry);
}

// ---- posting ------------------------------------------------------------------------------------

bool Journal::PumpNorms(Stream* stream) {
  bool worked = false;
  for (Entry* entry = stream->norms.front(); entry != nullptr && stream->open();) {
    Entry* next = EntryQueue::Next(entry);
    if (NormStepOf(*entry) == nullptr) {
      stream->norms.Remove(entry);
      Free(entry);
      worked = true;
    } else {
      worked |= Post(stream, entry);
    }
    entry = next;
  }
  return worked;
}

void Journal::NormGroups(const Entry& entry) {
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    const PartState& part = entry.table->parts[entry.parts[i]];
    groups_[i] = {part.partition, entry.chunk, part.epoch, entry.step, 0, 0};
  }
}

bool Journal::PostNorms(Stream* stream, Entry* entry) {
  if (!Fits(stream, entry, 0)) return false;
  if (entry->staging == nullptr) {
    Staging::Buffer buffer;
    const auto bytes = static_cast<uint32_t>(entry->elements * sizeof(float));
    const absl::Status status = norm_staging_.Take(bytes, &buffer);
    if (!status.ok() || buffer.data == nullptr) {
      stream->stalled = true;
      return false;
    }
    entry->staging = buffer.data;
    entry->staging_bytes = bytes;
  }
  const std::shared_ptr<rdma::MemoryBlock> block = norm_staging_.BlockOf(entry->staging);
  const auto remote = lanes_->memory().Expose(stream, block);
  if (!remote.ok()) {
    stream->norms.Remove(entry);
    RetryPull(stream, entry, ReplyStatus::kResourceExhausted);
    return false;
  }
  NormGroups(*entry);
  rdma::WorkerLane::Request request;
  request.header.type = RecordType::kNorms;
  request.header.dtype = ElementType::kNone;
  request.header.destination =
      remote->address + static_cast<uint64_t>(entry->staging - block->data());
  request.header.destination_key = remote->key;
  request.groups = absl::MakeConstSpan(groups_.data(), entry->parts.size());
  if (!Send(stream, entry, &request)) return false;
  ++stream->awaits_out;  // the server may defer it
  return true;
}

bool Journal::PostTotals(Stream* stream, Entry* entry) {
  if (!Fits(stream, entry, 0)) return false;
  const NormStep* step = NormStepOf(*entry);
  NormGroups(*entry);
  rdma::WorkerLane::Request request;
  request.header.type = RecordType::kTotals;
  request.header.dtype = ElementType::kNone;
  request.header.destination = std::bit_cast<uint64_t>(step->totals[0]);
  request.header.destination_key = std::bit_cast<uint64_t>(step->totals[1]);
  request.groups = absl::MakeConstSpan(groups_.data(), entry->parts.size());
  return Send(stream, entry, &request);
}

// ---- answers ------------------------------------------------------------------------------------

// True: the refusal of a part ended more than this record.
bool Journal::OnFatalNorms(Entry* entry, const Reply& reply) {
  const std::vector<uint32_t> parts = entry->parts;
  bool fatal = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ReplyStatus status = GroupStatus(*entry, reply, i);
    if (Accepted(status) || Retryable(status)) continue;
    fatal |= OnFatal(entry, parts[i], status);
  }
  return fatal;
}

void Journal::OnNormsAnswer(Stream* stream, Entry* entry, const Reply& reply) {
  norms_dirty_ = true;
  NormStep* step = NormStepOf(*entry);
  if (step == nullptr) return Settled(entry);
  const ReplyStatus status = GroupStatus(*entry, reply, 0);
  if (status == ReplyStatus::kDuplicate) {
    // These totals are no longer needed.
    for (const auto& group : norm_groups_) {
      if (group->active.get() == step) EndNormStep(group.get(), /*over=*/true);
    }
    return Settled(entry);
  }
  if (reply.status == ReplyStatus::kOk) {
    step->Take(step->Find(entry->table), entry->parts, entry->staging);
    return Settled(entry);
  }
  if (OnFatalNorms(entry, reply)) return ReturnNorms(entry);
  RetryPull(stream, entry, reply.status);
}

void Journal::OnTotalsAnswer(Stream* stream, Entry* entry, const Reply& reply) {
  norms_dirty_ = true;
  if (NormStepOf(*entry) == nullptr) return Settled(entry);
  const bool fatal = OnFatalNorms(entry, reply);
  NormStep* step = NormStepOf(*entry);
  if (step == nullptr) return Settled(entry);
  NormTable* t = step->Find(entry->table);
  ReplyStatus refused = ReplyStatus::kOk;
  entry->KeepGroups([&](size_t i) {
    const ReplyStatus status = GroupStatus(*entry, reply, i);
    if (Accepted(status)) {
      t->Set(entry->parts[i], Part::kDone);
      return false;
    }
    refused = status;
    return true;
  });
  if (entry->parts.empty()) return Settled(entry);
  if (fatal) return ReturnNorms(entry);
  RetryPull(stream, entry, refused);
}

}  // namespace verbena::client
