#include "client/operations/row_requests.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "client/core/request_tracker.h"
#include "proto/wire/bags.h"

namespace verbena::client {
namespace {

// One record may take this share of the staging, so that several lanes have some.
constexpr size_t kStagingShare = 8;
constexpr size_t kLeastRecord = 4096;

}  // namespace

// Keys and rows (as f32) together take at most the size of a chunk, for which a lane's large slots
// are sized. A single larger row still fits, because servers leave room for more than its key.
uint64_t RowRequests::BytesInRecord(const TableState& table, const Staging& staging) {
  const uint64_t chunk = table.info.spec().chunk_bytes();
  return std::min<uint64_t>(
      {chunk, std::max(staging.limit() / kStagingShare, kLeastRecord), kMaxRowsBytes});
}

uint32_t RowRequests::RowsInRecord(const TableState& table, const Staging& staging) {
  const uint64_t limit = BytesInRecord(table, staging);
  uint64_t rows = limit / (sizeof(uint64_t) + table.row_bytes());
  while (rows > 1 && KeyBytes(rows) + rows * table.row_bytes() > limit) --rows;
  return static_cast<uint32_t>(std::max<uint64_t>(rows, 1));
}

// One half is for the keys and their BagUses, the other half for the sums.
uint32_t RowRequests::BagKeysInRecord(const TableState& table, const Staging& staging) {
  const uint64_t bytes = BytesInRecord(table, staging) / 2 - kRecordAlignment;
  return static_cast<uint32_t>(std::max<uint64_t>(bytes / (sizeof(uint64_t) + sizeof(BagUse)), 1));
}

PendingRequest* RowRequests::New(const Cutting& call) {
  Operation* operation = call.operation;
  const bool push = traits_.contributes;
  PendingRequest* entry = tracker_.entries.NewRequest(this, operation->table, operation);
  if (!push && !traits_.reads) return entry;  // it needs no memory of the caller
  entry->step = push && operation->table->sync ? operation->step : 0;
  entry->min_version = call.min_version;
  entry->block = operation->blocks[push ? 0 : 1].get();
  entry->data = entry->block->data() + call.offset;
  entry->holds_buffer = true;
  ++operation->buffers;
  return entry;
}

void RowRequests::EnqueueFilled(TableLane* lane) {
  PendingRequest* entry = std::exchange(lane->filling, nullptr);
  if (traits_.contributes) return tracker_.queue.EnqueueOn(lane, entry);
  tracker_.queue.EnqueuePullOn(lane->stream, entry, false);
}

void RowRequests::Cut(const Cutting& call, absl::Span<const KeyPlan::Range> ranges) {
  TableState* table = call.operation->table;
  for (const KeyPlan::Range& range : ranges) {
    TableLane* lane = table->parts[range.partition].lane;
    uint32_t first = range.first;
    for (uint32_t left = range.count; left > 0;) {
      if (lane->filling == nullptr) lane->filling = New(call);
      PendingRequest* entry = lane->filling;
      const uint32_t count = std::min(left, call.most - entry->elements);
      entry->parts.push_back(range.partition);
      entry->counts.push_back(count);
      entry->firsts.push_back(first);
      entry->elements += count;
      first += count;
      left -= count;
      if (entry->elements == call.most || entry->parts.size() == kMaxGroups) EnqueueFilled(lane);
    }
  }
  for (const auto& lane : table->lanes) {
    if (lane->filling != nullptr) EnqueueFilled(lane.get());
  }
}

void RowRequests::FillKeys(const PendingRequest& entry, std::byte* to) {
  const KeyPlan& plan = *entry.operation->plan;
  std::byte* const end = to + KeyBytes(entry.elements);
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    const size_t bytes = size_t{entry.counts[i]} * sizeof(uint64_t);
    std::memcpy(to, plan.keys().data() + entry.firsts[i], bytes);
    to += bytes;
  }
  std::memset(to, 0, static_cast<size_t>(end - to));
}

uint32_t RowRequests::CountKeys(const PendingRequest& entry) {
  uint32_t keys = 0;
  for (const uint32_t count : entry.counts) keys += count;
  return keys;
}

void RowRequests::FillGroups(const PendingRequest& entry) {
  std::vector<Group>& groups = tracker_.poster.groups();
  for (size_t i = 0; i < entry.parts.size(); ++i) {
    const PartState& part = entry.table->parts[entry.parts[i]];
    groups[i] = {part.partition, 0, part.epoch, 0, entry.counts[i], 0};
  }
}

void RowRequests::OnLaneLost(PendingRequest* entry) {
  if (entry->operation == nullptr) return tracker_.entries.Free(entry);
  tracker_.staging.GiveStaging(entry);
  tracker_.queue.EnqueuePullFirst(entry);
}

void RowRequests::OnOperationEnd(PendingRequest* entry) {
  const bool queued = entry->state == PendingRequest::State::kQueued ||
                      entry->state == PendingRequest::State::kDelayed;
  // The server writes to staging, which the entry keeps.
  if (!queued) return tracker_.entries.Detach(entry);
  tracker_.queue.Unqueue(entry);
  tracker_.entries.Free(entry);
}

}  // namespace verbena::client
