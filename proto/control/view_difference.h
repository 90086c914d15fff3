// The entries of a view that may differ from those of an earlier view. Readers that follow views
// look at these entries alone, so the cost of a change grows with the change and not with the
// cluster.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_CONTROL_VIEW_DIFFERENCE_H_
#define VERBENA_PROTO_CONTROL_VIEW_DIFFERENCE_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena {

// Changes that follow one another, oldest first.
using ViewChangeList = std::vector<v1::ViewChange>;

struct ViewDifference {
  bool all = true;             // nothing is known: every entry may be different
  bool placement = true;       // so may servers or partitions
  std::set<uint32_t> tables;   // ids, also of those that are gone
  std::set<std::string> jobs;  // names, the same
};

// The difference between the view of revision `known` and `view`. `changes`: those that made `view`
// of an earlier one; nothing is known unless they begin with the view of that revision.
ViewDifference DifferenceOf(uint64_t known, const v1::ClusterView& view,
                            absl::Span<const v1::ViewChange> changes);

// Null: there is none. From the end, where new jobs are.
const v1::Job* FindJobNamed(const std::string& name, const v1::ClusterView& view);

// Null: it is no member. Members come in the order of their incarnations.
const v1::Worker* FindMember(uint64_t incarnation, const v1::Job& job);

}  // namespace verbena

#endif  // VERBENA_PROTO_CONTROL_VIEW_DIFFERENCE_H_
