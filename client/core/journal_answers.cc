// Replies: their effect on the record, its operation and the table's steps.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/errors.h"
#include "client/core/journal.h"
#include "shard/codec/codec.h"

namespace verbena::client {

bool Journal::Accepted(ReplyStatus status) {
  return status == ReplyStatus::kOk || status == ReplyStatus::kDuplicate;
}

bool Journal::Retryable(ReplyStatus status) {
  switch (status) {
    case ReplyStatus::kWrongEpoch:
    case ReplyStatus::kNotReady:
    case ReplyStatus::kSequenceGap:
    case ReplyStatus::kWrongStep:
    case ReplyStatus::kTooEarly:
    case ReplyStatus::kResourceExhausted:
    case ReplyStatus::kUnavailable:
    case ReplyStatus::kExpired:  // the session soon detects whether its lease has ended
      return true;
    default:
      return false;
  }
}

ReplyStatus Journal::GroupStatus(const Entry& entry, const Reply& reply, size_t i) {
  return reply.group_count == entry.parts.size() ? reply.group_status[i] : reply.status;
}

void Journal::OnAnswer(Stream* stream, uint64_t cookie, const Reply& reply) {
  Entry* entry = entries_.At(cookie);
  if (entry == nullptr || entry->state != Entry::State::kPosted || entry->stream != stream) return;
  Unqueue(entry);
  entry->state = Entry::State::kAnswered;
  Touch(stream);
  switch (entry->type) {
    case RecordType::kPush:
      return OnPushAnswer(entry, reply.status, reply);
    case RecordType::kPull:
      return OnPullAnswer(stream, entry, reply.status, reply);
    case RecordType::kEndStep:
      return OnEndAnswer(entry, reply);
    case RecordType::kAwait:
      return OnAwaitAnswer(entry, reply);
    case RecordType::kNorms:
      return OnNormsAnswer(stream, entry, reply);
    case RecordType::kTotals:
      return OnTotalsAnswer(stream, entry, reply);
    case RecordType::kPushRows:
      return OnRowPushAnswer(entry, reply);
    case RecordType::kLookup:
    case RecordType::kLookupBags:
      return OnLookupAnswer(stream, entry, reply);
    case RecordType::kIntent:
      return OnIntentAnswer(stream, entry, reply);
    case RecordType::kScan:
      return OnScanAnswer(stream, entry, reply);
    case RecordType::kReplicate:  // between servers
    case RecordType::kBeacon:
      return;
  }
}

void Journal::OnPushAnswer(Entry* entry, ReplyStatus status, const Reply& reply) {
  TableState* table = entry->table;
  const bool passed = table->sync && reply.version > entry->step;
  if (status == ReplyStatus::kWrongStep && passed) status = ReplyStatus::kDuplicate;
  if (status == ReplyStatus::kDuplicate && passed && entry->posts == 1) {
    // Never sent before, but the step is over: this worker was not a member for it.
    if (entry->operation != nullptr) {
      End(entry->operation,
          absl::FailedPreconditionError(absl::StrCat(
              DescribeEntry(*entry), ": the table is at step ", reply.version,
              " already; this worker joined after the steps before it were committed")));
    }
    return Settled(entry);
  }
  if (Accepted(status) || status == ReplyStatus::kNonFinite) {
    table->LaneOn(entry->stream)->backoff.Reset();
    if (table->sync && reply.version > 0) LearnChunk(table, entry->chunk, reply.version);
    // The other chunks continue: only this one contributes zero. The operation reports it when all
    // are done.
    if (status == ReplyStatus::kNonFinite && entry->operation != nullptr &&
        entry->operation->live && entry->operation->status.ok()) {
      entry->operation->status = absl::InvalidArgumentError(absl::StrCat(
          DescribeEntry(*entry), ": the gradient has a NaN or Inf; this chunk contributes zero"));
    }
    if (entry->follow != nullptr) EnqueuePull(std::exchange(entry->follow, nullptr), false);
    if (status == ReplyStatus::kNonFinite && entry->elements > 0) return SendEmpty(entry, status);
    return Keeps(*table, entry->chunk, entry->step) ? Keep(entry) : Settled(entry);
  }
  if (Retryable(status)) return Retry(entry, status);
  if (OnFatal(entry, entry->part, status)) return Settled(entry);
  Refuse(entry, status);
}

void Journal::OnPullAnswer(Stream* stream, Entry* entry, ReplyStatus status, const Reply& reply) {
  TableState* table = entry->table;
  const bool live = entry->operation != nullptr && entry->operation->live;
  if (Accepted(status)) {
    const uint32_t bytes = table->PullBytes(entry->elements);
    ++counters_.pulls;
    counters_.bytes_pulled += bytes;
    if (entry->staging != nullptr) turn_bytes_ += uint64_t{entry->elements} * sizeof(float);
    if (live && table->decodes()) {
      const TracedBlock traced("decode", bytes);
      codec::Decode(shard::BestIsa(), table->pull_type, entry->staging, 0,
                    reinterpret_cast<float*>(entry->data), entry->elements);
    } else if (live && entry->staging != nullptr) {
      if (entry->device == nullptr) std::memcpy(entry->data, entry->staging, bytes);
      counters_.staged_bytes += bytes;
    } else if (live && entry->block->device() != nullptr) {
      counters_.direct_bytes += bytes;
      entry->operation->landed = true;
    }
    if (table->sync) LearnChunk(table, entry->chunk, reply.version);
    if (table->ssp) {
      table->seen = std::max(table->seen, reply.version);
      ++counters_.staleness[std::min(reply.detail, kStalenessBuckets - 1)];
    }
    if (entry->device != nullptr && live) return Land(entry);
    return Settled(entry);
  }
  if (!live) return Settled(entry);
  if (Retryable(status)) return RetryPull(stream, entry, status);
  if (OnFatal(entry, entry->part, status)) return Settled(entry);
  Refuse(entry, status);
}

void Journal::OnEndAnswer(Entry* entry, const Reply& reply) {
  TableState* table = entry->table;
  if (entry->parts.empty()) return Settled(entry);
  ReplyStatus retry = ReplyStatus::kOk;
  std::vector<std::pair<uint32_t, ReplyStatus>> fatal;
  entry->KeepGroups([&](size_t i) {
    const ReplyStatus status = GroupStatus(*entry, reply, i);
    const bool accepted = Accepted(status) || status == ReplyStatus::kNonFinite;
    if (Retryable(status)) {
      retry = status;
      return true;
    }
    if (!accepted) fatal.emplace_back(entry->parts[i], status);
    // sync: kept until the commit. async: an accepted group is settled.
    return accepted && table->sync;
  });
  for (const auto& [part, status] : fatal) {
    if (!OnFatal(entry, part, status) && entry->operation != nullptr) {
      End(entry->operation, RefusalStatus(*entry, status));
    }
  }
  if (table->sync) Prune(entry);
  if (entry->parts.empty() || closed_ || table->dropped) return Settled(entry);
  if (retry != ReplyStatus::kOk) return Retry(entry, retry);
  entry = ResendMoved(entry);
  if (entry == nullptr) return;
  TableLane* lane = table->LaneOn(entry->stream);
  lane->backoff.Reset();
  entry->state = Entry::State::kEnded;
  lane->ended.PushBack(entry);
}

void Journal::OnAwaitAnswer(Entry* entry, const Reply& reply) {
  TableState* table = entry->table;
  ReplyStatus retry = ReplyStatus::kOk;
  for (size_t i = 0; i < entry->parts.size(); ++i) {
    const uint32_t part = entry->parts[i];
    const ReplyStatus status = GroupStatus(*entry, reply, i);
    if (Accepted(status)) {
      LearnPart(table, part, entry->min_version);
    } else if (Retryable(status)) {
      retry = status;
    } else {
      OnFatal(entry, part, status);
    }
  }
  Prune(entry);
  if (retry == ReplyStatus::kOk || entry->parts.empty()) return Settled(entry);
  RetryPull(entry->stream, entry, retry);
}

bool Journal::OnFatal(Entry* entry, uint32_t part, ReplyStatus status) {
  TableState* table = entry->table;
  switch (status) {
    case ReplyStatus::kUnknownTable:
      session_->Refresh();
      DropTable(table, RefusalStatus(*entry, status));
      break;
    case ReplyStatus::kDataLoss:
      session_->Refresh();
      LosePart(table, part);
      break;
    default:
      return false;
  }
  // Its operation has ended with the others; the state kAnswered kept this entry.
  return true;
}

void Journal::Refuse(Entry* entry, ReplyStatus status) {
  if (entry->operation != nullptr) End(entry->operation, RefusalStatus(*entry, status));
  if (entry->type == RecordType::kPush && !entry->table->sync && entry->posts == 1) {
    // It is unknown whether the server counted its sequence: an empty record settles that.
    MakeEmpty(entry);
    return Retry(entry, status);
  }
  Uncount(entry);
  Settled(entry);
}

// Sends a refused push again without data, which settles its sequence. Its operation does not wait
// for that; of a sync table it waits for the commit, which does.
void Journal::SendEmpty(Entry* entry, ReplyStatus status) {
  Operation* operation = entry->operation;
  const bool live = operation != nullptr && operation->live;
  if (live) --operation->records;
  MakeEmpty(entry);
  if (live) MaybeDone(operation);
  if (closed_ || entry->table->dropped) return Settled(entry);
  entry = ResendMoved(entry);
  if (entry == nullptr) return;
  entry->refused = status;
  Enqueue(entry);
  entry->table->LaneOn(entry->stream)->reordering = true;
}

void Journal::Retry(Entry* entry, ReplyStatus status) {
  if (closed_ || entry->table->dropped) return Settled(entry);
  if (Over(*entry) && !IsPull(entry->type) && entry->type != RecordType::kEndStep) {
    MakeEmpty(entry);  // its buffer must be released
  }
  entry = ResendMoved(entry);
  if (entry == nullptr) return;
  entry->refused = status;
  if (status == ReplyStatus::kWrongEpoch) session_->Refresh();
  if (status == ReplyStatus::kExpired) session_->AskForLease();
  Enqueue(entry);
  TableLane* lane = entry->table->LaneOn(entry->stream);
  lane->reordering = true;
  lane->retry_at = now_ + lane->backoff.Next(*random_);
  NoteTimer(lane->retry_at);
}

void Journal::RetryPull(Stream* stream, Entry* entry, ReplyStatus status) {
  if (closed_ || entry->table->dropped) return Settled(entry);
  if (MovedSince(*entry)) {
    if (IsNorms(*entry)) return ReturnNorms(entry);
    return EnqueuePull(entry, entry->type == RecordType::kAwait);
  }
  entry->refused = status;
  const bool reads = entry->type == RecordType::kPull || entry->type == RecordType::kLookup ||
                     entry->type == RecordType::kLookupBags;
  // The server deferred it for long, while others wait for this lane: those go first.
  if (reads && status == ReplyStatus::kTooEarly) return EnqueuePull(entry, false);
  if (status == ReplyStatus::kWrongEpoch) session_->Refresh();
  if (status == ReplyStatus::kExpired) session_->AskForLease();
  GiveStaging(entry);  // other records may need it while this one waits
  entry->retry_at = now_ + entry->backoff.Next(*random_);
  entry->state = Entry::State::kDelayed;
  stream->delayed.PushBack(entry);
  NoteTimer(entry->retry_at);
}

void Journal::Settled(Entry* entry) {
  Operation* operation = entry->operation;
  const bool live = operation != nullptr && operation->live;
  if (live) --operation->records;
  Free(entry);
  if (live) MaybeDone(operation);
}

void Journal::MaybeDone(Operation* operation) {
  if (operation->live && operation->records == 0 && operation->commits == 0) {
    if (operation->bags != nullptr) operation->bags->Finish(operation->sums, operation->table->dim);
    if (operation->landed && operation->status.ok()) {
      // Makes the transport's writes visible to kernels that are started from now on.
      operation->status = operation->blocks[1]->device()->FlushPeerWrites();
    }
    // Not OK if a chunk was refused before.
    operations_->End(operation, std::exchange(operation->status, absl::OkStatus()));
  }
}

void Journal::Learned(TableState* table, uint32_t part, bool advanced) {
  PartState& state = table->parts[part];
  if (state.stream != nullptr) Touch(state.stream);  // a gate may have opened
  if (!advanced) return;
  norms_dirty_ |= table->clipped || table->trust;
  Notify(&state.waiters, state.committed);
  Notify(&table->waiters, table->committed);
}

void Journal::Notify(std::vector<Waiter>* waiters, uint64_t committed) {
  size_t kept = 0;
  for (size_t i = 0; i < waiters->size(); ++i) {
    const Waiter waiter = (*waiters)[i];
    if (!waiter.operation.live()) continue;
    if (waiter.version > committed) {
      (*waiters)[kept++] = waiter;
      continue;
    }
    --waiter.operation.operation->commits;
    MaybeDone(waiter.operation.operation);
  }
  waiters->erase(waiters->begin() + static_cast<std::ptrdiff_t>(kept), waiters->end());
}

}  // namespace verbena::client
