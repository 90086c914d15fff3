// Answers to records about rows of embedding tables.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/client_core.h"
#include "client/core/errors.h"
#include "client/core/journal.h"

namespace verbena::client {
namespace {

bool NoRoom(ReplyStatus status) {
  return status == ReplyStatus::kMemoryLimit || status == ReplyStatus::kJobMemoryLimit;
}
// Over and done with, whatever it did.
bool SettlesRows(ReplyStatus status) { return status == ReplyStatus::kNonFinite || NoRoom(status); }

// From staging to every position that a key had in the call.
void CopyRows(const Entry& entry) {
  const KeyPlan& plan = *entry.operation->plan;
  const size_t row_bytes = entry.table->row_bytes();
  const std::byte* from = entry.staging + KeyBytes(entry.elements);
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    for (uint32_t k = entry.firsts[i]; k < entry.firsts[i] + entry.counts[i]; ++k) {
      for (const uint32_t position : plan.positions(k)) {
        std::memcpy(entry.data + position * row_bytes, from, row_bytes);
      }
      from += row_bytes;
    }
  }
}

}  // namespace

// ---- pushes -------------------------------------------------------------------------------------

// One group of a push is settled. The others go on: the operation tells when all are done.
void Journal::OnRowsSettled(Entry* entry, size_t group, const Reply& reply) {
  TableState* table = entry->table;
  const uint32_t part = entry->parts[group];
  if (table->sync && reply.version > 0) LearnPart(table, part, reply.version);
  if (Keeps(*table, part, entry->step)) KeepRows(*entry, group);
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

// Groups that are refused for good end the operation. What has a number is sent again, with no
// rows, because whether the server counted it is not known.
void Journal::EndRefused(Entry* entry, size_t groups, bool late) {
  if (late && entry->operation != nullptr) {
    End(entry->operation,
        absl::FailedPreconditionError(absl::StrCat(
            DescribeEntry(*entry),
            ": the step is over there already; this worker joined after it was committed")));
  }
  // Ending the operation leaves the groups as they are.
  for (size_t i = 0; i < groups; ++i) {
    const ReplyStatus status = statuses_[i];
    if (Accepted(status) || SettlesRows(status) || Retryable(status)) continue;
    if (OnFatal(entry, entry->parts[i], status)) {
      statuses_[i] = ReplyStatus::kOk;  // nothing to send again
      continue;
    }
    if (entry->operation != nullptr) End(entry->operation, RefusalStatus(*entry, status));
    // An empty one was refused, too: that is all that can be done.
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
    // Never sent before, and yet it is over: this worker was not on the roster for the step.
    late |= table->sync && status == ReplyStatus::kDuplicate && entry->posts == 1;
    if (Accepted(status) || SettlesRows(status)) {
      OnRowsSettled(entry, i, reply);
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

// ---- lookups and scans --------------------------------------------------------------------------

void Journal::OnLookupAnswer(Stream* stream, Entry* entry, const Reply& reply) {
  TableState* table = entry->table;
  const bool live = entry->operation != nullptr && entry->operation->live;
  ReplyStatus worst = ReplyStatus::kOk;
  uint32_t part = entry->parts[0];
  for (size_t i = 0; i < entry->parts.size(); ++i) {
    const ReplyStatus status = GroupStatus(*entry, reply, i);
    // What is final counts more than what may pass.
    if (Accepted(status) || (Retryable(status) && worst != ReplyStatus::kOk)) continue;
    worst = status;
    part = entry->parts[i];
    if (!Retryable(status)) break;
  }
  if (worst == ReplyStatus::kOk) worst = reply.status;
  if (Accepted(worst)) {
    ++counters_.pulls;
    counters_.bytes_pulled += entry->elements * table->row_bytes();
    if (live) CopyRows(*entry);
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
