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
  if (!keys.empty()) request.rows = record.payload.subspan(KeyBytes(keys.size()));
  ReplyToGroups(lane, record, lane->engine->PushRows(request));
}

void ShardExecutor::Impl::Lookup(Lane* lane, const ShardLane::Arrival& record) {
  if (!TakeKeys(lane, record)) return;
  const RecordHeader& header = record.record.header;
  shard::LookupRequest request;
  request.token = {lane->id, header.operation, record.slot};
  request.worker = lane->peer.incarnation;
  request.table = header.table;
  request.groups = record.record.group_span();
  request.keys = keys;
  request.min_version = header.min_version;
  request.destination = header.destination;
  request.destination_key = header.destination_key;
  request.may_park = MayPark(*lane);
  OnPullOutcome(lane, record, lane->engine->Lookup(request));
}

void ShardExecutor::Impl::Scan(Lane* lane, const ShardLane::Arrival& record) {
  shard::ScanRequest request;
  request.worker = lane->peer.incarnation;
  request.table = record.record.header.table;
  request.group = record.record.groups[0];
  OnPullOutcome(lane, record, lane->engine->Scan(request));
}

}  // namespace verbena::server
