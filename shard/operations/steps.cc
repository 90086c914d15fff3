// The ends of steps: end-step and await, and the two phases of a step's global norm.
#include <algorithm>

#include "shard/operations/operations.h"

namespace verbena::shard {
namespace {

GroupsRequest ToGroups(const Request& request) {
  GroupsRequest groups;
  groups.token = request.token;
  groups.worker = request.worker;
  groups.table = request.record.header.table;
  groups.groups = request.record.group_span();
  groups.min_version = request.record.header.min_version;
  groups.may_park = request.may_park;
  return groups;
}

}  // namespace

Outcome HandleEndStep(Engine* engine, const Request& request, Scratch*) {
  return FromGroups(engine->EndStep(ToGroups(request)));
}

Outcome HandleAwait(Engine* engine, const Request& request, Scratch*) {
  return FromGroups(engine->Await(ToGroups(request)));
}

Outcome HandleNorms(Engine* engine, const Request& request, Scratch*) {
  const RecordHeader& header = request.record.header;
  NormsRequest norms;
  norms.token = request.token;
  norms.worker = request.worker;
  norms.table = header.table;
  norms.groups = request.record.group_span();
  norms.destination = header.destination;
  norms.destination_key = header.destination_key;
  norms.may_park = request.may_park;
  return FromRead(engine->Norms(norms));
}

Outcome HandleTotals(Engine* engine, const Request& request, Scratch*) {
  const TotalsPayload payload = CopyTotals(request.payload);
  NormTotals totals;
  std::copy_n(payload.totals, totals.size(), totals.begin());
  return FromGroups(engine->Totals(ToGroups(request), totals));
}

}  // namespace verbena::shard
