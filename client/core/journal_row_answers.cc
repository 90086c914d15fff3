// Replies to records about rows of embedding tables.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/client_core.h"
#include "client/core/errors.h"
#include "client/core/journal.h"
#include "shard/codec/codec.h"

namespace verbena::client {
namespace {

bool NoRoom(ReplyStatus status) {
  return status == ReplyStatus::kMemoryLimit || status == ReplyStatus::kJobMemoryLimit ||
         status == ReplyStatus::kCopyMemoryLimit;
}
// Statuses that settle the push, whether or not it changed rows.
bool SettlesRows(ReplyStatus status) { return status == ReplyStatus::kNonFinite || NoRoom(status); }

// Copies rows from staging, decoded, to every position of their key in the call.
void CopyRows(const Entry& entry) {
  const TableState& table = *entry.table;
  const KeyPlan& plan = *entry.operation->plan;
  const size_t row_bytes = table.row_bytes(), bytes = table.PulledRowBytes();
  const std::byte* from = entry.staging + KeyBytes(entry.elements);
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    for (uint32_t k = entry.firsts[i]; k < entry.firsts[i] + entry.counts[i]; ++k) {
      const absl::Span<const uint32_t> positions = plan.positions(k);
      std::byte* const first = entry.data + positions[0] * row_bytes;
      if (table.pull_type == ElementType::kF32) {
        std::memcpy(first, from, row_bytes);
      } else {
        codec::DecodeRow(shard::BestIsa(), table.pull_type, from, reinterpret_cast<float*>(first),
                         table.dim);
      }
      for (const uint32_t position : positions.subspan(1)) {
        std::memcpy(entry.data + position * row_bytes, first, row_bytes);
      }
      from += bytes;
    }
  }
}

}  // namespace

// ---- pushes -------------------------------------------------------------------------------------

// One group of a push is settled. The others continue: the operation reports when all are done.
void Journal::OnRowsSettled(Entry* entry, size_t group, const Reply& reply) {
  TableState* table = entry->table;
  const uint32_t part = entry->parts[group];
  if (table->sync && reply.version > 0) LearnPart(table, part, reply.version);
  if (Accepted(statuses_[group]) && Keeps(*table, part, entry->step)) KeepRows(*entry, group);
  Operation* operation = entry->operation;
  if (operation == nullptr || !operation->live || !operation->status.ok()) return;
  if (statuses_[group] == ReplyStatus::kNonFinite) {
    operation->status = absl::InvalidArgumentError(
        absl::StrCat(DescribeEntry(*entry), ": a gradient has a NaN or Inf; its rows of partition ",
                     table->parts[part].partition, " contribute zero"));
  } else if (NoRoom(statuses_[group])) {
    operation->status = MemoryLimitStatus(*session_, *entry, part, statuses_[group], reply.detail);
  }
}

// The server has counted neither the sequence nor the contribution of a refused push.
void Journal::SettleRefused(const Entry& entry, size_t group) {
  Entry* one = NewGroup(entry, group);
  one->stream = entry.stream;
  SendEmpty(one, statuses_[group]);
}

// Permanently refused groups end the operation. Numbered ones are resent without rows, because it
// is unknown whether the server counted them.
void Journal::EndRefused(Entry* entry, size_t groups, bool late) {
  if (late && entry->operation != nullptr) {
    End(entry->operation,
        absl::FailedPreconditionError(absl::StrCat(
            DescribeEntry(*entry),
            ": the step is over there already; this worker joined after it was committed")));
  }
  // Ending the operation does not change the groups.
  for (size_t i = 0; i < groups; ++i) {
    const ReplyStatus status = statuses_[i];
    if (Accepted(status) || SettlesRows(status) || Retryable(status)) continue;
    if (OnFatal(entry, entry->parts[i], status)) {
      statuses_[i] = ReplyStatus::kOk;  // nothing to resend
      continue;
    }
    if (entry->operation != nullptr) End(entry->operation, RefusalStatus(*entry, status));
    // An empty one was refused too: nothing more can be done.
    if (entry->elements == 0) statuses_[i] = ReplyStatus::kOk;
  }
}

void Journal::OnRowPushAnswer(Entry* entry, const Reply& reply) {
  TableState* table = entry->table;
  GiveStaging(entry);
  const bool passed = table->sync && reply.version > entry->step;
  const size_t groups = entry->parts.size();
  bool late = false, refused = false;
  ReplyStatus again = ReplyStatus::kOk;
  for (size_t i = 0; i < groups; ++i) {
    ReplyStatus& status = statuses_[i];
    status = GroupStatus(*entry, reply, i);
    if (status == ReplyStatus::kWrongStep && passed) status = ReplyStatus::kDuplicate;
    // Never sent before, but the step is over: this worker was not a member for it.
    late |= table->sync && status == ReplyStatus::kDuplicate && entry->posts == 1;
    if (Accepted(status) || SettlesRows(status)) {
      OnRowsSettled(entry, i, reply);
      if (SettlesRows(status) && entry->elements > 0) SettleRefused(*entry, i);
    } else if (Retryable(status)) {
      again = status;
    } else {
      refused = true;
    }
  }
  if (late || refused) EndRefused(entry, groups, late);
  entry->KeepGroups(
      [&](size_t i) { return !Accepted(statuses_[i]) && !SettlesRows(statuses_[i]); });
  if (entry->parts.empty()) {
    table->LaneOn(entry->stream)->backoff.Reset();
    return Settled(entry);
  }
  Retry(entry, again == ReplyStatus::kOk ? ReplyStatus::kUnavailable : again);
}

