#include "client/core/device_copies.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/errors.h"
#include "client/core/request_tracker.h"

namespace verbena::client {
namespace {

// Number of a table's records on a lane, beyond the number of slots, that are copied in advance:
// one that is posted next, and one that is copied meanwhile. More would take buffers from other
// lanes.
constexpr uint32_t kCopiesAhead = 2;

// A record that was posted this often without a copy, and lost its lane each time, may be the
// cause: if its memory was freed, a device's access to it ends the lane. A copy fails with an error
// instead.
constexpr uint32_t kDirectPosts = 2;

absl::Status CopyStatus(const PendingRequest& entry, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(DescribeRequest(entry), ": ", std::string(status.message())));
}

}  // namespace

DeviceStaging* DeviceCopies::StagingFor(const rdma::MemoryBlock& block) {
  if (block.device() == nullptr) return nullptr;
  for (const auto& staging : devices_) {
    if (&staging->device() == block.device().get()) return staging.get();
  }
  devices_.push_back(
      std::make_unique<DeviceStaging>(block.device(), tracker_.staging.packed()->limit()));
  return devices_.back().get();
}

void DeviceCopies::EndWith(Stream* stream, PendingRequest* entry, const absl::Status& status) {
  tracker_.settlement.End(entry->operation, CopyStatus(*entry, status));
  tracker_.queue.Touch(stream);
}

// ---- direct access ------------------------------------------------------------------------------

bool DeviceCopies::GoesDirect(const Stream& stream, const PendingRequest& entry) const {
  return (entry.posts < kDirectPosts || direct_only_) &&
         tracker_.lanes->memory().Reaches(stream, *entry.block);
}

DeviceCopies::Way DeviceCopies::WayOf(Stream* stream, PendingRequest* entry) {
  const bool pull = IsPull(*entry);
  const std::shared_ptr<rdma::MemoryBlock>& block = entry->operation->blocks[pull ? 1 : 0];
  entry->direct = GoesDirect(*stream, *entry);
  if (!entry->direct) {
    if (!direct_only_) return Way::kStaged;
    EndWith(stream, entry, tracker_.lanes->memory().WhyNot(*stream, *block));
    return Way::kEnded;
  }
  const absl::StatusOr<bool> passed =
      entry->device->Passed(entry->operation->marks[pull ? 1 : 0], tracker_.now);
  if (!passed.ok()) {
    EndWith(stream, entry, passed.status());
    return Way::kEnded;
  }
  // A pull need not wait for work that still uses its destination: it can use staging.
  if (!*passed) return pull && !direct_only_ ? Way::kStaged : Way::kLater;
  const absl::Status ready =
      pull ? tracker_.lanes->memory()
                 .Expose(stream, block, entry->data, entry->handler->BytesOf(*entry))
                 .status()
           : tracker_.lanes->memory().Register(stream, *block);
  if (ready.ok()) return Way::kDirect;
  if (tracker_.lanes->memory().BeingRegistered(*stream, *block)) {
    tracker_.staging.NotNow(stream, entry, CopyStatus(*entry, ready));
    return Way::kLater;
  }
  if (direct_only_) {  // no other path exists: retry, unless that cannot help
    tracker_.lanes->memory().RefuseNow(*stream, *block, ready);
    const absl::Status why = tracker_.lanes->memory().WhyNot(*stream, *block);
    if (RecordStaging::IsFinal(ready)) {
      EndWith(stream, entry, why);
      return Way::kEnded;
    }
    tracker_.staging.Delay(stream, entry, CopyStatus(*entry, why));
    return Way::kLater;
  }
  tracker_.lanes->memory().Refuse(*stream, *block, ready);
  tracker_.queue.Touch(stream);  // a push is copied then
  return WayOf(stream, entry);
}

// ---- pushes -------------------------------------------------------------------------------------

void DeviceCopies::CopyAhead(Stream* stream, TableLane* lane) {
  const uint32_t most = stream->lane->ticket().config.large_slots + kCopiesAhead;
  uint32_t ahead = 0;
  for (PendingRequest* entry = lane->queue.front(); entry != nullptr && ahead < most;
       entry = PendingRequestQueue::Next(entry)) {
    ++ahead;
    if (!PushesChunk(*entry) || entry->device == nullptr) continue;
    entry->direct = entry->copy == PendingRequest::Copy::kNone && GoesDirect(*stream, *entry);
    if (entry->direct) continue;
    // In order: a copy behind one that cannot be made yet would only hold a buffer.
    if (entry->copy == PendingRequest::Copy::kNone &&
        (tracker_.poster.Gated(*entry) || !StartCopy(stream, entry)))
      return;
  }
}

// False: it cannot be copied yet, or its operation has ended, which changes the queue.
bool DeviceCopies::StartCopy(Stream* stream, PendingRequest* entry) {
  DeviceStaging* device = entry->device;
  if (direct_only_) {
    EndWith(stream, entry, tracker_.lanes->memory().WhyNot(*stream, *entry->block));
    return false;
  }
  const absl::StatusOr<bool> passed = device->Passed(entry->operation->marks[0], tracker_.now);
  if (!passed.ok()) {
    EndWith(stream, entry, passed.status());
    return false;
  }
  if (!*passed) return false;
  const auto bytes = static_cast<uint32_t>(entry->handler->BytesOf(*entry));
  Staging* buffers = tracker_.staging.StagingOf(*entry);
  if (entry->staging == nullptr && buffers->Left(bytes) <= 1) {
    if (!OldestToCopy(*entry) || (buffers->Left(bytes) == 0 && !TakeBack(*entry))) {
      stream->stalled = true;
      return false;
    }
  }
  if (!tracker_.staging.TakeStaging(stream, entry, buffers, bytes)) return false;
  device->CopyOut(entry->data, entry->staging, bytes, entry->index);
  entry->copy = PendingRequest::Copy::kRunning;
  return true;
}

