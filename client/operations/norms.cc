#include "client/operations/norms.h"

#include <utility>

#include "client/core/request_tracker.h"

namespace verbena::client {

bool NormsRequests::Post(Stream* stream, PendingRequest* entry) {
  if (!tracker_.poster.Fits(stream, entry, 0)) return false;
  if (entry->staging == nullptr) {
    Staging::Buffer buffer;
    const auto bytes = static_cast<uint32_t>(entry->elements * sizeof(float));
    const absl::Status status = tracker_.staging.norms()->Take(bytes, &buffer);
    if (!status.ok() || buffer.data == nullptr) {
      stream->stalled = true;
      return false;
    }
    entry->staging = buffer.data;
    entry->staging_bytes = bytes;
  }
  const std::shared_ptr<rdma::MemoryBlock> block =
      tracker_.staging.norms()->BlockOf(entry->staging);
  const auto remote = tracker_.lanes->memory().Expose(stream, block);
  if (!remote.ok()) {
    stream->norms.Remove(entry);
    tracker_.settlement.RetryPull(stream, entry, ReplyStatus::kResourceExhausted);
    return false;
  }
  FillGroups(*entry);
  rdma::WorkerLane::Request request;
  request.header.type = traits_.type;
  request.header.dtype = ElementType::kNone;
  request.header.destination =
      remote->address + static_cast<uint64_t>(entry->staging - block->data());
  request.header.destination_key = remote->key;
  request.groups = absl::MakeConstSpan(tracker_.poster.groups().data(), entry->parts.size());
  if (!tracker_.poster.Send(stream, entry, &request)) return false;
  ++stream->awaits_out;  // the server may defer it
  return true;
}

void NormsRequests::OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) {
  tracker_.norms.Wake();
  NormStep* step = tracker_.norms.NormStepOf(*entry);
  if (step == nullptr) return tracker_.settlement.Settled(entry);
  const ReplyStatus status = Settlement::GroupStatus(*entry, reply, 0);
  if (status == ReplyStatus::kDuplicate) {
    tracker_.norms.Over(step);  // these totals are no longer needed
    return tracker_.settlement.Settled(entry);
  }
  if (reply.status == ReplyStatus::kOk) {
    step->Take(step->Find(entry->table), entry->parts, entry->staging);
    return tracker_.settlement.Settled(entry);
  }
  if (OnFatal(entry, reply)) return tracker_.norms.ReturnNorms(entry);
  tracker_.settlement.RetryPull(stream, entry, reply.status);
}

}  // namespace verbena::client
