#include "client/operations/prefetch.h"

#include <utility>

#include "client/core/errors.h"
#include "client/core/request_tracker.h"

namespace verbena::client {

void PrefetchRequests::Add(Operation* operation) {
  const uint64_t bytes = BytesInRecord(*operation->table, *tracker_.staging.packed());
  const auto most = static_cast<uint32_t>(bytes / sizeof(uint64_t));
  Cut({operation, 0, 0, most}, operation->plan->ranges());
}

bool PrefetchRequests::Post(Stream* stream, PendingRequest* entry) {
  entry->elements = CountKeys(*entry);
  const uint64_t bytes = uint64_t{entry->elements} * sizeof(uint64_t);
  if (!tracker_.poster.Fits(stream, entry, static_cast<uint32_t>(bytes))) return false;
  if (!tracker_.staging.TakeStaging(stream, entry, tracker_.staging.packed(),
                                    KeyBytes(entry->elements)))
    return false;
  const std::shared_ptr<rdma::MemoryBlock> block =
      tracker_.staging.packed()->BlockOf(entry->staging);
  if (absl::Status s = tracker_.lanes->memory().Register(stream, *block); !s.ok()) {
    tracker_.staging.NotNow(stream, entry, s);
    return false;
  }
  FillKeys(*entry, entry->staging);
  FillGroups(*entry);
  rdma::WorkerLane::Request request;
  request.header.type = traits_.type;
  request.groups = absl::MakeConstSpan(tracker_.poster.groups().data(), entry->parts.size());
  request.payload = {entry->staging, static_cast<uint32_t>(bytes), block.get()};
  if (!tracker_.poster.Send(stream, entry, &request)) return false;
  ++stream->pulls_out;
  return true;
}

// Keys that a server has accepted are not sent again.
void PrefetchRequests::OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) {
  if (entry->operation == nullptr || !entry->operation->live)
    return tracker_.settlement.Settled(entry);
  uint32_t part = 0;
  const ReplyStatus worst = Settlement::WorstOf(*entry, reply, &part);
  if (Settlement::Accepted(worst)) return tracker_.settlement.Settled(entry);
  tracker_.staging.GiveStaging(entry);
  if (!Settlement::Retryable(worst))
    return tracker_.settlement.OnFatal(entry, part, worst)
               ? tracker_.settlement.Settled(entry)
               : tracker_.settlement.Refuse(entry, worst);
  ReplyStatus statuses[kMaxGroups];
  for (size_t i = 0; i < entry->parts.size(); ++i)
    statuses[i] = Settlement::GroupStatus(*entry, reply, i);
  entry->KeepGroups([&](size_t i) { return !Settlement::Accepted(statuses[i]); });
  if (entry->parts.empty()) return tracker_.settlement.Settled(entry);
  tracker_.settlement.RetryPull(stream, entry, worst);
}

}  // namespace verbena::client
