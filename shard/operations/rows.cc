// Requests about rows of embedding tables: pushes, lookups of rows and of bags, scans and
// prefetches.
#include <utility>

#include "proto/wire/operations.h"
#include "shard/operations/operations.h"

namespace verbena::shard {

Outcome HandlePushRows(Engine* engine, const Request& request, Scratch* scratch) {
  absl::Status status = CopyKeys(request.record, request.payload, &scratch->keys);
  if (!status.ok()) return Malformed(std::move(status));
  PushRowsRequest push;
  push.token = request.token;
  push.worker = request.worker;
  push.table = request.record.header.table;
  push.groups = request.record.group_span();
  push.keys = scratch->keys;
  push.dtype = request.record.header.dtype;
  push.assigns = wire::OperationOf(request.record.header.type).assigns;
  if (!push.keys.empty()) push.rows = request.payload.subspan(KeyBytes(push.keys.size()));
  return FromGroups(engine->PushRows(push));
}

Outcome HandleLookup(Engine* engine, const Request& request, Scratch* scratch) {
  const RecordHeader& header = request.record.header;
  const bool bags = wire::OperationOf(header.type).bags;
  absl::Status status = CopyKeys(request.record, request.payload, &scratch->keys);
  if (status.ok() && bags) status = CopyBagUses(request.record, request.payload, &scratch->uses);
  if (!status.ok()) return Malformed(std::move(status));
  LookupRequest lookup;
  lookup.token = request.token;
  lookup.worker = request.worker;
  lookup.table = header.table;
  lookup.groups = request.record.group_span();
  lookup.keys = scratch->keys;
  lookup.dtype = header.dtype;
  lookup.min_version = header.min_version;
  lookup.destination = header.destination;
  lookup.destination_key = header.destination_key;
  lookup.may_park = request.may_park;
  if (bags) lookup.bags = {header.bags, scratch->uses};
  return FromRead(engine->Lookup(lookup));
}

Outcome HandlePrefetch(Engine* engine, const Request& request, Scratch* scratch) {
  absl::Status status = CopyKeys(request.record, request.payload, &scratch->keys);
  if (!status.ok()) return Malformed(std::move(status));
  PrefetchRequest prefetch;
  prefetch.worker = request.worker;
  prefetch.table = request.record.header.table;
  prefetch.groups = request.record.group_span();
  prefetch.keys = scratch->keys;
  return FromGroups(engine->Prefetch(prefetch));
}

Outcome HandleScan(Engine* engine, const Request& request, Scratch*) {
  ScanRequest scan;
  scan.worker = request.worker;
  scan.table = request.record.header.table;
  scan.group = request.record.groups[0];
  return FromRead(engine->Scan(scan));
}

}  // namespace verbena::shard
