// Memory for posting records: staging buffers, and transports' refusals.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/errors.h"
#include "client/core/journal.h"
#include "rdma/sim/sim_network.h"

namespace verbena::client {

// ---- refusals -----------------------------------------------------------------------------------

// Errors for which waiting does not help.
bool Journal::IsFinal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
         absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status);
}

void Journal::NotNow(Stream* stream, Entry* entry, const absl::Status& status) {
  if (entry->operation != nullptr && (IsFinal(status) || rdma::planted_bugs().refusals_are_final)) {
    End(entry->operation, absl::Status(status.code(), absl::StrCat(DescribeEntry(*entry), ": ",
                                                                   std::string(status.message()))));
    return Touch(stream);
  }
  Delay(stream, entry, status);
}

void Journal::Delay(Stream* stream, Entry* entry, const absl::Status& status) {
  StopAwaiting(entry);
  if (entry->operation != nullptr) entry->operation->not_now = status;
  // If the memory is being registered, OnMemoryReady() is called before that.
  const bool pending = absl::IsAborted(status);
  const auto wait = [&](Backoff* backoff) {
    return pending ? LaneMemory::kPatienceNanos : backoff->Next(*random_);
  };
  if (IsPull(entry->type)) {
    // Other records continue, with its buffer.
    GiveStaging(entry);
    stream->pulls.Remove(entry);
    entry->retry_at = now_ + wait(&entry->backoff);
    entry->state = Entry::State::kDelayed;
    stream->delayed.PushBack(entry);
    NoteTimer(entry->retry_at);
    return Touch(stream);
  }
  if (entry->device == nullptr) GiveStaging(entry);  // a copy is kept, or it would be made again
  TableLane* lane = entry->table->LaneOn(stream);    // in order: those behind it wait
  lane->retry_at = now_ + wait(&lane->backoff);
  NoteTimer(lane->retry_at);
}

void Journal::OnMemoryReady() {
  now_ = clock_->NowNanos();
  const auto waits = [](const Entry* entry) {
    return entry != nullptr && entry->operation != nullptr && !entry->operation->not_now.ok();
  };
  for (const auto& stream : lanes_->streams()) {
    for (Entry* entry = stream->delayed.front(); entry != nullptr;
         entry = EntryQueue::Next(entry)) {
      if (waits(entry)) entry->retry_at = now_;
    }
    for (TableLane* lane : stream->table_lanes) {
      if (waits(lane->queue.front())) lane->retry_at = now_;
    }
    Touch(stream.get());
  }
  NoteTimer(now_);
}

// ---- staging ------------------------------------------------------------------------------------

// Whether the lane may pull into one more buffer. When half of them are taken, pulling lanes share
// the other half. Otherwise one lane could leave the other servers idle, and no buffer for received
// data that is copied on to a device.
bool Journal::HasShare(const Stream& stream, const Staging& buffers, uint32_t bytes) {
  const size_t half = buffers.Capacity(bytes) / 2;
  if (buffers.Left(bytes) > half) return true;
  if (lanes_pulling_ == 0) {
    for (const auto& other : lanes_->streams()) lanes_pulling_ += other->pulls.empty() ? 0 : 1;
  }
  const size_t share = half / std::max<size_t>(lanes_pulling_, 1);
  return stream.pulls_out < std::max<size_t>(share, 2);
}

// Whether `entry`, which awaits a buffer, is posted as soon as one is free. Behind other records it
// is not: those are posted first, so it must not keep the buffer from them.
bool Journal::IsNext(const Entry& entry) {
  // On a closed lane it may wait as long as a server is away. Others must still wait for a dense
  // push of a sync table, because servers hold such pushes of later steps until it arrives.
  const bool dense_step = entry.type == RecordType::kPush && entry.table->sync;
  const bool first = IsPull(entry.type)
                         ? entry.stream->pulls.front() == &entry
                         : entry.table->LaneOn(entry.stream)->queue.front() == &entry;
  const bool open = entry.stream->open();
  if (first && (open || dense_step)) return true;
  return (open || !IsPull(entry.type)) && rdma::planted_bugs().hold_last_buffer;
}

// The last buffer of a size is reserved for the oldest record that waits for one. Lanes that are
// pumped more often must not take every returned buffer.
bool Journal::MayTake(const Entry& entry, const Staging& from, uint32_t bytes) const {
  if (from.Left(bytes) > 1) return true;
  return std::none_of(awaits_staging_.begin(), awaits_staging_.end(), [&](const Entry* other) {
    return other->awaited_from == &from && other->order < entry.order &&
           Staging::SameSize(other->awaited_bytes, bytes) && IsNext(*other);
  });
}

void Journal::AwaitStaging(Stream* stream, Entry* entry, const Staging* from, uint32_t bytes) {
  stream->stalled = true;
  if (entry->awaited_from == nullptr) awaits_staging_.push_back(entry);
  entry->awaited_from = from;
  entry->awaited_bytes = bytes;
}

void Journal::StopAwaiting(Entry* entry) {
  if (std::exchange(entry->awaited_from, nullptr) == nullptr) return;
  std::erase(awaits_staging_, entry);
  TouchStalled();  // it may have blocked others
}

bool Journal::TakeStaging(Stream* stream, Entry* entry, Staging* from, uint64_t bytes) {
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
