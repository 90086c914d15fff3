#include "client/core/poster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/errors.h"
#include "client/core/failpoints.h"
#include "client/core/request_tracker.h"

namespace verbena::client {
namespace {

// Number of a server's deferred operations (half of the lane's) that are reserved for awaits: a
// step must be able to end behind any number of pulls. When all are taken, one more request is
// sent: an await, a request for norms, or a pull if none is in flight. The server answers it if it
// can. Otherwise it refuses it or a request that has waited longer, which is resent later, so that
// all get a turn.
constexpr uint32_t kAwaitReserve = 4;
// With more replies than this, some should be copied or unpacked while others arrive.
constexpr size_t kFewAnswers = 8;

// Too small to reserve anything: ReserveOf() applies only to larger lanes.
bool IsTiny(const Stream& stream) {
  const rdma::LaneConfig& config = stream.lane->ticket().config;
  return config.operations < 8 || config.small_slots < 4;
}

// Whether the entry is the end-step that a push-pull of a whole table makes. Its pulls wait for the
// commit of that step in every partition, so they are answered only after the end-step was
// accepted.
bool EndsStepOf(const Operation& operation, const PendingRequest& entry) {
  return TraitsOf(entry).ends_step && operation.ends_step && entry.table == operation.table &&
         entry.step == operation.step;
}

}  // namespace

bool Poster::OnlyAnswersLeft(const Operation* operation) const {
  if (tracker_.entries.in_use() > kFewAnswers) return false;
  if (tracker_.norms.any()) return false;  // their steps continue with the contents of replies
  size_t out = 0;
  for (const auto& stream : tracker_.lanes->streams()) {
    out += stream->posted.size();
    for (const PendingRequest* e = stream->posted.front(); e != nullptr;
         e = PendingRequestQueue::Next(e)) {
      // The server may keep it for longer than `operation` takes.
      if (e->operation != operation && !EndsStepOf(*operation, *e)) return false;
    }
  }
  return out == tracker_.entries.in_use();
}

bool Poster::Pump() {
  if (!tracker_.queue.touched() && !tracker_.norms.due() && !tracker_.rails.due()) return false;
  tracker_.ReadClock();
  tracker_.staging.BeginPump();
  bool worked = tracker_.rails.due() && tracker_.rails.RunMoves();
  if (tracker_.norms.due()) tracker_.norms.RunNorms();
  // Streams that pumping touches are pumped in the same call, for a limited number of rounds.
  for (int round = 0; round < 4 && tracker_.queue.touched(); ++round) {
    tracker_.queue.TakeTouched(&pumping_);
    for (Stream* stream : pumping_) {
      stream->dirty = false;
      worked |= PumpStream(stream);
    }
    pumping_.clear();
  }
  tracker_.devices.Flush();
  return worked;
}

bool Poster::PumpStream(Stream* stream) {
  if (!stream->open()) return false;
  stream->stalled = false;
  bool worked = false;
  for (size_t i = 0; i < stream->table_lanes.size() && stream->open(); ++i) {
    worked |= PumpTable(stream, stream->table_lanes[i]);
  }
  if (stream->open()) worked |= tracker_.norms.PumpNorms(stream);
  if (stream->open()) worked |= PumpPulls(stream);
  return worked;
}

// An empty push to a sync table. It waits for no reply to a record behind it: that may be a push
// that the server holds for workers which wait for the step that this one settles.
bool Poster::SettlesStep(const PendingRequest& entry) {
  return TraitsOf(entry).contributes && entry.table->sync && entry.operation == nullptr;
}

bool Poster::PumpTable(Stream* stream, TableLane* lane) {
  bool worked = false;
  if (tracker_.devices.any()) tracker_.devices.CopyAhead(stream, lane);
  while (PendingRequest* entry = FrontOf(lane)) {
    if (lane->retry_at > tracker_.now) {
      tracker_.queue.NoteTimer(lane->retry_at);
      tracker_.staging.StopAwaiting(entry);
      break;
    }
    if (lane->reordering && !SettlesStep(*entry)) {
      if (lane->outstanding != 0) {
        tracker_.staging.StopAwaiting(entry);
        break;
      }
      lane->reordering = false;
    }
    if (Pointless(entry)) {
      lane->queue.Remove(entry);
      tracker_.entries.Free(entry);
      worked = true;
      continue;
    }
    if (lane->changes_out > 0 || Gated(*entry) ||
        (entry->table->moving > 0 && tracker_.rails.Draining(*entry))) {
      tracker_.staging.StopAwaiting(entry);
      break;
    }
    if (!entry->handler->Post(stream, entry)) break;
    worked = true;
  }
  return worked;
}

PendingRequest* Poster::FrontOf(TableLane* lane) {
  const TableState& table = *lane->table;
  PendingRequest* entry = lane->queue.front();
  if (table.away == 0) return entry;
  const auto here = [](const PartState& part) { return !part.away; };
  for (; entry != nullptr; entry = PendingRequestQueue::Next(entry)) {
    if (entry->parts.empty()) {
      if (here(table.parts[entry->part])) return entry;
      continue;
    }
    const auto may_go = [&](uint32_t part) { return here(table.parts[part]); };
    if (std::none_of(entry->parts.begin(), entry->parts.end(), may_go)) continue;
    if (PendingRequest* rest = tracker_.entries.SplitOff(entry, here)) {
      lane->queue.InsertBefore(PendingRequestQueue::Next(entry), rest);
      rest->state = PendingRequest::State::kQueued;
      rest->stream = lane->stream;
    }
    return entry;
  }
  return nullptr;
}

// Its step's commit is known, and no operation waits for its reply.
bool Poster::Pointless(PendingRequest* entry) const {
  const TableState& table = *entry->table;
  if (!table.sync || TraitsOf(*entry).in_any_step) return false;
  if (PushesChunk(*entry)) {
    return entry->operation == nullptr && table.chunk_version[entry->chunk] > entry->step;
  }
  if (TraitsOf(*entry).contributes && entry->operation != nullptr) return false;
  Prune(entry);
  return entry->parts.empty();
}

// Invariant 4 of client_core.h.
bool Poster::Gated(const PendingRequest& entry) const {
  const TableState& table = *entry.table;
  if (!table.sync || TraitsOf(entry).in_any_step) return false;
  if (entry.step >= table.first_held && !VERBENA_FAILPOINT(client, hold_no_steps)) return true;
  if (PushesChunk(entry)) return table.chunk_version[entry.chunk] < entry.step;
  return std::any_of(entry.parts.begin(), entry.parts.end(),
                     [&](uint32_t part) { return table.parts[part].committed < entry.step; });
}

bool Poster::PumpPulls(Stream* stream) {
  const uint32_t deferred = std::max(stream->lane->ticket().config.operations / 2, 1u);
  const uint32_t pulls = deferred > 2 * kAwaitReserve ? deferred - kAwaitReserve : deferred;
  bool worked = false;
  while (PendingRequest* entry = stream->pulls.front()) {
    if (TraitsOf(*entry).awaits) {
      Prune(entry);
      if (entry->parts.empty()) {
        stream->pulls.Remove(entry);
        tracker_.entries.Free(entry);
        worked = true;
        continue;
      }
    }
    // Also a pull if none is in flight: unanswered awaits must not block it, because others may
    // wait for a step that the caller ends after its pull.
    const bool asks = TraitsOf(*entry).awaits || stream->pulls_out == 0;
    const uint32_t out = stream->pulls_out + stream->awaits_out;
    if (out >= (asks ? deferred + 1 : pulls) ||
        (out >= pulls && IsTiny(*stream) && VERBENA_FAILPOINT(client, awaits_before_pulls))) {
      tracker_.staging.StopAwaiting(entry);
      stream->stalled = true;
      break;
    }
    if (!entry->handler->Post(stream, entry)) break;
    worked = true;
  }
  return worked;
}

void Poster::Prune(PendingRequest* entry) const {
  const TableState& table = *entry->table;
  const uint64_t version = TraitsOf(*entry).awaits ? entry->min_version : entry->step + 1;
  entry->KeepGroups([&](size_t i) {
    const PartState& part = table.parts[entry->parts[i]];
    return !part.lost && part.committed < version;
  });
}

// Servers hold sync pushes in their slots until lower ranks have pushed the same, and those may
// have to wait for an earlier step first. So pushes leave room for requests that are answered at
// once, and for the oldest push that is not posted. Then the earliest step always continues,
// regardless of resources held by later steps of other tables.
rdma::WorkerLane::Reserve Poster::ReserveOf(const Stream& stream, const PendingRequest& entry,
                                            bool oldest) {
  if (IsTiny(stream)) return {0, 0, 0};
  switch (TraitsOf(entry).leaves) {
    case RequestHandler::Leaves::kNothing:
      break;
    case RequestHandler::Leaves::kOperations:
      return {2, 0, 0};
    case RequestHandler::Leaves::kSlots:
      return oldest ? rdma::WorkerLane::Reserve{1, 1, 0} : rdma::WorkerLane::Reserve{2, 2, 1};
  }
  return {0, 0, 0};
}

// Whether the entry is the oldest of the pushes and end-steps that wait on this stream.
bool Poster::Oldest(const Stream& stream, const PendingRequest& entry) {
  return std::none_of(stream.table_lanes.begin(), stream.table_lanes.end(),
                      [&](const TableLane* lane) {
                        return !lane->queue.empty() && lane->queue.front()->order < entry.order;
                      });
}

// Whether the entry may take the slot that is reserved for the oldest push, because its table has a
// greater priority. The reserve must prevent that servers hold pushes of later steps in all slots.
// So it may if a slot has a push that is older than all that wait: servers never hold that one for
// a push that waits here.
bool Poster::MayOvertake(const Stream& stream, const PendingRequest& entry) {
  const PendingRequest* oldest = nullptr;
  for (const TableLane* lane : stream.table_lanes) {
    const PendingRequest* front = lane->queue.front();
    if (front != nullptr && (oldest == nullptr || front->order < oldest->order)) oldest = front;
  }
  if (oldest == nullptr || entry.table->priority <= oldest->table->priority) return false;
  for (const PendingRequest* posted = stream.posted.front(); posted != nullptr;
       posted = PendingRequestQueue::Next(posted)) {
    if (PushesChunk(*posted) && posted->order < oldest->order) return true;
  }
  return false;
}

bool Poster::Fits(Stream* stream, PendingRequest* entry, uint32_t payload_bytes) {
  const size_t groups = std::max<size_t>(entry->parts.size(), 1);
  if (stream->lane->CanPost(groups, payload_bytes, ReserveOf(*stream, *entry, false))) return true;
  if (PushesChunk(*entry) && (Oldest(*stream, *entry) || MayOvertake(*stream, *entry)) &&
      stream->lane->CanPost(groups, payload_bytes, ReserveOf(*stream, *entry, true))) {
    return true;
  }
  const rdma::LaneConfig& config = stream->lane->ticket().config;
  const uint32_t slot =
      std::max(config.small_slot_bytes, config.large_slots == 0 ? 0u : config.large_slot_bytes);
  if (PayloadOffset(static_cast<uint32_t>(groups)) + uint64_t{payload_bytes} > slot) {
    return ReopenLarger(stream, entry, payload_bytes);
  }
  tracker_.staging.StopAwaiting(entry);
  stream->stalled = true;
  return false;
}

// The record fits no slot of this lane. A server sizes slots by the tables that it knows, so a
// table created after the lane was opened needs a new lane, whose request names the size: the
// server may not know the table yet. If that one is too small too, the error is final.
bool Poster::ReopenLarger(Stream* stream, PendingRequest* entry, uint32_t payload_bytes) {
  const rdma::LaneConfig& config = stream->lane->ticket().config;
  const size_t groups = std::max<size_t>(entry->parts.size(), 1);
  const uint32_t needed = PayloadOffset(static_cast<uint32_t>(groups)) + payload_bytes;
  if (stream->record_bytes < needed) {
    stream->record_bytes = needed;
    tracker_.lanes->Close(stream, absl::UnavailableError("reopened for larger slots"));
    return false;
  }
  const absl::Status status = absl::InvalidArgumentError(absl::StrCat(
      entry->table->embedding() ? "a record of rows" : "a chunk", " of table '",
      entry->table->name(), "' has ", payload_bytes, " bytes; ",
      DescribeServer(*tracker_.session, *stream), " grants slots of ", config.large_slot_bytes,
      " bytes at most: create the table with smaller chunk_bytes"));
  if (entry->operation != nullptr) {
    tracker_.settlement.End(entry->operation, status);
  } else {
    tracker_.queue.Unqueue(entry);
    tracker_.entries.Free(entry);
  }
  tracker_.queue.Touch(stream);
  return false;
}

bool Poster::Send(Stream* stream, PendingRequest* entry, rdma::WorkerLane::Request* request) {
  request->header.table = entry->table->id();
  request->cookie = entry->index;
  entry->range = BeginRange("record", request->payload.bytes);
  const absl::Status status = stream->lane->Post(*request);
  if (!status.ok()) {
    EndRange(&entry->range);
    // CanPost() was true, so either the lane is closing and its records return through
    // tracker_.failover.OnLaneDead(), or the record cannot be sent at all.
    if (status.code() == absl::StatusCode::kInvalidArgument && entry->operation != nullptr) {
      tracker_.settlement.End(entry->operation, status);
      tracker_.queue.Touch(stream);
    }
    return false;
  }
  tracker_.staging.StopAwaiting(entry);
  // The entry is in a queue of this stream: Post() is called only for queued entries.
  if (IsPull(*entry)) {
    stream->pulls.Remove(entry);
  } else if (IsNorms(*entry)) {
    stream->norms.Remove(entry);
  } else {
    TableLane* lane = entry->table->LaneOn(stream);
    lane->queue.Remove(entry);
    ++lane->outstanding;
    tracker_.rails.CountOut(*entry, 1);
  }
  if (entry->operation != nullptr && !entry->operation->not_now.ok()) {
    entry->operation->not_now = absl::OkStatus();
  }
  entry->state = PendingRequest::State::kPosted;
  entry->posted_at = tracker_.now;
  entry->revision = tracker_.session->view().revision();
  stream->posted.PushBack(entry);
  RailMoves::CountLoad(*stream, *entry);
  if (++entry->posts > 1) ++tracker_.counters.records_resent;
  return true;
}

}  // namespace verbena::client
