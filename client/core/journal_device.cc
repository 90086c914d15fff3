// Device memory: chunks that go through staging, and the copies in both directions.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/errors.h"
#include "client/core/journal.h"

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

absl::Status CopyStatus(const Entry& entry, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(DescribeEntry(entry), ": ", std::string(status.message())));
}

}  // namespace

DeviceStaging* Journal::StagingFor(const rdma::MemoryBlock& block) {
  if (block.device() == nullptr) return nullptr;
  for (const auto& staging : devices_) {
    if (&staging->device() == block.device().get()) return staging.get();
  }
  devices_.push_back(std::make_unique<DeviceStaging>(block.device(), packing_->limit()));
  return devices_.back().get();
}

void Journal::EndWith(Stream* stream, Entry* entry, const absl::Status& status) {
  End(entry->operation, CopyStatus(*entry, status));
  Touch(stream);
}

// ---- direct access ------------------------------------------------------------------------------

bool Journal::GoesDirect(const Stream& stream, const Entry& entry) const {
  return (entry.posts < kDirectPosts || direct_only_) &&
         lanes_->memory().Reaches(stream, *entry.block);
}

Journal::Way Journal::WayOf(Stream* stream, Entry* entry) {
  const bool pull = IsPull(entry->type);
  const std::shared_ptr<rdma::MemoryBlock>& block = entry->operation->blocks[pull ? 1 : 0];
  entry->direct = GoesDirect(*stream, *entry);
  if (!entry->direct) {
    if (!direct_only_) return Way::kStaged;
    EndWith(stream, entry, lanes_->memory().WhyNot(*stream, *block));
    return Way::kEnded;
  }
  const absl::StatusOr<bool> passed =
      entry->device->Passed(entry->operation->marks[pull ? 1 : 0], now_);
  if (!passed.ok()) {
    EndWith(stream, entry, passed.status());
    return Way::kEnded;
  }
  // A pull need not wait for work that still uses its destination: it can use staging.
  if (!*passed) return pull && !direct_only_ ? Way::kStaged : Way::kLater;
  const absl::Status ready =
      pull ? lanes_->memory()
                 .Expose(stream, block, entry->data, entry->table->PullBytes(entry->elements))
                 .status()
           : lanes_->memory().Register(stream, *block);
  if (ready.ok()) return Way::kDirect;
  if (lanes_->memory().BeingRegistered(*stream, *block)) {
    NotNow(stream, entry, CopyStatus(*entry, ready));
    return Way::kLater;
  }
  if (direct_only_) {  // no other path exists: retry, unless that cannot help
    lanes_->memory().RefuseNow(*stream, *block, ready);
    const absl::Status why = lanes_->memory().WhyNot(*stream, *block);
    if (IsFinal(ready)) {
      EndWith(stream, entry, why);
      return Way::kEnded;
    }
    Delay(stream, entry, CopyStatus(*entry, why));
    return Way::kLater;
  }
  lanes_->memory().Refuse(*stream, *block, ready);
  Touch(stream);  // a push is copied then
  return WayOf(stream, entry);
}

// ---- pushes -------------------------------------------------------------------------------------

void Journal::CopyAhead(Stream* stream, TableLane* lane) {
  const uint32_t most = stream->lane->ticket().config.large_slots + kCopiesAhead;
  uint32_t ahead = 0;
  for (Entry* entry = lane->queue.front(); entry != nullptr && ahead < most;
       entry = EntryQueue::Next(entry)) {
    ++ahead;
    if (entry->type != RecordType::kPush || entry->device == nullptr) continue;
    entry->direct = entry->copy == Entry::Copy::kNone && GoesDirect(*stream, *entry);
    if (entry->direct) continue;
    // In order: a copy behind one that cannot be made yet would only hold a buffer.
    if (entry->copy == Entry::Copy::kNone && (Gated(*entry) || !StartCopy(stream, entry))) return;
  }
}

// False: it cannot be copied yet, or its operation has ended, which changes the queue.
bool Journal::StartCopy(Stream* stream, Entry* entry) {
  DeviceStaging* device = entry->device;
  if (direct_only_) {
    EndWith(stream, entry, lanes_->memory().WhyNot(*stream, *entry->block));
    return false;
  }
  const absl::StatusOr<bool> passed = device->Passed(entry->operation->marks[0], now_);
  if (!passed.ok()) {
    EndWith(stream, entry, passed.status());
    return false;
  }
  if (!*passed) return false;
  const uint32_t bytes = entry->elements * entry->table->layout.gradient_bytes;
  Staging* buffers = StagingOf(*entry);
  if (entry->staging == nullptr && buffers->Left(bytes) <= 1) {
    if (!OldestToCopy(*entry) || (buffers->Left(bytes) == 0 && !TakeBack(*entry))) {
      stream->stalled = true;
      return false;
    }
  }
  if (!TakeStaging(stream, entry, buffers, bytes)) return false;
  device->CopyOut(entry->data, entry->staging, bytes, entry->index);
  entry->copy = Entry::Copy::kRunning;
  return true;
}

