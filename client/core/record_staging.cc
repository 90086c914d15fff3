#include "client/core/record_staging.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/errors.h"
#include "client/core/failpoints.h"
#include "client/core/request_tracker.h"

namespace verbena::client {

// ---- refusals -----------------------------------------------------------------------------------

// Errors for which waiting does not help.
bool RecordStaging::IsFinal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
         absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status);
}

void RecordStaging::NotNow(Stream* stream, PendingRequest* entry, const absl::Status& status) {
  if (entry->operation != nullptr &&
      (IsFinal(status) || VERBENA_FAILPOINT(client, refusals_are_final))) {
    tracker_.settlement.End(
        entry->operation, absl::Status(status.code(), absl::StrCat(DescribeRequest(*entry), ": ",
                                                                   std::string(status.message()))));
    return tracker_.queue.Touch(stream);
  }
  Delay(stream, entry, status);
}

void RecordStaging::Delay(Stream* stream, PendingRequest* entry, const absl::Status& status) {
  StopAwaiting(entry);
  if (entry->operation != nullptr) entry->operation->not_now = status;
  // If the memory is being registered, OnMemoryReady() is called before that.
  const bool pending = absl::IsAborted(status);
  const auto wait = [&](Backoff* backoff) {
    return pending ? LaneMemory::kPatienceNanos : backoff->Next(*tracker_.random);
  };
  if (IsPull(*entry)) {
    // Other records continue, with its buffer.
    GiveStaging(entry);
    stream->pulls.Remove(entry);
    entry->retry_at = tracker_.now + wait(&entry->backoff);
    entry->state = PendingRequest::State::kDelayed;
    stream->delayed.PushBack(entry);
    tracker_.queue.NoteTimer(entry->retry_at);
    return tracker_.queue.Touch(stream);
  }
  if (entry->device == nullptr) GiveStaging(entry);  // a copy is kept, or it would be made again
  TableLane* lane = entry->table->LaneOn(stream);    // in order: those behind it wait
  lane->retry_at = tracker_.now + wait(&lane->backoff);
  tracker_.queue.NoteTimer(lane->retry_at);
}

void RecordStaging::OnMemoryReady() {
  tracker_.ReadClock();
  const auto waits = [](const PendingRequest* entry) {
    return entry != nullptr && entry->operation != nullptr && !entry->operation->not_now.ok();
  };
  for (const auto& stream : tracker_.lanes->streams()) {
    for (PendingRequest* entry = stream->delayed.front(); entry != nullptr;
         entry = PendingRequestQueue::Next(entry)) {
      if (waits(entry)) entry->retry_at = tracker_.now;
    }
    for (TableLane* lane : stream->table_lanes) {
      if (waits(lane->queue.front())) lane->retry_at = tracker_.now;
    }
    tracker_.queue.Touch(stream.get());
  }
  tracker_.queue.NoteTimer(tracker_.now);
}

// ---- buffers ------------------------------------------------------------------------------------

Staging* RecordStaging::StagingOf(const PendingRequest& entry) {
  if (entry.device != nullptr) {
    return entry.device->buffers(IsPull(entry) ? DeviceStaging::Direction::kToDevice
                                               : DeviceStaging::Direction::kToHost);
  }
  switch (TraitsOf(entry).buffers) {
    case RequestHandler::Buffers::kPacked:
      return packed_;
    case RequestHandler::Buffers::kNorms:
      return &norms_;
    case RequestHandler::Buffers::kReceived:
      break;
  }
  return received_;
}

void RecordStaging::GiveStaging(PendingRequest* entry) {
  if (entry->staging == nullptr) return;
  StagingOf(*entry)->Give(entry->staging, entry->staging_bytes);
  entry->staging = nullptr;
  entry->copy = PendingRequest::Copy::kNone;
  tracker_.queue.TouchStalled();  // a record may have waited for it, on any lane
}

bool RecordStaging::HasShare(const Stream& stream, const Staging& buffers, uint32_t bytes) {
  const size_t half = buffers.Capacity(bytes) / 2;
  if (buffers.Left(bytes) > half) return true;
  if (lanes_pulling_ == 0) {
    for (const auto& other : tracker_.lanes->streams())
      lanes_pulling_ += other->pulls.empty() ? 0 : 1;
  }
  const size_t share = half / std::max<size_t>(lanes_pulling_, 1);
  if (stream.pulls_out < std::max<size_t>(share, 2)) return true;
  short_of_ = &buffers;
  short_bytes_ = bytes;
  look_ns_ = std::min(look_ns_, tracker_.now + kLookNanos);
  return false;
}

// Whether `entry`, which awaits a buffer, is posted as soon as one is free. Behind other records it
// is not: those are posted first, so it must not keep the buffer from them.
bool RecordStaging::IsNext(const PendingRequest& entry) {
  // On a closed lane it may wait as long as a server is away. Others must still wait for a dense
  // push of a sync table, because servers hold such pushes of later steps until it arrives.
  const bool dense_step = PushesChunk(entry) && entry.table->sync;
  const bool first = IsPull(entry) ? entry.stream->pulls.front() == &entry
                                   : entry.table->LaneOn(entry.stream)->queue.front() == &entry;
  const bool open = entry.stream->open();
  if (first && (open || dense_step)) return true;
  return (open || !IsPull(entry)) && VERBENA_FAILPOINT(client, hold_last_buffer);
}

