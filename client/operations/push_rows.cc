#include "client/operations/push_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/core/errors.h"
#include "client/core/request_tracker.h"
#include "shard/codec/codec.h"

namespace verbena::client {
namespace {

ElementType TypeOf(const PendingRequest& entry) {
  return TraitsOf(entry).assigns ? ElementType::kF32 : entry.table->push_type;
}

// Sums the call's rows of a key in their order. An assignment takes the last row.
void SumRows(const PendingRequest& entry, absl::Span<const uint32_t> positions, float* sum) {
  const size_t dim = entry.table->dim;
  const size_t row_bytes = entry.table->row_bytes();
  if (TraitsOf(entry).assigns) positions = positions.last(1);
  std::memcpy(sum, entry.data + positions[0] * row_bytes, row_bytes);
  for (const uint32_t position : positions.subspan(1)) {
    const auto* row = reinterpret_cast<const float*>(entry.data + position * row_bytes);
    for (size_t d = 0; d < dim; ++d) sum[d] += row[d];
  }
}

// Writes the rows of its keys. With a codec they are encoded each time the record is sent: the same
// numbers give the same bytes.
void FillRows(const PendingRequest& entry, std::byte* to) {
  const TableState& table = *entry.table;
  const KeyPlan& plan = *entry.operation->plan;
  const ElementType type = TypeOf(entry);
  const bool encodes = type != ElementType::kF32;
  const size_t bytes = RowBytes(type, table.dim);
  float sum[kMaxRowElements];
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    for (uint32_t k = entry.firsts[i]; k < entry.firsts[i] + entry.counts[i]; ++k) {
      SumRows(entry, plan.positions(k), encodes ? sum : reinterpret_cast<float*>(to));
      if (encodes) codec::EncodeRow(shard::BestIsa(), type, sum, to, table.dim);
      to += bytes;
    }
  }
}

bool NoRoom(ReplyStatus status) {
  return status == ReplyStatus::kMemoryLimit || status == ReplyStatus::kJobMemoryLimit ||
         status == ReplyStatus::kCopyMemoryLimit;
}
// Statuses that settle the push, whether or not it changed rows.
bool SettlesRows(ReplyStatus status) { return status == ReplyStatus::kNonFinite || NoRoom(status); }

}  // namespace

void PushRowsRequests::Add(Operation* operation, size_t offset) {
  if (operation->table->sync) operation->table->pushed_step = operation->step + 1;
  const uint32_t most = RowsInRecord(*operation->table, *tracker_.staging.packed());
  Cut({operation, offset, 0, most}, operation->plan->ranges());
}

void PushRowsRequests::Number(PendingRequest* entry) const {
  if (std::exchange(entry->numbered, true)) return;
  TableState* table = entry->table;
  for (const uint32_t p : entry->parts) {
    PartState& part = table->parts[p];
    if (table->sync) {
      entry->sequences.push_back(part.pushed[entry->step & 1]++);
    } else {
      entry->sequences.push_back(part.next_sequence++);
      ++part.pushes_since_end;
    }
  }
}

bool PushRowsRequests::Post(Stream* stream, PendingRequest* entry) {
  TableState* table = entry->table;
  const bool empty = entry->operation == nullptr;  // its buffer was released
  entry->elements = empty ? 0 : CountKeys(*entry);
  const uint64_t keys = KeyBytes(entry->elements);
  const uint64_t bytes = keys + entry->elements * RowBytes(TypeOf(*entry), table->dim);
  if (!tracker_.poster.Fits(stream, entry, static_cast<uint32_t>(bytes))) return false;
  rdma::WorkerLane::Request request;
  if (!empty) {
    if (!tracker_.staging.TakeStaging(stream, entry, tracker_.staging.packed(), bytes))
      return false;
    const auto& block = tracker_.staging.packed()->BlockOf(entry->staging);
    // Before it takes its sequences: memory that cannot be registered affects the call, not the
    // lane.
    if (absl::Status s = tracker_.lanes->memory().Register(stream, *block); !s.ok()) {
      tracker_.staging.NotNow(stream, entry, s);
      return false;
    }
    FillKeys(*entry, entry->staging);
    FillRows(*entry, entry->staging + keys);
    request.payload = {entry->staging, static_cast<uint32_t>(bytes), block.get()};
  }
  Number(entry);
  for (size_t i = 0; i < entry->parts.size(); ++i) {
    const PartState& part = table->parts[entry->parts[i]];
    const uint64_t number = entry->sequences[i];
    tracker_.poster.groups()[i] = {part.partition,
                                   table->sync ? static_cast<uint32_t>(number) : 0,
                                   part.epoch,
                                   table->sync ? entry->step : number,
                                   empty ? 0 : entry->counts[i],
                                   tracker_.admissions.NumberFor(*table)};
  }
  request.header.type = traits_.type;
  request.header.dtype = TypeOf(*entry);
  request.groups = absl::MakeConstSpan(tracker_.poster.groups().data(), entry->parts.size());
  if (!tracker_.poster.Send(stream, entry, &request)) return false;
  if (entry->posts == 1) {
    ++tracker_.counters.pushes;
    tracker_.counters.bytes_pushed += bytes;
  }
  return true;
}

