#include "client/operations/scan.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/client_core.h"
#include "client/core/errors.h"
#include "client/core/request_tracker.h"

namespace verbena::client {

void ScanRequests::Add(Operation* operation, uint32_t part, uint64_t cursor) {
  PendingRequest* entry = tracker_.entries.NewRequest(this, operation->table, operation);
  entry->part = part;
  entry->step = cursor;
  entry->elements = RowsInRecord(*operation->table, *tracker_.staging.received());
  tracker_.queue.EnqueuePull(entry);
}

bool ScanRequests::Post(Stream* stream, PendingRequest* entry) {
  TableState* table = entry->table;
  if (!tracker_.poster.Fits(stream, entry, 0)) return false;
  const uint64_t bytes = KeyBytes(entry->elements) + entry->elements * table->row_bytes();
  if (!tracker_.staging.TakeStaging(stream, entry, tracker_.staging.received(), bytes))
    return false;
  const std::shared_ptr<rdma::MemoryBlock> block =
      tracker_.staging.received()->BlockOf(entry->staging);
  const auto remote = tracker_.lanes->memory().Expose(stream, block);
  if (!remote.ok()) {
    tracker_.staging.NotNow(stream, entry, remote.status());
    return false;
  }
  const PartState& part = table->parts[entry->part];
  tracker_.poster.groups()[0] = {part.partition, 0, part.epoch, entry->step, entry->elements, 0};
  rdma::WorkerLane::Request request;
  request.header.type = traits_.type;
  request.header.dtype = ElementType::kF32;
  request.header.destination =
      remote->address + static_cast<uint64_t>(entry->staging - block->data());
  request.header.destination_key = remote->key;
  request.groups = absl::MakeConstSpan(tracker_.poster.groups().data(), 1);
  if (!tracker_.poster.Send(stream, entry, &request)) return false;
  ++stream->pulls_out;
  return true;
}

void ScanRequests::OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) {
  TableState* table = entry->table;
  if (entry->operation == nullptr || !entry->operation->live)
    return tracker_.settlement.Settled(entry);
  if (Settlement::Accepted(reply.status)) {
    if (reply.detail > entry->elements) {
      tracker_.settlement.End(entry->operation,
                              absl::InternalError(absl::StrCat(
                                  DescribeRequest(*entry), ": the server reported that it wrote ",
                                  reply.detail, " rows; asked for ", entry->elements)));
      return tracker_.settlement.Settled(entry);
    }
    ScanResult& result = *entry->operation->scan;
    const size_t bytes = reply.detail * table->row_bytes();
    result.keys.resize(reply.detail);
    result.rows.resize(size_t{reply.detail} * table->dim);
    if (reply.detail > 0) {
      std::memcpy(result.keys.data(), entry->staging, reply.detail * sizeof(uint64_t));
      std::memcpy(result.rows.data(), entry->staging + KeyBytes(reply.detail), bytes);
    }
    result.next = reply.version;
    ++tracker_.counters.pulls;
    tracker_.counters.bytes_pulled += bytes;
    return tracker_.settlement.Settled(entry);
  }
  tracker_.staging.GiveStaging(entry);
  if (Settlement::Retryable(reply.status))
    return tracker_.settlement.RetryPull(stream, entry, reply.status);
  if (tracker_.settlement.OnFatal(entry, entry->part, reply.status))
    return tracker_.settlement.Settled(entry);
  tracker_.settlement.Refuse(entry, reply.status);
}

uint64_t ScanRequests::BytesOf(const PendingRequest& entry) const {
  return entry.elements * entry.table->row_bytes();
}

}  // namespace verbena::client