// The last buffer of a size is reserved for the oldest record that waits for one. Lanes that are
// pumped more often must not take every returned buffer.
bool RecordStaging::MayTake(const PendingRequest& entry, const Staging& from,
                            uint32_t bytes) const {
  if (from.Left(bytes) > 1) return true;
  return std::none_of(awaits_.begin(), awaits_.end(), [&](const PendingRequest* other) {
    return other->awaited_from == &from && other->order < entry.order &&
           Staging::SameSize(other->awaited_bytes, bytes) && IsNext(*other);
  });
}

void RecordStaging::AwaitStaging(Stream* stream, PendingRequest* entry, const Staging* from,
                                 uint32_t bytes) {
  stream->stalled = true;
  if (entry->awaited_from == nullptr) awaits_.push_back(entry);
  look_ns_ = std::min(look_ns_, tracker_.now + kLookNanos);
  entry->awaited_from = from;
  entry->awaited_bytes = bytes;
}

bool RecordStaging::PullsAreShort() const {
  if (short_of_ == nullptr) return false;
  if (short_of_->Left(short_bytes_) > short_of_->Capacity(short_bytes_) / 2) return false;
  const auto& streams = tracker_.lanes->streams();
  return std::any_of(streams.begin(), streams.end(), [](const auto& stream) {
    return stream->open() && stream->stalled && !stream->pulls.empty();
  });
}

Stream* RecordStaging::FindEndedPull(const Staging* from, uint32_t bytes, int64_t now) {
  for (const auto& stream : tracker_.lanes->streams()) {
    // A lane that is closing gives its buffers back when it is dead.
    if (!stream->open() || stream->reclaim_at > now) continue;
    for (const PendingRequest* entry = stream->posted.front(); entry != nullptr;
         entry = PendingRequestQueue::Next(entry)) {
      const bool ended = entry->operation == nullptr || !entry->operation->live;
      if (ended && now - entry->posted_at >= kReclaimNanos && IsPull(*entry) &&
          entry->staging != nullptr && StagingOf(*entry) == from &&
          Staging::SameSize(entry->staging_bytes, bytes)) {
        return stream.get();
      }
    }
  }
  return nullptr;
}

bool RecordStaging::RunTimers(int64_t now) {
  if (look_ns_ > now) return false;
  look_ns_ = INT64_MAX;
  if (!PullsAreShort()) short_of_ = nullptr;
  Stream* stream = nullptr;
  const auto find = [&](const Staging* from, uint32_t bytes) {
    look_ns_ = now + kLookNanos;
    if (stream == nullptr) stream = FindEndedPull(from, bytes, now);
  };
  if (short_of_ != nullptr) find(short_of_, short_bytes_);
  for (const PendingRequest* waiting : awaits_) {
    const bool none = waiting->awaited_from->Left(waiting->awaited_bytes) == 0;
    if (none && IsNext(*waiting)) find(waiting->awaited_from, waiting->awaited_bytes);
  }
  if (stream == nullptr || VERBENA_FAILPOINT(client, keep_ended_pulls)) return false;
  const bool lately = now - stream->reclaim_at < kMostReclaimNanos;
  const int64_t pause = lately ? 2 * stream->reclaim_pause : 0;
  stream->reclaim_pause = std::clamp(pause, 2 * kReclaimNanos, kMostReclaimNanos);
  stream->reclaim_at = now + stream->reclaim_pause;
  tracker_.lanes->Close(stream, absl::UnavailableError("pulls of ended calls keep its buffers"));
  return true;
}

void RecordStaging::StopAwaiting(PendingRequest* entry) {
  if (std::exchange(entry->awaited_from, nullptr) == nullptr) return;
  std::erase(awaits_, entry);
  tracker_.queue.TouchStalled();  // it may have blocked others
}

bool RecordStaging::TakeStaging(Stream* stream, PendingRequest* entry, Staging* from,
                                uint64_t bytes) {
  // It may have staging from an attempt that the lane did not accept.
  if (entry->staging != nullptr && entry->staging_bytes == bytes) return true;
  GiveStaging(entry);
  const auto size = static_cast<uint32_t>(bytes);
  Staging::Buffer buffer;
  if (MayTake(*entry, *from, size)) {
    if (absl::Status s = from->Take(size, &buffer); !s.ok()) {
      NotNow(stream, entry, s);
      return false;
    }
  }
  if (buffer.data == nullptr) {
    AwaitStaging(stream, entry, from, size);
    return false;
  }
  StopAwaiting(entry);
  entry->staging = buffer.data;
  entry->staging_bytes = size;
  return true;
}

}  // namespace verbena::client