// Compares with the pushes through the same buffers on all lanes, including closed ones: records
// that wait for an older push must not hold the last buffer.
bool Journal::OldestToCopy(const Entry& entry) const {
  for (const auto& stream : lanes_->streams()) {
    for (const TableLane* lane : stream->table_lanes) {
      for (const Entry* other = lane->queue.front(); other != nullptr && other->order < entry.order;
           other = other->queue_links.next) {
        if (other->device == entry.device && other->copy == Entry::Copy::kNone) return false;
      }
    }
  }
  return true;
}

// A push that was kept for a server that takes over is older than later copies, and is posted
// before them. So the youngest copy that is not posted releases its buffer.
bool Journal::TakeBack(const Entry& entry) {
  const uint32_t bytes = entry.elements * entry.table->layout.gradient_bytes;
  Entry* youngest = nullptr;
  for (const auto& stream : lanes_->streams()) {
    for (const TableLane* lane : stream->table_lanes) {
      for (Entry* other = lane->queue.front(); other != nullptr; other = EntryQueue::Next(other)) {
        if (other->device != entry.device || other->copy != Entry::Copy::kDone) continue;
        if (!Staging::SameSize(other->staging_bytes, bytes)) continue;
        if (youngest == nullptr || other->order > youngest->order) youngest = other;
      }
    }
  }
  if (youngest == nullptr || youngest->order < entry.order) return false;
  GiveStaging(youngest);
  return true;
}

Entry* Journal::LeaveToCopy(Entry* entry) {
  Entry* owed = NewEntry(entry->type, entry->table, nullptr);
  owed->order = entry->order;
  owed->part = entry->part;
  owed->chunk = entry->chunk;
  owed->step = entry->step;
  owed->posts = entry->posts;
  owed->refused = entry->refused;
  owed->numbered = std::exchange(entry->numbered, false);
  entry->state = Entry::State::kCopying;
  return owed;
}

void Journal::DropCopies(Stream* stream) {
  for (TableLane* lane : stream->table_lanes) {
    for (Entry* entry = lane->queue.front(); entry != nullptr; entry = EntryQueue::Next(entry)) {
      if (entry->copy == Entry::Copy::kDone) GiveStaging(entry);
    }
  }
}

// ---- pulls --------------------------------------------------------------------------------------

void Journal::Land(Entry* entry) {
  Operation* operation = entry->operation;
  const uint32_t bytes = entry->elements * entry->table->layout.parameter_bytes;
  entry->state = Entry::State::kCopying;
  entry->device->CopyIn(entry->staging, entry->data, bytes, operation->marks[1], entry->index,
                        now_);
}

// ---- progress -----------------------------------------------------------------------------------

void Journal::OnCopied(uint64_t cookie, const absl::Status& status) {
  Entry* entry = entries_.At(cookie);
  Operation* operation = entry->operation;
  if (entry->state == Entry::State::kCopying) {
    // Still kCopying while its operation ends: it is freed here.
    if (!status.ok()) End(operation, CopyStatus(*entry, status));
    return Settled(entry);
  }
  entry->copy = Entry::Copy::kDone;
  if (!status.ok()) return End(operation, CopyStatus(*entry, status));
  if (!entry->stream->open()) GiveStaging(entry);
  Touch(entry->stream);
}

bool Journal::CopiesUse(uint64_t block_id) const {
  bool used = false;
  for (const auto& device : devices_) {
    device->ForEach([&](uint64_t cookie) {
      const Entry* entry = entries_.At(cookie);
      used |= entry->holds_buffer && entry->block->id() == block_id;
    });
  }
  return used;
}

bool Journal::RunDevices(int64_t now) {
  bool worked = false;
  for (const auto& device : devices_) {
    if (!device->RunOnce(now, [this](uint64_t cookie, const absl::Status& status) {
          OnCopied(cookie, status);
        })) {
      continue;
    }
    worked = true;
    // Entries may have waited for a mark or a buffer.
    for (const auto& stream : lanes_->streams()) {
      if (!stream->table_lanes.empty()) Touch(stream.get());
    }
  }
  return worked;
}

}  // namespace verbena::client
