// Whether two views can be compared by the terms that they list (cluster_history.h).
//
// A view lists only the last terms, and a comparison of two views lets pass what is older than the
// list. So a member takes a view in two cases only: the coordinator has compared all that the
// member has seen by now, or the view lists the term of that. Otherwise it asks again.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_VIEW_TERMS_H_
#define VERBENA_PROTO_VIEW_TERMS_H_

#include <cstdint>

#include "proto/cluster_history.h"

namespace verbena {

// Whether `view` was compared with all of `known`, the member's view by now. `asked_at`: the
// revision of the view whose Seen was sent with the call that brought `view`; 0: none was.
inline bool WasCompared(const v1::ClusterView& view, uint64_t asked_at,
                        const v1::ClusterView& known) {
  if (asked_at == known.revision() || view.revision() <= known.revision()) return true;
  const v1::Seen seen = SeenOf(known);
  if (seen.term_id() == 0 || view.terms().empty()) return true;
  return seen.term() >= view.terms(0).number();
}

}  // namespace verbena

#endif  // VERBENA_PROTO_VIEW_TERMS_H_
