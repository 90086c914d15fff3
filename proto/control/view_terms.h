// Whether two views can be compared by the terms that they list (cluster_history.h).
//
// A view lists only the last terms, and a comparison of two views accepts states older than the
// list. So a member accepts a view in two cases only. Either the coordinator has compared the view
// with the member's newest state, or the view lists the term of that state. Otherwise the member
// requests it again.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_CONTROL_VIEW_TERMS_H_
#define VERBENA_PROTO_CONTROL_VIEW_TERMS_H_

#include <cstdint>

#include "proto/control/cluster_history.h"

namespace verbena {

// Whether `view` was compared with `known`, the member's current view. `asked_at` is the revision
// of the view whose Seen was sent in the call that returned `view`; 0: no Seen was sent.
inline bool WasCompared(const v1::ClusterView& view, uint64_t asked_at,
                        const v1::ClusterView& known) {
  if (asked_at == known.revision() || view.revision() <= known.revision()) return true;
  const v1::Seen seen = SeenOf(known);
  if (seen.term_id() == 0 || view.terms().empty()) return true;
  return seen.term() >= view.terms(0).number();
}

}  // namespace verbena

#endif  // VERBENA_PROTO_CONTROL_VIEW_TERMS_H_
