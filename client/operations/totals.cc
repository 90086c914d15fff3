#include "client/operations/totals.h"

#include <algorithm>
#include <utility>

#include "client/core/request_tracker.h"

namespace verbena::client {
namespace {

using Part = NormTable::Part;

}  // namespace

bool TotalsRequests::Post(Stream* stream, PendingRequest* entry) {
  if (!tracker_.poster.Fits(stream, entry, sizeof(TotalsPayload))) return false;
  const NormStep* step = tracker_.norms.NormStepOf(*entry);
  FillGroups(*entry);
  rdma::WorkerLane::Request request;
  request.header.type = traits_.type;
  request.header.dtype = ElementType::kNone;
  TotalsPayload payload = {};
  std::copy(step->totals.begin(), step->totals.end(), payload.totals);
  request.prefix =
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&payload), sizeof(payload));
  request.groups = absl::MakeConstSpan(tracker_.poster.groups().data(), entry->parts.size());
  return tracker_.poster.Send(stream, entry, &request);
}

void TotalsRequests::OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) {
  tracker_.norms.Wake();
  if (tracker_.norms.NormStepOf(*entry) == nullptr) return tracker_.settlement.Settled(entry);
  const bool fatal = OnFatal(entry, reply);
  NormStep* step = tracker_.norms.NormStepOf(*entry);
  if (step == nullptr) return tracker_.settlement.Settled(entry);
  NormTable* t = step->Find(entry->table);
  ReplyStatus refused = ReplyStatus::kOk;
  entry->KeepGroups([&](size_t i) {
    const ReplyStatus status = Settlement::GroupStatus(*entry, reply, i);
    if (Settlement::Accepted(status)) {
      t->Set(entry->parts[i], Part::kDone);
      return false;
    }
    refused = status;
    return true;
  });
  if (entry->parts.empty()) return tracker_.settlement.Settled(entry);
  if (fatal) return tracker_.norms.ReturnNorms(entry);
  tracker_.settlement.RetryPull(stream, entry, refused);
}

}  // namespace verbena::client
