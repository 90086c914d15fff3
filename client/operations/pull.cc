#include "client/operations/pull.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/core/client_core.h"
#include "client/core/errors.h"
#include "client/core/request_tracker.h"
#include "shard/codec/codec.h"

namespace verbena::client {

ElementType PullRequests::TypeIn(const TableState& table) const {
  return traits_.state ? ElementType::kF32 : table.pull_type;
}

bool PullRequests::Decodes(const TableState& table) const {
  return !traits_.state && table.decodes();
}

PendingRequest* PullRequests::New(Operation* operation, uint32_t chunk, std::byte* data,
                                  uint64_t min_version) {
  TableState* table = operation->table;
  PendingRequest* entry = tracker_.entries.NewRequest(this, table, operation);
  entry->chunk = chunk;
  entry->part = table->PartOf(chunk);
  entry->min_version = min_version;
  entry->block = operation->blocks[1].get();
  entry->device = tracker_.devices.StagingFor(*entry->block);
  entry->data = data;
  entry->elements = table->layout.elements_of(chunk);
  entry->holds_buffer = true;
  ++operation->buffers;
  return entry;
}

void PullRequests::Add(Operation* operation, uint32_t first, uint32_t count, size_t offset,
                       uint64_t min_version, uint8_t array) {
  std::byte* data = operation->blocks[1]->data() + offset;
  for (uint32_t c = first; c < first + count; ++c) {
    PendingRequest* pull = New(operation, c, data, min_version);
    pull->array = array;
    data += size_t{pull->elements} *
            (traits_.state ? sizeof(float) : operation->table->layout.parameter_bytes);
    if (tracker_.session->options().observer && !traits_.state) tracker_.followers.Begin(pull);
    const bool any = operation->max_staleness_ms > 0 && !traits_.state;
    if (!any || !tracker_.followers.Enqueue(pull)) tracker_.queue.EnqueuePull(pull);
  }
}

bool PullRequests::Post(Stream* stream, PendingRequest* entry) {
  TableState* table = entry->table;
  PartState& part = table->parts[entry->part];
  if (!tracker_.poster.Fits(stream, entry, 0)) return false;
  const auto bytes = static_cast<uint32_t>(BytesOf(*entry));
  std::shared_ptr<rdma::MemoryBlock> block = entry->operation->blocks[1];
  std::byte* to = entry->data;
  DeviceCopies::Way way = DeviceCopies::Way::kStaged;
  if (entry->device != nullptr && entry->staging == nullptr) {
    way = tracker_.devices.WayOf(stream, entry);
    if (way == DeviceCopies::Way::kLater || way == DeviceCopies::Way::kEnded) return false;
  }
  const bool direct = way == DeviceCopies::Way::kDirect;
  const bool unreachable = stream->needs_staging && !block->allocated();
  absl::StatusOr<rdma::RemoteMemory> remote = absl::Status(absl::StatusCode::kCancelled, "");
  if (entry->staging == nullptr && !(entry->device != nullptr && !direct) && !unreachable &&
      !Decodes(*table)) {
    remote = tracker_.lanes->memory().Expose(stream, block, to, bytes);
  }
  // Also if the lane cannot expose the caller's memory now: it may have exposed staging already.
  if (!remote.ok() && !direct && !absl::IsAborted(remote.status())) {
    Staging* staging = tracker_.staging.StagingOf(*entry);
    if (entry->staging == nullptr && !tracker_.staging.HasShare(*stream, *staging, bytes)) {
      tracker_.staging.StopAwaiting(entry);  // its lane's turn comes first
      stream->stalled = true;
      return false;
    }
    if (!tracker_.staging.TakeStaging(stream, entry, staging, bytes)) return false;
    to = entry->staging;
    block = staging->BlockOf(to);
    remote = tracker_.lanes->memory().Expose(stream, block, to, bytes);
  }
  if (!remote.ok()) {
    tracker_.staging.NotNow(stream, entry, remote.status());
    return false;
  }
  tracker_.poster.groups()[0] = {part.partition, entry->chunk,    part.epoch,
                                 entry->step,    entry->elements, 0};
  rdma::WorkerLane::Request request;
  request.header.type = traits_.type;
  request.header.dtype = TypeIn(*table);
  request.header.array = entry->array;
  request.header.destination = remote->address + static_cast<uint64_t>(to - block->data());
  request.header.destination_key = remote->key;
  request.header.min_version = entry->min_version;
  if (entry->of_follower) {
    request.header.bags = entry->operation->max_staleness_ms;
    request.header.min_version = std::max(entry->min_version, entry->floor);
  }
  request.groups = absl::MakeConstSpan(tracker_.poster.groups().data(), 1);
  if (!tracker_.poster.Send(stream, entry, &request)) return false;
  if (direct) entry->device = nullptr;
  if (entry->of_follower) tracker_.followers.Posted(entry);
  ++stream->pulls_out;
  return true;
}

void PullRequests::OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) {
  const ReplyStatus status = reply.status;
  TableState* table = entry->table;
  const bool live = entry->operation != nullptr && entry->operation->live;
  const bool accepted =
      Settlement::Accepted(status) && tracker_.followers.Learn(*entry, reply.version);
  if (entry->of_follower && !accepted && live) return tracker_.followers.Redirect(entry);
  if (accepted) {
    if (entry->of_follower) ++tracker_.counters.follower_pulls;
    const auto bytes = static_cast<uint32_t>(BytesOf(*entry));
    ++tracker_.counters.pulls;
    tracker_.counters.bytes_pulled += bytes;
    if (entry->staging != nullptr) tracker_.turn_bytes += uint64_t{entry->elements} * sizeof(float);
    if (live && entry->operation->pulled != nullptr) {
      entry->operation->pulled->Add(stream->lane->ticket().protocol, reply.version, reply.applies);
    }
    if (live && Decodes(*table)) {
      const TracedBlock traced("decode", bytes);
      codec::Decode(shard::BestIsa(), table->pull_type, entry->staging, 0,
                    reinterpret_cast<float*>(entry->data), entry->elements);
    } else if (live && entry->staging != nullptr) {
      if (entry->device == nullptr) std::memcpy(entry->data, entry->staging, bytes);
      tracker_.counters.staged_bytes += bytes;
    } else if (live && entry->block->device() != nullptr) {
      tracker_.counters.direct_bytes += bytes;
      entry->operation->landed = true;
    }
    if (table->sync) tracker_.commits.LearnChunk(table, entry->chunk, reply.version);
    if (table->ssp) {
      table->seen = std::max(table->seen, reply.version);
      ++tracker_.counters.staleness[std::min(reply.detail, kStalenessBuckets - 1)];
    }
    if (entry->device != nullptr && live) return tracker_.devices.Land(entry);
    return tracker_.settlement.Settled(entry);
  }
  if (!live) return tracker_.settlement.Settled(entry);
  if (Settlement::Retryable(status)) return tracker_.settlement.RetryPull(stream, entry, status);
  if (tracker_.settlement.OnFatal(entry, entry->part, status))
    return tracker_.settlement.Settled(entry);
  tracker_.settlement.Refuse(entry, status);
}

void PullRequests::OnLaneLost(PendingRequest* entry) {
  if (Settlement::Over(*entry)) return tracker_.entries.Free(entry);
  tracker_.queue.EnqueuePullFirst(entry);
}

void PullRequests::OnOperationEnd(PendingRequest* entry) {
  using State = PendingRequest::State;
  switch (entry->state) {
    case State::kQueued:
    case State::kDelayed:
    case State::kHeld:
      tracker_.queue.Unqueue(entry);
      return tracker_.entries.Free(entry);
    case State::kCopying:
      if (entry->device->Cancel(entry->index)) tracker_.entries.Free(entry);
      return;
    default:
      // The server writes to staging, not to the caller's memory.
      if (entry->staging != nullptr) tracker_.entries.ReleaseBuffer(entry);
  }
}

uint64_t PullRequests::BytesOf(const PendingRequest& entry) const {
  return PayloadBytes(TypeIn(*entry.table), entry.elements);
}

}  // namespace verbena::client
