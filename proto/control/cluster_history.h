// Comparison of cluster states: whether one state continues another.
//
// Each start of a coordinator begins a term with a random id. The view lists the terms with the
// first revision of each. So a state that a member has seen (revision R of term T with id I) can be
// compared with any other state. If a coordinator's database is replaced by an older copy, the
// coordinator continues another history than its members.
//
// A view lists only the last terms. The coordinator keeps all terms, so it compares a member's
// state exactly, no matter how often it was restarted. A comparison of two views accepts states
// older than the list. Therefore the coordinator sends a member only views that it has compared
// with the member's state.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_CONTROL_CLUSTER_HISTORY_H_
#define VERBENA_PROTO_CONTROL_CLUSTER_HISTORY_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena {

// Number of terms in a view.
inline constexpr int kTermsListed = 64;
// Number of terms that a coordinator keeps: 2 MB. An older state counts as another history.
inline constexpr int kTermsRecorded = 65536;

enum class History {
  kContinues,   // the view comes after the seen state, or equals it
  kBehind,      // the view has a lower revision: a delayed reply, or an old state
  kRolledBack,  // the view is older and belongs to an earlier term, or to another term with a lower
                // revision: an old state was restored
  kForeign,     // the seen state is not in the view's history, although the view's revision is not
                // lower
  kAbandoned,   // as kForeign, but an operator has accepted the view's history since
                // (--accept-older-state)
  kOtherIdentity,  // an id belongs to another table or server than before
  kOtherCluster,   // the view is of a cluster with another id
};

// The newest state that a member with this view has seen.
v1::Seen SeenOf(const v1::ClusterView& view);

using Terms = google::protobuf::RepeatedPtrField<v1::Term>;

// Compares `view` with the seen state. Without the term's id, which earlier versions did not have,
// only revisions are compared. The same holds for terms before those that the view lists.
History CompareHistory(const v1::ClusterView& view, const v1::Seen& seen);

// Compares using `terms`, all known terms of the view's history. A state from an older term than
// these is compared by revision only if the list is shorter than kTermsRecorded, because an earlier
// version did not keep such terms. If the list is full, such a state counts as another history.
History CompareHistory(const v1::ClusterView& view, const Terms& terms, const v1::Seen& seen);

// Compares two views, including the tables and servers that both have.
History CompareHistory(const v1::ClusterView& view, const v1::ClusterView& before);

// The same for a view that `changes` made of `before`: the entries that they name are compared, not
// all.
History CompareHistory(const v1::ClusterView& view, const v1::ClusterView& before,
                       absl::Span<const v1::ViewChange> changes);

// The reverse: whether `seen`, in a history whose last terms are `terms`, comes after the view.
// False if the terms do not reach back to the view's term, because the order is unknown then.
bool ComesAfter(const v1::Seen& seen, const Terms& terms, const v1::ClusterView& view);

// "revision 12 of term 3"
std::string DescribeSeen(const v1::Seen& seen);

}  // namespace verbena

#endif  // VERBENA_PROTO_CONTROL_CLUSTER_HISTORY_H_
