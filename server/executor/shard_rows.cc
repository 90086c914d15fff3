// Records about rows of embedding tables.
#include <utility>

#include "server/executor/shard_executor_impl.h"

namespace verbena::server {

using rdma::ShardLane;

bool ShardExecutor::Impl::TakeKeys(Lane* lane, const ShardLane::Arrival& record) {
  absl::Status status = CopyKeys(record.record, record.payload, &keys);
  if (status.ok()) return true;
  Close(lane, std::move(status));
  return false;
}

void ShardExecutor::Impl::PushRows(Lane* lane, const ShardLane::Arrival& record) {
  if (!TakeKeys(lane, record)) return;
  const RecordHeader& header = record.record.header;
  shard::PushRowsRequest request;
  request.token = {lane->id, header.operation, record.slot};
  request.worker = lane->peer.incarnation;
  request.table = header.table;
  request.groups = record.record.group_span();
  request.keys = keys;
  request.dtype = header.dtype;
  if (!keys.empty()) request.rows = record.payload.subspan(KeyBytes(keys.size()));
  ReplyToGroups(lane, record, lane->engine->PushRows(request));
}

bool ShardExecutor::Impl::TakeBagUses(Lane* lane, const ShardLane::Arrival& record) {
  absl::Status status = CopyBagUses(record.record, record.payload, &bag_uses);
  if (status.ok()) return true;
  Close(lane, std::move(status));
  return false;
}

// A lookup of rows, or of their sums by bag.
void ShardExecutor::Impl::Lookup(Lane* lane, const ShardLane::Arrival& record) {
  const bool bags = record.record.header.type == RecordType::kLookupBags;
  if (!TakeKeys(lane, record) || (bags && !TakeBagUses(lane, record))) return;
  const RecordHeader& header = record.record.header;
  shard::LookupRequest request;
  request.token = {lane->id, header.operation, record.slot};
  request.worker = lane->peer.incarnation;
  request.table = header.table;
  request.groups = record.record.group_span();
  request.keys = keys;
  request.dtype = header.dtype;
  request.min_version = header.min_version;
  request.destination = header.destination;
  request.destination_key = header.destination_key;
  request.may_park = MayPark(*lane);
  if (bags) request.bags = {header.bags, bag_uses};
  OnPullOutcome(lane, record, lane->engine->Lookup(request));
}

void ShardExecutor::Impl::Intend(Lane* lane, const ShardLane::Arrival& record) {
  if (!TakeKeys(lane, record)) return;
  shard::IntentRequest request;
  request.worker = lane->peer.incarnation;
  request.table = record.record.header.table;
  request.groups = record.record.group_span();
  request.keys = keys;
  ReplyToGroups(lane, record, lane->engine->Intend(request));
}

void ShardExecutor::Impl::Scan(Lane* lane, const ShardLane::Arrival& record) {
  shard::ScanRequest request;
  request.worker = lane->peer.incarnation;
  request.table = record.record.header.table;
  request.group = record.record.groups[0];
  OnPullOutcome(lane, record, lane->engine->Scan(request));
}

}  // namespace verbena::server
