#include "client/core/request_queue.h"

#include <algorithm>
#include <utility>

#include "client/core/failpoints.h"
#include "client/core/request_tracker.h"

namespace verbena::client {

void RequestQueue::Touch(Stream* stream) {
  if (stream->dirty) return;
  stream->dirty = true;
  touched_.push_back(stream);
}

void RequestQueue::TouchStalled() {
  for (const auto& stream : tracker_.lanes->streams()) {
    if (stream->stalled || !stream->pulls.empty() || !stream->norms.empty()) Touch(stream.get());
  }
}

void RequestQueue::NoteTimer(int64_t at) { timer_ = std::min(timer_, at); }

void RequestQueue::EnqueueOn(TableLane* lane, PendingRequest* entry) {
  // The new lane may have to post others first.
  if (entry->awaited_from != nullptr && !VERBENA_FAILPOINT(client, hold_last_buffer)) {
    tracker_.staging.StopAwaiting(entry);
  }
  PendingRequest* before = nullptr;
  // New entries go to the end; returned ones go near the front.
  if (lane->queue.back() != nullptr && lane->queue.back()->order > entry->order) {
    before = lane->queue.front();
    while (before->order < entry->order) before = PendingRequestQueue::Next(before);
  }
  lane->queue.InsertBefore(before, entry);
  // The previous lane may have had direct access to device memory that this one lacks.
  if (entry->block != nullptr) entry->device = tracker_.devices.StagingFor(*entry->block);
  entry->state = PendingRequest::State::kQueued;
  entry->stream = lane->stream;
  Touch(lane->stream);
  tracker_.lanes->Want(lane->stream);
}

void RequestQueue::Enqueue(PendingRequest* entry) {
  TableState* table = entry->table;
  if (entry->parts.empty()) return EnqueueOn(table->parts[entry->part].lane, entry);
  // A record whose parts are now on several lanes is divided into one for each.
  while (entry != nullptr) {
    TableLane* lane = table->parts[entry->parts[0]].lane;
    PendingRequest* rest = tracker_.entries.SplitOff(
        entry, [lane](const PartState& part) { return part.lane == lane; });
    EnqueueOn(lane, entry);
    entry = rest;
  }
}

void RequestQueue::EnqueuePull(PendingRequest* entry) {
  EnqueuePullAt(entry, TraitsOf(*entry).awaits);
}

void RequestQueue::EnqueuePullFirst(PendingRequest* entry) { EnqueuePullAt(entry, true); }

void RequestQueue::EnqueuePullAt(PendingRequest* entry, bool front) {
  TableState* table = entry->table;
  entry->of_follower = false;
  if (entry->parts.empty()) {
    return EnqueuePullOn(table->parts[entry->part].stream, entry, front);
  }
  while (entry != nullptr) {
    Stream* stream = table->parts[entry->parts[0]].stream;
    PendingRequest* rest = tracker_.entries.SplitOff(
        entry, [stream](const PartState& part) { return part.stream == stream; });
    EnqueuePullOn(stream, entry, front);
    entry = rest;
  }
}

void RequestQueue::EnqueuePullOn(Stream* stream, PendingRequest* entry, bool front) {
  // A queued record holds no buffer: the records in front of it are posted first, and may need it.
  if (entry->awaited_from != nullptr && !VERBENA_FAILPOINT(client, hold_last_buffer)) {
    tracker_.staging.StopAwaiting(entry);
  }
  tracker_.staging.GiveStaging(entry);
  if (entry->block != nullptr) entry->device = tracker_.devices.StagingFor(*entry->block);
  entry->state = PendingRequest::State::kQueued;
  entry->stream = stream;
  const int64_t level = TraitsOf(*entry).awaits ? PullQueue::kAwaits : entry->table->priority;
  stream->pulls.Add(entry, level, front);
  Touch(stream);
  tracker_.lanes->Want(stream);
}

void RequestQueue::Unqueue(PendingRequest* entry) {
  Stream* stream = entry->stream;
  switch (entry->state) {
    case PendingRequest::State::kQueued:
      if (IsPull(*entry)) {
        stream->pulls.Remove(entry);
      } else if (IsNorms(*entry)) {
        stream->norms.Remove(entry);
      } else {
        entry->table->LaneOn(stream)->queue.Remove(entry);
      }
      break;
    case PendingRequest::State::kDelayed:
      stream->delayed.Remove(entry);
      break;
    case PendingRequest::State::kPosted:
      stream->posted.Remove(entry);
      EndRange(&entry->range);
      switch (TraitsOf(*entry).counted) {
        case RequestHandler::Counted::kAwaits:
          --stream->awaits_out;
          break;
        case RequestHandler::Counted::kPulls:
          --stream->pulls_out;
          break;
        case RequestHandler::Counted::kOrdered:
          --entry->table->LaneOn(stream)->outstanding;
          tracker_.rails.CountOut(*entry, -1);
          break;
        case RequestHandler::Counted::kNothing:
          break;
      }
      break;
    case PendingRequest::State::kEnded:
      entry->table->LaneOn(stream)->ended.Remove(entry);
      break;
    case PendingRequest::State::kKept:
      Commits::KeptOf(*entry)->Remove(entry);
      break;
    case PendingRequest::State::kHeld:
    case PendingRequest::State::kAnswered:
    case PendingRequest::State::kCopying:
    case PendingRequest::State::kFree:
      break;
  }
  entry->state = PendingRequest::State::kHeld;
}

// The order of `taken` is that of the queues.
void RequestQueue::TakeUnordered(Stream* stream, const TableState* table,
                                 std::vector<PendingRequest*>* taken) {
  stream->pulls.Take(table, taken);
  for (PendingRequestQueue* queue : {&stream->norms, &stream->delayed}) {
    for (PendingRequest* entry = queue->front(); entry != nullptr;) {
      PendingRequest* next = PendingRequestQueue::Next(entry);
      if (entry->table == table) {
        queue->Remove(entry);
        taken->push_back(entry);
      }
      entry = next;
    }
  }
  for (PendingRequest* entry : *taken) entry->state = PendingRequest::State::kHeld;
}

void RequestQueue::Reroute(TableState* table, std::vector<PendingRequest*> more) {
  std::vector<PendingRequest*> moving = std::move(more), pulls;
  for (const auto& lane : table->lanes) {
    while (PendingRequest* entry = lane->queue.front()) {
      lane->queue.Remove(entry);
      moving.push_back(entry);
    }
  }
  for (const auto& stream : tracker_.lanes->streams()) {
    TakeUnordered(stream.get(), table, &pulls);
  }
  std::sort(moving.begin(), moving.end(),
            [](const PendingRequest* a, const PendingRequest* b) { return a->order < b->order; });
  for (PendingRequest* entry : moving) Enqueue(entry);
  for (PendingRequest* entry : pulls) {
    entry->backoff.Reset();  // no server has refused it there
    if (IsNorms(*entry)) {
      tracker_.norms.ReturnNorms(entry);
    } else {
      EnqueuePull(entry);
    }
  }
}

void RequestQueue::Drop(TableState* table) {
  for (const auto& lane : table->lanes) {
    for (PendingRequestQueue* queue : {&lane->queue, &lane->ended}) {
      while (PendingRequest* entry = queue->front()) {
        queue->Remove(entry);
        tracker_.entries.Free(entry);
      }
    }
    std::vector<PendingRequest*> unordered;
    TakeUnordered(lane->stream, table, &unordered);
    for (PendingRequest* entry : unordered) tracker_.entries.Free(entry);
  }
}

void RequestQueue::Place(TableLane* lane) {
  auto& lanes = lane->stream->table_lanes;
  const auto behind = std::find_if(lanes.begin(), lanes.end(), [lane](const TableLane* other) {
    return other->table->priority < lane->table->priority;
  });
  lanes.insert(behind, lane);
}

void RequestQueue::Prioritize(TableState* table, int32_t priority) {
  table->priority = priority;
  for (const auto& lane : table->lanes) {
    if (std::erase(lane->stream->table_lanes, lane.get()) > 0) Place(lane.get());
  }
}

bool RequestQueue::RunTimer(int64_t now) {
  if (timer_ > now) return false;
  timer_ = kNever;
  for (const auto& stream : tracker_.lanes->streams()) {
    for (PendingRequest* entry = stream->delayed.front(); entry != nullptr;) {
      PendingRequest* next = PendingRequestQueue::Next(entry);
      if (entry->retry_at > now) {
        NoteTimer(entry->retry_at);
      } else {
        stream->delayed.Remove(entry);
        if (IsNorms(*entry)) {
          tracker_.norms.EnqueueNorms(entry);
        } else {
          EnqueuePull(entry);
        }
      }
      entry = next;
    }
    Touch(stream.get());  // pumping records the times of table lanes that still wait
  }
  return true;
}

}  // namespace verbena::client
