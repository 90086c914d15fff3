#include "client/operations/await.h"

#include <vector>

#include "client/core/request_tracker.h"

namespace verbena::client {

void AwaitRequests::Add(TableState* table, uint64_t version, Stream* stream,
                        const std::vector<uint32_t>& parts) {
  if (parts.empty()) return;
  PendingRequest* entry = tracker_.entries.NewRequest(this, table, nullptr);
  entry->min_version = version;
  entry->parts.assign(parts.begin(), parts.end());
  entry->stream = stream;
  tracker_.queue.EnqueuePullFirst(entry);
}

void AwaitRequests::AddAll(TableState* table, uint64_t version) {
  for (const auto& lane : table->lanes) {
    std::vector<uint32_t> parts;
    for (uint32_t p = 0; p < table->parts.size(); ++p) {
      const PartState& part = table->parts[p];
      if (part.lane != lane.get() || part.lost || part.committed >= version) continue;
      parts.push_back(p);
      if (parts.size() == kMaxGroups) {
        Add(table, version, lane->stream, parts);
        parts.clear();
      }
    }
    Add(table, version, lane->stream, parts);
  }
}

bool AwaitRequests::Post(Stream* stream, PendingRequest* entry) {
  if (!tracker_.poster.Fits(stream, entry, 0)) return false;
  std::vector<Group>& groups = tracker_.poster.groups();
  for (size_t i = 0; i < entry->parts.size(); ++i) {
    const PartState& part = entry->table->parts[entry->parts[i]];
    groups[i] = {part.partition, 0, part.epoch, 0, 0, tracker_.admissions.NumberFor(*entry->table)};
  }
  rdma::WorkerLane::Request request;
  request.header.type = traits_.type;
  request.header.dtype = ElementType::kNone;
  request.header.min_version = entry->min_version;
  request.groups = absl::MakeConstSpan(groups.data(), entry->parts.size());
  if (!tracker_.poster.Send(stream, entry, &request)) return false;
  ++stream->awaits_out;
  return true;
}

void AwaitRequests::OnLaneLost(PendingRequest* entry) {
  tracker_.poster.Prune(entry);
  if (entry->parts.empty()) return tracker_.entries.Free(entry);
  tracker_.queue.EnqueuePullFirst(entry);
}

void AwaitRequests::OnReply(Stream*, PendingRequest* entry, const Reply& reply) {
  TableState* table = entry->table;
  ReplyStatus retry = ReplyStatus::kOk;
  for (size_t i = 0; i < entry->parts.size(); ++i) {
    const uint32_t part = entry->parts[i];
    const ReplyStatus status = Settlement::GroupStatus(*entry, reply, i);
    if (Settlement::Accepted(status)) {
      tracker_.commits.LearnPart(table, part, entry->min_version);
    } else if (Settlement::Retryable(status)) {
      retry = status;
    } else {
      tracker_.settlement.OnFatal(entry, part, status);
    }
  }
  tracker_.poster.Prune(entry);
  if (retry == ReplyStatus::kOk || entry->parts.empty()) return tracker_.settlement.Settled(entry);
  tracker_.settlement.RetryPull(entry->stream, entry, retry);
}

}  // namespace verbena::client
