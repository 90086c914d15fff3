// A change of the values of a table's optimizer.
#include <utility>

#include "shard/operations/operations.h"

namespace verbena::shard {

Outcome HandleSetOptimizer(Engine* engine, const Request& request, Scratch* scratch) {
  absl::Status status = CopyNamedValues(request.payload, &scratch->values);
  if (!status.ok()) return Malformed(std::move(status));
  GroupsRequest groups;
  groups.token = request.token;
  groups.worker = request.worker;
  groups.table = request.record.header.table;
  groups.groups = request.record.group_span();
  return FromGroups(engine->SetOptimizer(groups, scratch->values));
}

}  // namespace verbena::shard