// One group of a push is settled. The others continue: the operation reports when all are done.
void PushRowsRequests::OnSettled(PendingRequest* entry, size_t group, const Reply& reply) {
  TableState* table = entry->table;
  const uint32_t part = entry->parts[group];
  if (table->sync && reply.version > 0) tracker_.commits.LearnPart(table, part, reply.version);
  if (Settlement::Accepted(statuses_[group]) && tracker_.commits.Keeps(*table, part, entry->step)) {
    KeepGroup(*entry, group);
  }
  Operation* operation = entry->operation;
  if (operation == nullptr || !operation->live || !operation->status.ok()) return;
  if (statuses_[group] == ReplyStatus::kNonFinite) {
    operation->status = absl::InvalidArgumentError(absl::StrCat(
        DescribeRequest(*entry),
        traits_.assigns ? ": a parameter is NaN or Inf; the rows of partition "
                        : ": a gradient has a NaN or Inf; its rows of partition ",
        table->parts[part].partition, traits_.assigns ? " are not assigned" : " contribute zero"));
  } else if (NoRoom(statuses_[group])) {
    operation->status =
        MemoryLimitStatus(*tracker_.session, *entry, part, statuses_[group], reply.detail);
  }
}

// Kept individually, because the partitions of a record commit and move one by one.
void PushRowsRequests::KeepGroup(const PendingRequest& entry, size_t group) {
  PendingRequest* one = tracker_.entries.NewGroup(entry, group);
  tracker_.commits.Keep(one);
}

// The server has counted neither the sequence nor the contribution of a refused push.
void PushRowsRequests::SettleRefused(const PendingRequest& entry, size_t group) {
  PendingRequest* one = tracker_.entries.NewGroup(entry, group);
  one->stream = entry.stream;
  tracker_.settlement.SendEmpty(one, statuses_[group]);
}

// Permanently refused groups end the operation. Numbered ones are resent without rows, because it
// is unknown whether the server counted them.
void PushRowsRequests::EndRefused(PendingRequest* entry, size_t groups, bool late) {
  if (late && entry->operation != nullptr) {
    tracker_.settlement.End(
        entry->operation,
        absl::FailedPreconditionError(absl::StrCat(
            DescribeRequest(*entry),
            ": the step is over there already; this worker joined after it was committed")));
  }
  // Ending the operation does not change the groups.
  for (size_t i = 0; i < groups; ++i) {
    const ReplyStatus status = statuses_[i];
    if (Settlement::Accepted(status) || SettlesRows(status) || Settlement::Retryable(status))
      continue;
    if (tracker_.settlement.OnFatal(entry, entry->parts[i], status)) {
      statuses_[i] = ReplyStatus::kOk;  // nothing to resend
      continue;
    }
    if (entry->operation != nullptr)
      tracker_.settlement.End(entry->operation, RefusalStatus(*entry, status));
    // An empty one was refused too: nothing more can be done.
    if (entry->elements == 0) statuses_[i] = ReplyStatus::kOk;
  }
}

void PushRowsRequests::OnReply(Stream*, PendingRequest* entry, const Reply& reply) {
  TableState* table = entry->table;
  tracker_.staging.GiveStaging(entry);
  const bool passed = table->sync && reply.version > entry->step;
  const size_t groups = entry->parts.size();
  bool late = false, refused = false;
  ReplyStatus again = ReplyStatus::kOk;
  for (size_t i = 0; i < groups; ++i) {
    ReplyStatus& status = statuses_[i];
    status = Settlement::GroupStatus(*entry, reply, i);
    if (status == ReplyStatus::kWrongStep && passed) status = ReplyStatus::kDuplicate;
    // Never sent before, but the step is over: this worker was not a member for it.
    late |= table->sync && status == ReplyStatus::kDuplicate && entry->posts == 1;
    if (Settlement::Accepted(status) || SettlesRows(status)) {
      OnSettled(entry, i, reply);
      if (SettlesRows(status) && entry->elements > 0) SettleRefused(*entry, i);
    } else if (Settlement::Retryable(status)) {
      again = status;
    } else {
      refused = true;
    }
  }
  if (late || refused) EndRefused(entry, groups, late);
  entry->KeepGroups(
      [&](size_t i) { return !Settlement::Accepted(statuses_[i]) && !SettlesRows(statuses_[i]); });
  // Where partitions are handed over one after the other, each attempt leaves fewer of the groups:
  // the wait before the next must not grow.
  if (entry->parts.size() < groups) table->LaneOn(entry->stream)->backoff.Reset();
  if (entry->parts.empty()) return tracker_.settlement.Settled(entry);
  tracker_.settlement.Retry(entry, again == ReplyStatus::kOk ? ReplyStatus::kUnavailable : again);
}

void PushRowsRequests::OnLaneLost(PendingRequest* entry) {
  // Other records may be posted before it.
  tracker_.staging.GiveStaging(entry);
  if (Settlement::Over(*entry)) tracker_.settlement.MakeEmpty(entry);
  tracker_.queue.Enqueue(entry);
}

void PushRowsRequests::OnOperationEnd(PendingRequest* entry) {
  using State = PendingRequest::State;
  const bool queued = entry->state == State::kQueued || entry->state == State::kDelayed;
  // The server reads a copy of the caller's memory.
  if (!queued) return tracker_.entries.Detach(entry);
  tracker_.queue.Unqueue(entry);
  if (entry->numbered && !tracker_.closed) {
    tracker_.settlement.MakeEmpty(entry);
    return tracker_.queue.Enqueue(entry);
  }
  tracker_.entries.Free(entry);
}

uint64_t PushRowsRequests::BytesOf(const PendingRequest& entry) const {
  return RowBytes(TypeOf(entry), entry.table->dim);
}

}  // namespace verbena::client
