#include "client/operations/norm_requests.h"

#include <vector>

#include "client/core/request_tracker.h"

namespace verbena::client {

void NormRequests::FillGroups(const PendingRequest& entry) {
  std::vector<Group>& groups = tracker_.poster.groups();
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    const PartState& part = entry.table->parts[entry.parts[i]];
    groups[i] = {
        part.partition, static_cast<uint32_t>(entry.norm_kind), part.epoch, entry.step, 0, 0};
  }
}

void NormRequests::OnLaneLost(PendingRequest* entry) { tracker_.norms.ReturnNorms(entry); }

bool NormRequests::OnFatal(PendingRequest* entry, const Reply& reply) {
  const std::vector<uint32_t> parts = entry->parts;
  bool fatal = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ReplyStatus status = Settlement::GroupStatus(*entry, reply, i);
    if (Settlement::Accepted(status) || Settlement::Retryable(status)) continue;
    fatal |= tracker_.settlement.OnFatal(entry, parts[i], status);
  }
  return fatal;
}

}  // namespace verbena::client
