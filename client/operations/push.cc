#include "client/operations/push.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/client_core.h"
#include "client/core/errors.h"
#include "client/core/request_tracker.h"

namespace verbena::client {

ElementType PushRequests::TypeIn(const TableState& table) const {
  if (traits_.state) return ElementType::kF32;
  return traits_.assigns ? table.parameter_type : table.push_type;
}

size_t PushRequests::Stride(const TableState& table, uint32_t elements) const {
  return traits_.assigns ? PayloadBytes(TypeIn(table), elements) : table.PushBytes(elements);
}

PendingRequest* PushRequests::New(Operation* operation, uint32_t chunk, std::byte* data) {
  TableState* table = operation->table;
  PendingRequest* entry = tracker_.entries.NewRequest(this, table, operation);
  entry->chunk = chunk;
  entry->part = table->PartOf(chunk);
  entry->step = table->sync ? operation->step : 0;
  entry->block = operation->blocks[0].get();
  entry->device = tracker_.devices.StagingFor(*entry->block);
  entry->data = data;
  entry->elements = table->layout.elements_of(chunk);
  entry->holds_buffer = true;
  ++operation->buffers;
  if (table->sync) table->pushed_step = table->chunk_pushed[chunk] = operation->step + 1;
  return entry;
}

void PushRequests::Add(Operation* operation, uint32_t first, uint32_t count, size_t offset,
                       const AssignedState& state) {
  std::byte* data = operation->blocks[0]->data() + offset;
  for (uint32_t c = first; c < first + count; ++c) {
    PendingRequest* push = New(operation, c, data);
    push->array = state.array;
    push->applies = state.applies;
    data += Stride(*operation->table, push->elements);
    tracker_.queue.Enqueue(push);
  }
}

void PushRequests::AddWithPulls(Operation* operation, uint32_t first, uint32_t count,
                                size_t push_offset, size_t pull_offset, uint64_t min_version) {
  std::byte* from = operation->blocks[0]->data() + push_offset;
  std::byte* to = operation->blocks[1]->data() + pull_offset;
  for (uint32_t c = first; c < first + count; ++c) {
    PendingRequest* push = New(operation, c, from);
    push->follow = tracker_.requests.pull.New(operation, c, to, min_version);
    from += Stride(*operation->table, push->elements);
    to += size_t{push->elements} * operation->table->layout.parameter_bytes;
    tracker_.queue.Enqueue(push);
  }
}

std::optional<rdma::RemoteMemory> PushRequests::Refer(Stream* stream, const PendingRequest& entry,
                                                      const rdma::Segment& payload) {
  if (!stream->open() || entry.operation == nullptr) return std::nullopt;
  const std::shared_ptr<rdma::MemoryBlock>& block =
      entry.staging != nullptr ? tracker_.staging.StagingOf(entry)->BlockOf(entry.staging)
                               : entry.operation->blocks[0];
  return stream->lane->Refer(block, payload.data, payload.bytes);
}

bool PushRequests::Post(Stream* stream, PendingRequest* entry) {
  TableState* table = entry->table;
  PartState& part = table->parts[entry->part];
  const auto bytes = static_cast<uint32_t>(PayloadBytes(TypeIn(*table), entry->elements));
  const bool device = entry->device != nullptr;
  const bool direct = device && entry->copy == PendingRequest::Copy::kNone;
  if (direct ? tracker_.devices.WayOf(stream, entry) != DeviceCopies::Way::kDirect
             : device && entry->copy != PendingRequest::Copy::kDone) {
    return false;
  }
  rdma::WorkerLane::Request request;
  request.payload = {entry->data, bytes, entry->block};
  if (entry->staging != nullptr) {
    request.payload.data = entry->staging;
    request.payload.block = tracker_.staging.StagingOf(*entry)->BlockOf(entry->staging).get();
  }
  request.reference = Refer(stream, *entry, request.payload);
  if (!tracker_.poster.Fits(stream, entry, request.reference ? 0 : bytes)) return false;
  if (bytes > 0 && entry->operation != nullptr) {
    // Before it takes its sequence: memory that cannot be registered affects the call, not the
    // lane. The caller's data then goes through staging, which the lane may have registered
    // already.
    absl::Status status = tracker_.lanes->memory().Register(stream, *request.payload.block);
    if (!status.ok() && !absl::IsAborted(status) && !device && entry->staging == nullptr) {
      if (!tracker_.staging.TakeStaging(stream, entry, tracker_.staging.packed(), bytes))
        return false;
      std::memcpy(entry->staging, entry->data, bytes);
      request.payload.data = entry->staging;
      request.payload.block = tracker_.staging.packed()->BlockOf(entry->staging).get();
      request.reference.reset();  // it refers to the caller's memory
      if (!tracker_.poster.Fits(stream, entry, bytes)) return false;
      status = tracker_.lanes->memory().Register(stream, *request.payload.block);
    }
    if (!status.ok()) {
      tracker_.staging.NotNow(stream, entry, status);
      return false;
    }
  }
  if (!entry->numbered) {
    entry->numbered = true;
    if (table->sync) {
      ++part.pushed[entry->step & 1];
      table->PostedIn(entry->chunk, entry->step) = entry->step + 1;
    } else {
      entry->step = part.next_sequence++;
      ++part.pushes_since_end;
    }
  }
  tracker_.poster.groups()[0] = {part.partition,  entry->chunk,
                                 part.epoch,      entry->step,
                                 entry->elements, tracker_.admissions.NumberFor(*table)};
  request.header.type = traits_.type;
  request.header.dtype = TypeIn(*table);
  request.header.array = entry->array;
  request.header.min_version = entry->applies;
  request.groups = absl::MakeConstSpan(tracker_.poster.groups().data(), 1);
  if (!tracker_.poster.Send(stream, entry, &request)) return false;
  if (direct) entry->device = nullptr;
  if (entry->posts == 1) {
    ++tracker_.counters.pushes;
    tracker_.counters.bytes_pushed += bytes;
    if (direct) tracker_.counters.direct_bytes += bytes;
    if (entry->staging != nullptr) tracker_.counters.staged_bytes += bytes;
    if (request.reference) tracker_.counters.referenced_bytes += bytes;
  }
  // The pull must not be early. sync: its version prevents that. async: the push's sequence does.
  // But with replicas a push is applied only when they have it, so the pull is sent after the push
  // is answered.
  if (entry->follow != nullptr && (table->sync || !part.copies)) {
    if (!table->sync) entry->follow->step = entry->step;
    tracker_.queue.EnqueuePull(std::exchange(entry->follow, nullptr));
  }
  return true;
}

void PushRequests::OnReply(Stream*, PendingRequest* entry, const Reply& reply) {
  ReplyStatus status = reply.status;
  TableState* table = entry->table;
  const bool passed = table->sync && reply.version > entry->step;
  if (status == ReplyStatus::kWrongStep && passed) status = ReplyStatus::kDuplicate;
  if (status == ReplyStatus::kDuplicate && passed && entry->posts == 1) {
    // Never sent before, but the step is over: this worker was not a member for it.
    if (entry->operation != nullptr) {
      tracker_.settlement.End(
          entry->operation,
          absl::FailedPreconditionError(absl::StrCat(
              DescribeRequest(*entry), ": the table is at step ", reply.version,
              " already; this worker joined after the steps before it were committed")));
    }
    return tracker_.settlement.Settled(entry);
  }
  if (Settlement::Accepted(status) || status == ReplyStatus::kNonFinite) {
    table->LaneOn(entry->stream)->backoff.Reset();
    if (table->sync && reply.version > 0)
      tracker_.commits.LearnChunk(table, entry->chunk, reply.version);
    // The other chunks continue: only this one contributes zero. The operation reports it when all
    // are done.
    if (status == ReplyStatus::kNonFinite && entry->operation != nullptr &&
        entry->operation->live && entry->operation->status.ok()) {
      entry->operation->status = absl::InvalidArgumentError(absl::StrCat(
          DescribeRequest(*entry), traits_.assigns
                                       ? ": a parameter is NaN or Inf; this chunk is not assigned"
                                       : ": the gradient has a NaN or Inf; this chunk contributes "
                                         "zero"));
    }
    if (entry->follow != nullptr) tracker_.queue.EnqueuePull(std::exchange(entry->follow, nullptr));
    if (status == ReplyStatus::kNonFinite && entry->elements > 0) {
      return tracker_.settlement.SendEmpty(entry, status);
    }
    if (tracker_.commits.Keeps(*table, entry->chunk, entry->step)) {
      return tracker_.commits.Keep(entry);
    }
    return tracker_.settlement.Settled(entry);
  }
  if (Settlement::Retryable(status)) return tracker_.settlement.Retry(entry, status);
  if (tracker_.settlement.OnFatal(entry, entry->part, status))
    return tracker_.settlement.Settled(entry);
  tracker_.settlement.Refuse(entry, status);
}

void PushRequests::OnLaneLost(PendingRequest* entry) {
  // Other records may be posted before it.
  tracker_.staging.GiveStaging(entry);
  if (Settlement::Over(*entry)) tracker_.settlement.MakeEmpty(entry);
  tracker_.queue.Enqueue(entry);
}

void PushRequests::OnOperationEnd(PendingRequest* entry) {
  using State = PendingRequest::State;
  if (entry->state == State::kKept) return tracker_.settlement.MakeEmpty(entry);
  // The server reads a copy of the caller's memory.
  if (entry->state == State::kPosted && entry->device != nullptr) {
    return tracker_.entries.Detach(entry);
  }
  const bool queued = entry->state == State::kQueued || entry->state == State::kDelayed;
  if (!queued) return;  // posted: until its reply, or its lane's end
  tracker_.queue.Unqueue(entry);
  if (entry->copy == PendingRequest::Copy::kRunning) entry = tracker_.devices.LeaveToCopy(entry);
  if (entry->numbered && !tracker_.closed) {
    tracker_.settlement.MakeEmpty(entry);
    return tracker_.queue.Enqueue(entry);
  }
  tracker_.settlement.Uncount(entry);
  tracker_.entries.Free(entry);
}

uint64_t PushRequests::BytesOf(const PendingRequest& entry) const {
  return PayloadBytes(TypeIn(*entry.table), entry.elements);
}

}  // namespace verbena::client
