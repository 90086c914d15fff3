// Differences between two views of a cluster: what a coordinator sends instead of the whole view.
//
// The size of a difference is that of what changed; finding it takes one pass over both views.
//
// **Thread safety**: pure functions.
//
// **Invariants**
//  1. ApplyViewChange(ViewChangeOf(a, b), a) gives exactly b, the order of entries included.
//     ViewChangeOf() returns nothing where this is not possible.
//  2. A change is applied to the view with its base revision and term, and to no other.
#ifndef VERBENA_PROTO_VIEW_CHANGE_H_
#define VERBENA_PROTO_VIEW_CHANGE_H_

#include <optional>

#include "proto/verbena/v1/cluster.pb.h"

namespace verbena {

// None: the views are of two terms, or differ in something that no change describes; the whole view
// has to be sent.
std::optional<v1::ViewChange> ViewChangeOf(const v1::ClusterView& from, const v1::ClusterView& to);

// False, and *view as it was: `change` belongs to another view, or names an entry that is not
// there.
bool ApplyViewChange(const v1::ViewChange& change, v1::ClusterView* view);

// Applies the changes of a response that the view does not have yet. False: the next one does not
// continue the view, which has those before it.
bool ApplyChanges(const v1::GetViewResponse& response, v1::ClusterView* view);

// Turns the changes of a response into its view, with `known`, the caller's view by now. Changes
// that `known` has already are skipped. False: they do not continue `known`, and the caller has to
// ask for the whole view. A response with a view is left as it is.
bool CompleteView(const v1::ClusterView& known, v1::GetViewResponse* response);

}  // namespace verbena

#endif  // VERBENA_PROTO_VIEW_CHANGE_H_
