// Requests about rows of embedding tables.
#include <algorithm>

#include "shard/codec/codec.h"
#include "shard/engine_core.h"
#include "shard/table/row_lookahead.h"

namespace verbena::shard {
namespace {

// So many keys of a group are prefetched during the previous group; the rest when its turn comes.
constexpr uint32_t kAheadOfGroup = 64;

bool Aligned(absl::Span<const std::byte> rows) {
  return reinterpret_cast<uintptr_t>(rows.data()) % alignof(float) == 0;
}

ReplyStatus CheckPush(const PushRowsRequest& request, const EmbeddingTable& table, uint64_t keys) {
  // A push without keys settles one that was given up, whatever its data type.
  const ElementType type = request.assigns ? ElementType::kF32 : table.push_type();
  if (keys != request.keys.size() || (keys > 0 && request.dtype != type)) {
    return ReplyStatus::kMalformed;
  }
  if (!Aligned(request.rows) ||
      request.rows.size() != keys * RowBytes(request.dtype, table.dim())) {
    return ReplyStatus::kMalformed;
  }
  return keys > kMaxRowsBytes / table.row_bytes() ? ReplyStatus::kOutOfRange : ReplyStatus::kOk;
}

// Limits of a lookup. For bags, the number of keys bounds the work and the number of bags the
// memory.
ReplyStatus CheckLookup(const LookupRequest& request, const EmbeddingTable& table, uint64_t keys) {
  const Bags& bags = request.bags;
  const uint64_t row_bytes = table.row_bytes();
  if (request.dtype != (bags.count == 0 ? table.pull_type() : ElementType::kF32)) {
    return ReplyStatus::kMalformed;
  }
  if (request.keys.empty() || keys != request.keys.size()) return ReplyStatus::kMalformed;
  if (bags.uses.size() != (bags.count == 0 ? 0 : keys)) return ReplyStatus::kMalformed;
  const uint64_t vectors = bags.count == 0 ? keys : bags.count;
  if (vectors > kMaxRowsBytes / row_bytes) return ReplyStatus::kOutOfRange;
  if (bags.uses.size() > kMaxBagUses) return ReplyStatus::kOutOfRange;
  const bool inside = std::all_of(bags.uses.begin(), bags.uses.end(),
                                  [&](const BagUse& use) { return use.bag < bags.count; });
  return inside ? ReplyStatus::kOk : ReplyStatus::kOutOfRange;
}

uint64_t KeysOf(absl::Span<const Group> groups) {
  uint64_t keys = 0;
  for (const Group& g : groups) keys += g.count;
  return keys;
}

// Adds the keys of those groups that are served here, which will be looked for in turn.
void LookAhead(const EngineCore& e, const TableState& state, absl::Span<const Group> groups,
               absl::Span<const uint64_t> keys, RowLookahead* ahead) {
  for (const Group& group : groups) {
    uint32_t slice = PartitionedTable::kNone;
    const bool ours = e.FindLocalPartition(state, group, &slice) == ReplyStatus::kOk;
    if (ours && slice != PartitionedTable::kNone) {
      ahead->Add(&state.rows.table->rows(slice), keys.first(std::min(group.count, kAheadOfGroup)));
    }
    keys.remove_prefix(group.count);
  }
}

// Pushed rows as f32: in place, or decoded to scratch that the caller returns. False: no memory
// for that.
bool TakeRows(EngineCore& e, const PushRowsRequest& request, EmbeddingTable* table, Buffer* decoded,
              absl::Span<const float>* rows) {
  const size_t keys = request.keys.size(), dim = table->dim();
  *rows = {reinterpret_cast<const float*>(request.rows.data()), keys * dim};
  if (request.dtype == ElementType::kF32 || keys == 0) return true;
  *decoded = e.pool.TakeScratch(keys * table->row_bytes(), table->account());
  if (decoded->data == nullptr) return false;
  auto* to = reinterpret_cast<float*>(decoded->data);
  *rows = {to, keys * dim};
  const size_t bytes = RowBytes(request.dtype, dim);
  const std::byte* from = request.rows.data();
  for (size_t i = 0; i < keys; ++i, from += bytes, to += dim) {
    codec::DecodeRow(BestIsa(), request.dtype, from, to, dim);
  }
  return true;
}

PullOutcome RefuseLookup(EngineCore& e, size_t groups, ReplyStatus status) {
  e.group_status.assign(groups, status);
  e.CountAnswer(status);
  PullOutcome outcome;
  outcome.answer.status = status;
  outcome.group_status = e.group_status;
  return outcome;
}

}  // namespace

GroupsOutcome Engine::PushRows(const PushRowsRequest& request) {
  EngineCore& e = *core_;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  ReplyStatus found = e.FindRows(request.worker, request.table, &state, &member);
  if (found == ReplyStatus::kOk && member->rank < 0) found = ReplyStatus::kPermissionDenied;
  if (found == ReplyStatus::kOk) found = EngineCore::CheckAdmission(*state, request.groups);
  const uint64_t keys = KeysOf(request.groups);
  if (found == ReplyStatus::kOk) found = CheckPush(request, *state->rows.table, keys);
  if (found == ReplyStatus::kOk &&
      (!e.catch_up.ReplicateGrowing(*state, request.groups, request.keys) ||
       e.LacksRoom(*state, request.groups))) {
    return e.NoRoom(request.groups.size());
  }
  Buffer decoded;
  absl::Span<const float> rows_left;
  if (found == ReplyStatus::kOk &&
      !TakeRows(e, request, state->rows.table.get(), &decoded, &rows_left)) {
    found = ReplyStatus::kResourceExhausted;
  }
  if (found != ReplyStatus::kOk) return e.RefuseGroups(request.groups.size(), found);
  const RowState& rows = state->rows;
  const size_t dim = rows.table->dim();
  RowPush push = {request.worker, {}, {}, {}, {}, request.assigns};
  absl::Span<const uint64_t> keys_left = request.keys;
  GroupsOutcome outcome;
  outcome.answer.version = UINT64_MAX;
  e.group_status.clear();
  RowLookahead ahead;
  LookAhead(e, *state, request.groups, request.keys, &ahead);
  uint32_t guesses[kAheadOfGroup];
  e.log.Ask(&request.token);
  for (const Group& group : request.groups) {
    e.log.AskGroup(static_cast<uint32_t>(e.group_status.size()));
    push.group = group;
    push.keys = keys_left.first(group.count);
    push.rows = rows_left.first(group.count * dim);
    keys_left.remove_prefix(group.count);
    rows_left.remove_prefix(group.count * dim);
    uint32_t slice = PartitionedTable::kNone;
    Answer answer = {e.FindKeys(*state, group, push.keys, &slice), 0, 0};
    const uint32_t looked_ahead =
        slice == PartitionedTable::kNone ? 0 : std::min(group.count, kAheadOfGroup);
    ahead.Take(looked_ahead, guesses);
    push.guesses = {guesses, looked_ahead};
    if (answer.status == ReplyStatus::kOk) answer.status = e.CheckCopies(group.partition);
    if (answer.status == ReplyStatus::kOk && e.LeavesOut(*state, request.groups, group.partition)) {
      answer.status = ReplyStatus::kNotReady;
    }
    if (answer.status == ReplyStatus::kOk) {
      answer = rows.consistency->Push(push, *member, slice);
      outcome.answer.version = std::min(outcome.answer.version, answer.version);
      outcome.answer.detail = std::max(outcome.answer.detail, answer.detail);
    }
    if (answer.status == ReplyStatus::kOk) {
      rows.table->hot_keys().Count(push.keys);
      e.sink.Pushed(push.keys.size() * (sizeof(uint64_t) + RowBytes(request.dtype, dim)),
                    &rows.table->counters());
    }
    e.CountAnswer(answer.status);
    e.group_status.push_back(answer.status);
    outcome.answer.status = Worse(outcome.answer.status, answer.status);
  }
  e.pool.ReturnScratch(decoded);
  if (outcome.answer.version == UINT64_MAX) outcome.answer.version = 0;
  outcome.replicating = e.log.EndRequest(outcome.answer, e.group_status);
  outcome.group_status = e.group_status;
  return outcome;
}

PullOutcome Engine::Lookup(const LookupRequest& request) {
  EngineCore& e = *core_;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  ReplyStatus found = e.FindRows(request.worker, request.table, &state, &member);
  if (found == ReplyStatus::kOk) {
    found = CheckLookup(request, *state->rows.table, KeysOf(request.groups));
  }
  if (found != ReplyStatus::kOk) return RefuseLookup(e, request.groups.size(), found);
  PullOutcome outcome;
  absl::Span<const uint64_t> keys_left = request.keys;
  e.group_status.clear();
  for (const Group& group : request.groups) {
    uint32_t slice = 0;
    const ReplyStatus status = e.FindKeys(*state, group, keys_left.first(group.count), &slice);
    keys_left.remove_prefix(group.count);
    // Matters only when another group is refused: this one's rows are not written either.
    e.group_status.push_back(status == ReplyStatus::kOk ? ReplyStatus::kNotReady : status);
    outcome.answer.status = Worse(outcome.answer.status, status);
  }
  if (outcome.answer.status == ReplyStatus::kOk) {
    state->rows.table->hot_keys().Count(request.keys);
    const RowConsistency& rules = *state->rows.consistency;
    outcome = state->rows.parking->Lookup(
        request, [&](uint64_t worker, uint32_t slice, uint64_t min_version, Answer* answer) {
          return rules.Readable(worker, slice, min_version, answer);
        });
    if (outcome.kind != PullOutcome::Kind::kAnswer) return outcome;
    return RefuseLookup(e, request.groups.size(), outcome.answer.status);
  }
  e.CountAnswer(outcome.answer.status);
  outcome.group_status = e.group_status;
  return outcome;
}

GroupsOutcome Engine::Prefetch(const PrefetchRequest& request) {
  EngineCore& e = *core_;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  ReplyStatus found = e.FindRows(request.worker, request.table, &state, &member);
  if (found == ReplyStatus::kOk && KeysOf(request.groups) != request.keys.size()) {
    found = ReplyStatus::kMalformed;
  }
  if (found != ReplyStatus::kOk) return e.RefuseGroups(request.groups.size(), found);
  GroupsOutcome outcome;
  absl::Span<const uint64_t> keys_left = request.keys;
  e.group_status.clear();
  for (const Group& group : request.groups) {
    const absl::Span<const uint64_t> keys = keys_left.first(group.count);
    keys_left.remove_prefix(group.count);
    uint32_t slice = 0;
    const ReplyStatus status = e.FindKeys(*state, group, keys, &slice);
    if (status == ReplyStatus::kOk) state->rows.table->Prefetch(slice, keys);
    e.CountAnswer(status);
    e.group_status.push_back(status);
    outcome.answer.status = Worse(outcome.answer.status, status);
  }
  outcome.group_status = e.group_status;
  return outcome;
}

PullOutcome Engine::Scan(const ScanRequest& request) {
  EngineCore& e = *core_;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  uint32_t slice = 0;
  PullOutcome outcome;
  ReplyStatus& status = outcome.answer.status;
  status = e.FindRows(request.worker, request.table, &state, &member);
  if (status == ReplyStatus::kOk) status = e.FindKeys(*state, request.group, {}, &slice);
  if (status == ReplyStatus::kOk && request.group.count == 0) status = ReplyStatus::kOutOfRange;
  if (status == ReplyStatus::kOk) status = e.CheckRead(request.group.partition, request.table);
  if (status == ReplyStatus::kOk) {
    EmbeddingTable& table = *state->rows.table;
    if (table.Scan(slice, request.group.sequence, request.group.count, &outcome.view,
                   &outcome.answer.version, &outcome.answer.detail)) {
      outcome.kind = PullOutcome::Kind::kReady;
      e.sink.Pulled(outcome.view, &table.counters(), nullptr);
      return outcome;
    }
    outcome.answer = {ReplyStatus::kResourceExhausted, 0, 0};
  }
  e.CountAnswer(status);
  return outcome;
}

}  // namespace verbena::shard
