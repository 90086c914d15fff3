// Differences between two views of a cluster, which a coordinator sends instead of the whole view.
//
// The size of a difference is proportional to the changes. Finding it takes one pass over both
// views.
//
// **Thread safety**: pure functions.
//
// **Invariants**
//  1. ApplyViewChange(ViewChangeOf(a, b), a) gives exactly b, including the order of entries. If
//     that is not possible, ViewChangeOf() returns nothing.
//  2. A change applies only to the view with its base revision and term.
#ifndef VERBENA_PROTO_CONTROL_VIEW_CHANGE_H_
#define VERBENA_PROTO_CONTROL_VIEW_CHANGE_H_

#include <optional>

#include "verbena/v1/cluster.pb.h"

namespace verbena {

// Empty: the views are of two terms, or differ in a part that changes do not cover. The caller must
// send the whole view.
std::optional<v1::ViewChange> ViewChangeOf(const v1::ClusterView& from, const v1::ClusterView& to);

// False: `change` belongs to another view, or refers to a missing entry; *view is unchanged.
bool ApplyViewChange(const v1::ViewChange& change, v1::ClusterView* view);

// Applies the changes of a response that the view does not have yet. False: the next change does
// not continue the view; the changes before it are applied.
bool ApplyChanges(const v1::GetViewResponse& response, v1::ClusterView* view);

}  // namespace verbena

#endif  // VERBENA_PROTO_CONTROL_VIEW_CHANGE_H_
