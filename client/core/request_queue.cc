#include "client/core/request_queue.h"

#include <algorithm>
#include <utility>

#include "client/core/journal.h"
#include "rdma/sim/sim_network.h"

namespace verbena::client {

void RequestQueue::Touch(Stream* stream) {
  if (stream->dirty) return;
  stream->dirty = true;
  touched_.push_back(stream);
}

void RequestQueue::TouchStalled() {
  for (const auto& stream : journal_.lanes->streams()) {
    if (stream->stalled || !stream->pulls.empty() || !stream->norms.empty()) Touch(stream.get());
  }
}

void RequestQueue::NoteTimer(int64_t at) { timer_ = std::min(timer_, at); }

void RequestQueue::EnqueueOn(TableLane* lane, Entry* entry) {
  // The new lane may have to post others first.
  if (entry->awaited_from != nullptr && !rdma::planted_bugs().hold_last_buffer) {
    journal_.staging.StopAwaiting(entry);
  }
  Entry* before = nullptr;
  // New entries go to the end; returned ones go near the front.
  if (lane->queue.back() != nullptr && lane->queue.back()->order > entry->order) {
    before = lane->queue.front();
    while (before->order < entry->order) before = EntryQueue::Next(before);
  }
  lane->queue.InsertBefore(before, entry);
  // The previous lane may have had direct access to device memory that this one lacks.
  if (entry->block != nullptr) entry->device = journal_.devices.StagingFor(*entry->block);
  entry->state = Entry::State::kQueued;
  entry->stream = lane->stream;
  Touch(lane->stream);
  journal_.lanes->Want(lane->stream);
}

void RequestQueue::Enqueue(Entry* entry) {
  TableState* table = entry->table;
  if (entry->parts.empty()) return EnqueueOn(table->parts[entry->part].lane, entry);
  // A record whose parts are now on several lanes is divided into one for each.
  while (entry != nullptr) {
    TableLane* lane = table->parts[entry->parts[0]].lane;
    Entry* rest = journal_.entries.SplitOff(
        entry, [lane](const PartState& part) { return part.lane == lane; });
    EnqueueOn(lane, entry);
    entry = rest;
  }
}

void RequestQueue::EnqueuePull(Entry* entry) { EnqueuePullAt(entry, TraitsOf(*entry).awaits); }

void RequestQueue::EnqueuePullFirst(Entry* entry) { EnqueuePullAt(entry, true); }

void RequestQueue::EnqueuePullAt(Entry* entry, bool front) {
  TableState* table = entry->table;
  if (entry->parts.empty()) {
    return EnqueuePullOn(table->parts[entry->part].stream, entry, front);
  }
  while (entry != nullptr) {
    Stream* stream = table->parts[entry->parts[0]].stream;
    Entry* rest = journal_.entries.SplitOff(
        entry, [stream](const PartState& part) { return part.stream == stream; });
    EnqueuePullOn(stream, entry, front);
    entry = rest;
  }
}

void RequestQueue::EnqueuePullOn(Stream* stream, Entry* entry, bool front) {
  // A queued record holds no buffer: the records in front of it are posted first, and may need it.
  if (entry->awaited_from != nullptr && !rdma::planted_bugs().hold_last_buffer) {
    journal_.staging.StopAwaiting(entry);
  }
  journal_.staging.GiveStaging(entry);
  if (entry->block != nullptr) entry->device = journal_.devices.StagingFor(*entry->block);
  entry->state = Entry::State::kQueued;
  entry->stream = stream;
  if (front) {
    stream->pulls.PushFront(entry);
  } else {
    stream->pulls.PushBack(entry);
  }
  Touch(stream);
  journal_.lanes->Want(stream);
}

void RequestQueue::Unqueue(Entry* entry) {
  Stream* stream = entry->stream;
  switch (entry->state) {
    case Entry::State::kQueued:
      if (IsPull(*entry)) {
        stream->pulls.Remove(entry);
      } else if (IsNorms(*entry)) {
        stream->norms.Remove(entry);
      } else {
        entry->table->LaneOn(stream)->queue.Remove(entry);
      }
      break;
    case Entry::State::kDelayed:
      stream->delayed.Remove(entry);
      break;
    case Entry::State::kPosted:
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
          journal_.rails.CountOut(*entry, -1);
          break;
        case RequestHandler::Counted::kNothing:
          break;
      }
      break;
    case Entry::State::kEnded:
      entry->table->LaneOn(stream)->ended.Remove(entry);
      break;
    case Entry::State::kKept:
      Commits::KeptOf(*entry)->Remove(entry);
      break;
    case Entry::State::kHeld:
    case Entry::State::kAnswered:
    case Entry::State::kCopying:
    case Entry::State::kFree:
      break;
  }
  entry->state = Entry::State::kHeld;
}

void RequestQueue::Reroute(TableState* table, std::vector<Entry*> more) {
  std::vector<Entry*> moving = std::move(more), pulls;
  for (const auto& lane : table->lanes) {
    while (Entry* entry = lane->queue.front()) {
      lane->queue.Remove(entry);
      moving.push_back(entry);
    }
  }
  for (const auto& stream : journal_.lanes->streams()) {
    for (EntryQueue* queue : {&stream->pulls, &stream->norms, &stream->delayed}) {
      for (Entry* entry = queue->front(); entry != nullptr;) {
        Entry* next = EntryQueue::Next(entry);
        if (entry->table == table) {
          queue->Remove(entry);
          entry->state = Entry::State::kHeld;
          entry->backoff.Reset();  // no server has refused it there
          pulls.push_back(entry);
        }
        entry = next;
      }
    }
  }
  std::sort(moving.begin(), moving.end(),
            [](const Entry* a, const Entry* b) { return a->order < b->order; });
  for (Entry* entry : moving) Enqueue(entry);
  for (Entry* entry : pulls) {
    if (IsNorms(*entry)) {
      journal_.norms.ReturnNorms(entry);
    } else {
      EnqueuePull(entry);
    }
  }
}

void RequestQueue::Drop(TableState* table) {
  for (const auto& lane : table->lanes) {
    for (EntryQueue* queue : {&lane->queue, &lane->ended}) {
      while (Entry* entry = queue->front()) {
        queue->Remove(entry);
        journal_.entries.Free(entry);
      }
    }
    for (EntryQueue* queue : {&lane->stream->pulls, &lane->stream->norms, &lane->stream->delayed}) {
      for (Entry* entry = queue->front(); entry != nullptr;) {
        Entry* next = EntryQueue::Next(entry);
        if (entry->table == table) {
          queue->Remove(entry);
          journal_.entries.Free(entry);
        }
        entry = next;
      }
    }
  }
}

bool RequestQueue::RunTimer(int64_t now) {
  if (timer_ > now) return false;
  timer_ = kNever;
  for (const auto& stream : journal_.lanes->streams()) {
    for (Entry* entry = stream->delayed.front(); entry != nullptr;) {
      Entry* next = EntryQueue::Next(entry);
      if (entry->retry_at > now) {
        NoteTimer(entry->retry_at);
      } else {
        stream->delayed.Remove(entry);
        if (IsNorms(*entry)) {
          journal_.norms.EnqueueNorms(entry);
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
