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

// Sums the call's rows of a key in their order.
void SumRows(const PendingRequest& entry, absl::Span<const uint32_t> positions, float* sum) {
  const size_t dim = entry.table->dim;
  const size_t row_bytes = entry.table->row_bytes();
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
  const bool encodes = table.push_type != ElementType::kF32;
  const size_t bytes = table.PushedRowBytes();
  float sum[kMaxRowElements];
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    for (uint32_t k = entry.firsts[i]; k < entry.firsts[i] + entry.counts[i]; ++k) {
      SumRows(entry, plan.positions(k), encodes ? sum : reinterpret_cast<float*>(to));
      if (encodes) codec::EncodeRow(shard::BestIsa(), table.push_type, sum, to, table.dim);
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
  const uint32_t most = RowsInRecord(*operation->table, *journal_.staging.packed());
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
  const uint64_t bytes = keys + entry->elements * table->PushedRowBytes();
  if (!journal_.poster.Fits(stream, entry, static_cast<uint32_t>(bytes))) return false;
  rdma::WorkerLane::Request request;
  if (!empty) {
    if (!journal_.staging.TakeStaging(stream, entry, journal_.staging.packed(), bytes))
      return false;
    const auto& block = journal_.staging.packed()->BlockOf(entry->staging);
    // Before it takes its sequences: memory that cannot be registered affects the call, not the
    // lane.
    if (absl::Status s = journal_.lanes->memory().Register(stream, *block); !s.ok()) {
      journal_.staging.NotNow(stream, entry, s);
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
    journal_.poster.groups()[i] = {part.partition,
                                   table->sync ? static_cast<uint32_t>(number) : 0,
                                   part.epoch,
                                   table->sync ? entry->step : number,
                                   empty ? 0 : entry->counts[i],
                                   0};
  }
  request.header.type = traits_.type;
  request.header.dtype = table->push_type;
  request.groups = absl::MakeConstSpan(journal_.poster.groups().data(), entry->parts.size());
  if (!journal_.poster.Send(stream, entry, &request)) return false;
  if (entry->posts == 1) {
    ++journal_.counters.pushes;
    journal_.counters.bytes_pushed += bytes;
  }
  return true;
}

// One group of a push is settled. The others continue: the operation reports when all are done.
void PushRowsRequests::OnSettled(PendingRequest* entry, size_t group, const Reply& reply) {
  TableState* table = entry->table;
  const uint32_t part = entry->parts[group];
  if (table->sync && reply.version > 0) journal_.commits.LearnPart(table, part, reply.version);
  if (Settlement::Accepted(statuses_[group]) && journal_.commits.Keeps(*table, part, entry->step)) {
    KeepGroup(*entry, group);
  }
  Operation* operation = entry->operation;
  if (operation == nullptr || !operation->live || !operation->status.ok()) return;
  if (statuses_[group] == ReplyStatus::kNonFinite) {
    operation->status = absl::InvalidArgumentError(absl::StrCat(
        DescribeRequest(*entry), ": a gradient has a NaN or Inf; its rows of partition ",
        table->parts[part].partition, " contribute zero"));
  } else if (NoRoom(statuses_[group])) {
    operation->status =
        MemoryLimitStatus(*journal_.session, *entry, part, statuses_[group], reply.detail);
  }
}

// Kept individually, because the partitions of a record commit and move one by one.
void PushRowsRequests::KeepGroup(const PendingRequest& entry, size_t group) {
  PendingRequest* one = journal_.entries.NewGroup(entry, group);
  journal_.commits.Keep(one);
}

// The server has counted neither the sequence nor the contribution of a refused push.
void PushRowsRequests::SettleRefused(const PendingRequest& entry, size_t group) {
  PendingRequest* one = journal_.entries.NewGroup(entry, group);
  one->stream = entry.stream;
  journal_.settlement.SendEmpty(one, statuses_[group]);
}

// Permanently refused groups end the operation. Numbered ones are resent without rows, because it
// is unknown whether the server counted them.
void PushRowsRequests::EndRefused(PendingRequest* entry, size_t groups, bool late) {
  if (late && entry->operation != nullptr) {
    journal_.settlement.End(
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
    if (journal_.settlement.OnFatal(entry, entry->parts[i], status)) {
      statuses_[i] = ReplyStatus::kOk;  // nothing to resend
      continue;
    }
    if (entry->operation != nullptr)
      journal_.settlement.End(entry->operation, RefusalStatus(*entry, status));
    // An empty one was refused too: nothing more can be done.
    if (entry->elements == 0) statuses_[i] = ReplyStatus::kOk;
  }
}

void PushRowsRequests::OnReply(Stream*, PendingRequest* entry, const Reply& reply) {
  TableState* table = entry->table;
  journal_.staging.GiveStaging(entry);
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
  if (entry->parts.empty()) {
    table->LaneOn(entry->stream)->backoff.Reset();
    return journal_.settlement.Settled(entry);
  }
  journal_.settlement.Retry(entry, again == ReplyStatus::kOk ? ReplyStatus::kUnavailable : again);
}

void PushRowsRequests::OnLaneLost(PendingRequest* entry) {
  // Other records may be posted before it.
  journal_.staging.GiveStaging(entry);
  if (Settlement::Over(*entry)) journal_.settlement.MakeEmpty(entry);
  journal_.queue.Enqueue(entry);
}

void PushRowsRequests::OnOperationEnd(PendingRequest* entry) {
  using State = PendingRequest::State;
  const bool queued = entry->state == State::kQueued || entry->state == State::kDelayed;
  // The server reads a copy of the caller's memory.
  if (!queued) return journal_.entries.Detach(entry);
  journal_.queue.Unqueue(entry);
  if (entry->numbered && !journal_.closed) {
    journal_.settlement.MakeEmpty(entry);
    return journal_.queue.Enqueue(entry);
  }
  journal_.entries.Free(entry);
}

uint64_t PushRowsRequests::BytesOf(const PendingRequest& entry) const {
  return entry.table->PushedRowBytes();
}

}  // namespace verbena::client
