#include "client/core/settlement.h"

#include <algorithm>
#include <utility>

#include "client/core/errors.h"
#include "client/core/request_tracker.h"

namespace verbena::client {
namespace {

// Part of a backoff that a record waits which was refused for its epoch.
constexpr int64_t kShareOfWrongEpoch = 8;

}  // namespace

// ---- operations ---------------------------------------------------------------------------------

void Settlement::End(Operation* operation, absl::Status status) {
  if (!operation->live) return;
  tracker_.operations->End(operation, std::move(status));
  for (PendingRequest* entry = operation->entries.front(); entry != nullptr;) {
    PendingRequest* next = PendingRequestList::Next(entry);
    entry->follow = nullptr;  // those pulls end too
    entry->handler->OnOperationEnd(entry);
    entry = next;
  }
  if (operation->ends_step && !tracker_.closed && !operation->table->dropped) {
    // Its pulls would have shown the commit of the step; now an await must request it.
    tracker_.requests.await.AddAll(operation->table, operation->step + 1);
  }
}

void Settlement::EndAll(const absl::Status& status) {
  tracker_.closed = true;
  tracker_.norms.Clear();
  while (Operation* operation = tracker_.operations->first_live()) End(operation, status);
  tracker_.tables.DropAllQueued();
}

void Settlement::MaybeDone(Operation* operation) {
  if (operation->live && operation->records == 0 && operation->commits == 0) {
    if (operation->bags != nullptr) operation->bags->Finish(operation->sums, operation->table->dim);
    if (operation->landed && operation->status.ok()) {
      // Makes the transport's writes visible to kernels that are started from now on.
      operation->status = operation->blocks[1]->device()->FlushPeerWrites();
    }
    // Not OK if a chunk was refused before.
    tracker_.operations->End(operation, std::exchange(operation->status, absl::OkStatus()));
  }
}

// ---- replies ------------------------------------------------------------------------------------

bool Settlement::Accepted(ReplyStatus status) {
  return status == ReplyStatus::kOk || status == ReplyStatus::kDuplicate;
}

bool Settlement::Retryable(ReplyStatus status) {
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

ReplyStatus Settlement::GroupStatus(const PendingRequest& entry, const Reply& reply, size_t i) {
  return reply.group_count == entry.parts.size() ? reply.group_status[i] : reply.status;
}

ReplyStatus Settlement::WorstOf(const PendingRequest& entry, const Reply& reply, uint32_t* part) {
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

void Settlement::OnAnswer(Stream* stream, uint64_t cookie, const Reply& reply) {
  PendingRequest* entry = tracker_.entries.At(cookie);
  if (entry == nullptr || entry->state != PendingRequest::State::kPosted || entry->stream != stream)
    return;
  tracker_.queue.Unqueue(entry);
  entry->state = PendingRequest::State::kAnswered;
  tracker_.queue.Touch(stream);
  entry->handler->OnReply(stream, entry, reply);
}

bool Settlement::OnFatal(PendingRequest* entry, uint32_t part, ReplyStatus status) {
  TableState* table = entry->table;
  switch (status) {
    case ReplyStatus::kUnknownTable:
      tracker_.session->Refresh();
      tracker_.tables.DropTable(table, RefusalStatus(*entry, status));
      break;
    case ReplyStatus::kDataLoss:
      tracker_.session->Refresh();
      tracker_.tables.LosePart(table, part);
      break;
    default:
      return false;
  }
  // Its operation has ended with the others; the state kAnswered kept this entry.
  return true;
}

void Settlement::Refuse(PendingRequest* entry, ReplyStatus status) {
  if (entry->operation != nullptr) End(entry->operation, RefusalStatus(*entry, status));
  if (PushesChunk(*entry) && !entry->table->sync && entry->elements > 0) {
    // It is unknown whether the server counted its sequence: an empty record settles that.
    MakeEmpty(entry);
    return Retry(entry, status);
  }
  Uncount(entry);
  Settled(entry);
}

void Settlement::SendEmpty(PendingRequest* entry, ReplyStatus status) {
  Operation* operation = entry->operation;
  const bool live = operation != nullptr && operation->live;
  if (live) --operation->records;
  MakeEmpty(entry);
  if (live) MaybeDone(operation);
  if (tracker_.closed || entry->table->dropped) return Settled(entry);
  entry = tracker_.failover.ResendMoved(entry);
  if (entry == nullptr) return;
  entry->refused = status;
  tracker_.queue.Enqueue(entry);
  entry->table->LaneOn(entry->stream)->reordering = true;
}

void Settlement::Retry(PendingRequest* entry, ReplyStatus status) {
  if (tracker_.closed || entry->table->dropped) return Settled(entry);
  if (Over(*entry) && TraitsOf(*entry).contributes) {
    MakeEmpty(entry);  // its buffer must be released
  }
  entry = tracker_.failover.ResendMoved(entry);
  if (entry == nullptr) return;
  entry->refused = status;
  if (status == ReplyStatus::kWrongEpoch) tracker_.session->Refresh();
  if (status == ReplyStatus::kExpired) tracker_.session->AskForLease();
  tracker_.queue.Enqueue(entry);
  TableLane* lane = entry->table->LaneOn(entry->stream);
  lane->reordering = true;
  // It came before one that is sent again first, as behind a refused push: nothing to wait for.
  if (status == ReplyStatus::kSequenceGap && lane->queue.front() != entry) return;
  // Records that were in flight together and are refused one after the other were one attempt.
  if (entry->posted_at < lane->refused_at) return;
  int64_t wait = lane->backoff.Next(*tracker_.random);
  // One of the two lacks a view that is on its way to it.
  if (status == ReplyStatus::kWrongEpoch) wait /= kShareOfWrongEpoch;
  lane->refused_at = tracker_.now;
  lane->retry_at = tracker_.now + wait;
  tracker_.queue.NoteTimer(lane->retry_at);
}

void Settlement::RetryPull(Stream* stream, PendingRequest* entry, ReplyStatus status) {
  if (tracker_.closed || entry->table->dropped) return Settled(entry);
  if (Failover::MovedSince(*entry)) {
    if (IsNorms(*entry)) return tracker_.norms.ReturnNorms(entry);
    return tracker_.queue.EnqueuePull(entry);
  }
  entry->refused = status;
  // The server deferred it for long, while others wait for this lane: those go first.
  if (TraitsOf(*entry).reads && status == ReplyStatus::kTooEarly)
    return tracker_.queue.EnqueuePull(entry);
  if (status == ReplyStatus::kWrongEpoch) tracker_.session->Refresh();
  if (status == ReplyStatus::kExpired) tracker_.session->AskForLease();
  tracker_.staging.GiveStaging(entry);  // other records may need it while this one waits
  entry->retry_at = tracker_.now + entry->backoff.Next(*tracker_.random);
  entry->state = PendingRequest::State::kDelayed;
  stream->delayed.PushBack(entry);
  tracker_.queue.NoteTimer(entry->retry_at);
}

void Settlement::Settled(PendingRequest* entry) {
  Operation* operation = entry->operation;
  const bool live = operation != nullptr && operation->live;
  if (live) --operation->records;
  tracker_.entries.Free(entry);
  if (live) MaybeDone(operation);
}

// ---- contributions without data -----------------------------------------------------------------

bool Settlement::Over(const PendingRequest& entry) {
  if (entry.operation != nullptr) return !entry.operation->live;
  return PushesChunk(entry) && entry.elements > 0;  // it was detached
}

void Settlement::MakeEmpty(PendingRequest* entry) {
  tracker_.staging.StopAwaiting(entry);
  tracker_.entries.Detach(entry);
  tracker_.staging.GiveStaging(entry);
  entry->device = nullptr;
  entry->data = nullptr;
  entry->elements = 0;
}

void Settlement::Uncount(PendingRequest* entry) {
  TableState* table = entry->table;
  if (!table->sync || !PushesChunk(*entry)) return;
  PartState& part = table->parts[entry->part];
  uint32_t& pushed = part.pushed[entry->step & 1];
  if (entry->numbered && part.committed <= entry->step && pushed > 0) --pushed;
  uint64_t& posted = table->PostedIn(entry->chunk, entry->step);
  if (posted == entry->step + 1) posted = 0;
  entry->numbered = false;
  if (table->chunk_pushed[entry->chunk] == entry->step + 1) table->chunk_pushed[entry->chunk] = 0;
}

}  // namespace verbena::client