// ---- lookups, prefetches and scans --------------------------------------------------------------

ReplyStatus Journal::WorstOf(const Entry& entry, const Reply& reply, uint32_t* part) {
  ReplyStatus worst = ReplyStatus::kOk;
  *part = entry.parts[0];
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    const ReplyStatus status = GroupStatus(entry, reply, i);
    if (Accepted(status) || (Retryable(status) && worst != ReplyStatus::kOk)) continue;
    worst = status;
    *part = entry.parts[i];
    if (!Retryable(status)) break;
  }
  return worst == ReplyStatus::kOk ? reply.status : worst;
}

void Journal::OnLookupAnswer(Stream* stream, Entry* entry, const Reply& reply) {
  TableState* table = entry->table;
  const bool live = entry->operation != nullptr && entry->operation->live;
  uint32_t part = 0;
  const ReplyStatus worst = WorstOf(*entry, reply, &part);
  if (Accepted(worst)) {
    ++counters_.pulls;
    turn_bytes_ += entry->elements * table->row_bytes();
    const bool bags = entry->type == RecordType::kLookupBags;
    counters_.bytes_pulled +=
        bags ? entry->chunk * table->row_bytes() : entry->elements * table->PulledRowBytes();
    if (live && bags) {
      const std::byte* sums = entry->staging + BagCall::SumsAt(entry->elements);
      entry->operation->bags->Add(entry->firsts, entry->counts,
                                  reinterpret_cast<const float*>(sums), table->dim);
    } else if (live) {
      CopyRows(*entry);
    }
    if (table->sync) {
      for (const uint32_t p : entry->parts) LearnPart(table, p, reply.version);
    }
    if (table->ssp) {
      table->seen = std::max(table->seen, reply.version);
      ++counters_.staleness[std::min(reply.detail, kStalenessBuckets - 1)];
    }
    return Settled(entry);
  }
  if (!live) return Settled(entry);
  GiveStaging(entry);
  if (Retryable(worst)) return RetryPull(stream, entry, worst);
  if (OnFatal(entry, part, worst)) return Settled(entry);
  Refuse(entry, worst);
}

// Keys that a server has accepted are not sent again.
void Journal::OnIntentAnswer(Stream* stream, Entry* entry, const Reply& reply) {
  if (entry->operation == nullptr || !entry->operation->live) return Settled(entry);
  uint32_t part = 0;
  const ReplyStatus worst = WorstOf(*entry, reply, &part);
  if (Accepted(worst)) return Settled(entry);
  GiveStaging(entry);
  if (!Retryable(worst)) return OnFatal(entry, part, worst) ? Settled(entry) : Refuse(entry, worst);
  for (size_t i = 0; i < entry->parts.size(); ++i) statuses_[i] = GroupStatus(*entry, reply, i);
  entry->KeepGroups([&](size_t i) { return !Accepted(statuses_[i]); });
  if (entry->parts.empty()) return Settled(entry);
  RetryPull(stream, entry, worst);
}

void Journal::OnScanAnswer(Stream* stream, Entry* entry, const Reply& reply) {
  TableState* table = entry->table;
  if (entry->operation == nullptr || !entry->operation->live) return Settled(entry);
  if (Accepted(reply.status)) {
    if (reply.detail > entry->elements) {
      End(entry->operation, absl::InternalError(absl::StrCat(
                                DescribeEntry(*entry), ": the server says that it wrote ",
                                reply.detail, " rows; asked for ", entry->elements)));
      return Settled(entry);
    }
    ScanResult& result = *entry->operation->scan;
    const size_t bytes = reply.detail * table->row_bytes();
    result.keys.resize(reply.detail);
    result.rows.resize(size_t{reply.detail} * table->dim);
    if (reply.detail > 0) {
      std::memcpy(result.keys.data(), entry->staging, reply.detail * sizeof(uint64_t));
      std::memcpy(result.rows.data(), entry->staging + KeyBytes(reply.detail), bytes);
    }
    result.next = reply.version;
    ++counters_.pulls;
    counters_.bytes_pulled += bytes;
    return Settled(entry);
  }
  GiveStaging(entry);
  if (Retryable(reply.status)) return RetryPull(stream, entry, reply.status);
  if (OnFatal(entry, entry->part, reply.status)) return Settled(entry);
  Refuse(entry, reply.status);
}

}  // namespace verbena::client