// Compares with the pushes through the same buffers on all lanes, including closed ones: records
// that wait for an older push must not hold the last buffer.
bool DeviceCopies::OldestToCopy(const PendingRequest& entry) const {
  for (const auto& stream : tracker_.lanes->streams()) {
    for (const TableLane* lane : stream->table_lanes) {
      for (const PendingRequest* other = lane->queue.front();
           other != nullptr && other->order < entry.order; other = other->queue_links.next) {
        if (other->device == entry.device && other->copy == PendingRequest::Copy::kNone)
          return false;
      }
    }
  }
  return true;
}

// A push that was kept for a server that takes over is older than later copies, and is posted
// before them. So the youngest copy that is not posted releases its buffer.
bool DeviceCopies::TakeBack(const PendingRequest& entry) {
  const auto bytes = static_cast<uint32_t>(entry.handler->BytesOf(entry));
  PendingRequest* youngest = nullptr;
  for (const auto& stream : tracker_.lanes->streams()) {
    for (const TableLane* lane : stream->table_lanes) {
      for (PendingRequest* other = lane->queue.front(); other != nullptr;
           other = PendingRequestQueue::Next(other)) {
        if (other->device != entry.device || other->copy != PendingRequest::Copy::kDone) continue;
        if (!Staging::SameSize(other->staging_bytes, bytes)) continue;
        if (youngest == nullptr || other->order > youngest->order) youngest = other;
      }
    }
  }
  if (youngest == nullptr || youngest->order < entry.order) return false;
  tracker_.staging.GiveStaging(youngest);
  return true;
}

PendingRequest* DeviceCopies::LeaveToCopy(PendingRequest* entry) {
  PendingRequest* owed = tracker_.entries.NewRequest(entry->handler, entry->table, nullptr);
  owed->order = entry->order;
  owed->part = entry->part;
  owed->chunk = entry->chunk;
  owed->array = entry->array;
  owed->applies = entry->applies;
  owed->step = entry->step;
  owed->posts = entry->posts;
  owed->refused = entry->refused;
  owed->numbered = std::exchange(entry->numbered, false);
  entry->state = PendingRequest::State::kCopying;
  return owed;
}

void DeviceCopies::DropCopies(Stream* stream) {
  for (TableLane* lane : stream->table_lanes) {
    for (PendingRequest* entry = lane->queue.front(); entry != nullptr;
         entry = PendingRequestQueue::Next(entry)) {
      if (entry->copy == PendingRequest::Copy::kDone) tracker_.staging.GiveStaging(entry);
    }
  }
}

// ---- pulls --------------------------------------------------------------------------------------

void DeviceCopies::Land(PendingRequest* entry) {
  Operation* operation = entry->operation;
  const uint64_t bytes = entry->handler->BytesOf(*entry);
  entry->state = PendingRequest::State::kCopying;
  entry->device->CopyIn(entry->staging, entry->data, bytes, operation->marks[1], entry->index,
                        tracker_.now);
}

// ---- progress -----------------------------------------------------------------------------------

void DeviceCopies::OnCopied(uint64_t cookie, const absl::Status& status) {
  PendingRequest* entry = tracker_.entries.At(cookie);
  Operation* operation = entry->operation;
  if (entry->state == PendingRequest::State::kCopying) {
    // Still kCopying while its operation ends: it is freed here.
    if (!status.ok()) tracker_.settlement.End(operation, CopyStatus(*entry, status));
    return tracker_.settlement.Settled(entry);
  }
  entry->copy = PendingRequest::Copy::kDone;
  if (!status.ok()) return tracker_.settlement.End(operation, CopyStatus(*entry, status));
  if (!entry->stream->open()) tracker_.staging.GiveStaging(entry);
  tracker_.queue.Touch(entry->stream);
}

bool DeviceCopies::CopiesUse(uint64_t block_id) const {
  bool used = false;
  for (const auto& device : devices_) {
    device->ForEach([&](uint64_t cookie) {
      const PendingRequest* entry = tracker_.entries.At(cookie);
      used |= entry->holds_buffer && entry->block->id() == block_id;
    });
  }
  return used;
}

bool DeviceCopies::RunDevices(int64_t now) {
  bool worked = false;
  for (const auto& device : devices_) {
    if (!device->RunOnce(now, [this](uint64_t cookie, const absl::Status& status) {
          OnCopied(cookie, status);
        })) {
      continue;
    }
    worked = true;
    // Entries may have waited for a mark or a buffer.
    for (const auto& stream : tracker_.lanes->streams()) {
      if (!stream->table_lanes.empty()) tracker_.queue.Touch(stream.get());
    }
  }
  return worked;
}

void DeviceCopies::Flush() {
  for (const auto& device : devices_) device->Flush();
}

int64_t DeviceCopies::NextTimerNanos() const {
  int64_t next = kNever;
  for (const auto& device : devices_) next = std::min(next, device->NextTimerNanos());
  return next;
}

}  // namespace verbena::client
