// Which history a state of a cluster belongs to.
//
// Each start of a coordinator begins a term with a random id. The view lists the terms with the
// first revision of each, so that a state that a member has seen (revision R of term T with id I)
// can be compared with any other: a coordinator whose database was replaced by an older copy
// continues another history than its members do.
//
// A view lists only the last terms. The coordinator keeps all of them, so its comparison of what a
// member has seen is exact however often it was started; a comparison of two views lets pass what
// is older than the list, and the coordinator gives no member a view that it has not compared.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_CLUSTER_HISTORY_H_
#define VERBENA_PROTO_CLUSTER_HISTORY_H_

#include <cstdint>
#include <string>

#include "proto/verbena/v1/cluster.pb.h"

namespace verbena {

// How many terms a view lists.
inline constexpr int kTermsListed = 64;
// How many a coordinator keeps: 2 MB. What is older is taken for another history.
inline constexpr int kTermsRecorded = 65536;

enum class History {
  kContinues,   // the view comes after what was seen, or is the same state
  kBehind,      // the view has a lower revision: an earlier answer that came late, or an old state
  kRolledBack,  // the view has a lower revision in another term: an old state was put back
  kForeign,     // what was seen is not in the view's history, though its revision is no lower
  kAbandoned,   // the same, and an operator has accepted the view's history since
                // (--accept-older-state)
  kOtherIdentity,  // an id names another table or server than it did
  kOtherCluster,   // the view is of a cluster with another id
};

// The newest state that a member with this view has seen.
v1::Seen SeenOf(const v1::ClusterView& view);

using Terms = google::protobuf::RepeatedPtrField<v1::Term>;

// `view` in relation to what was seen. Without the term's id, which earlier versions did not have,
// only revisions are compared, and so they are of terms before those that the view lists.
History CompareHistory(const v1::ClusterView& view, const v1::Seen& seen);

// The same by `terms`, all that the view's history is known to have gone through: of terms before
// them only revisions are compared where the list is shorter than kTermsRecorded (an earlier
// version did not keep them), and nothing is believed where it is not.
History CompareHistory(const v1::ClusterView& view, const Terms& terms, const v1::Seen& seen);

// The same of two views, and of the tables and servers that both have.
History CompareHistory(const v1::ClusterView& view, const v1::ClusterView& before);

// The other way round: whether what was seen, in a history of which `terms` are the last, comes
// after the view. False where the terms do not go back to the view's: nobody can say.
bool ComesAfter(const v1::Seen& seen, const Terms& terms, const v1::ClusterView& view);

// "revision 12 of term 3"
std::string DescribeSeen(const v1::Seen& seen);

struct HistoryPlantedBugs {
  bool one_history = false;        // every state continues every other one
  bool forgets_terms = false;      // a coordinator compares by the terms that its view lists
  bool compare_revisions = false;  // a greater revision comes after a lower one of any term
};
// All false outside tests; written only while no coordinator and no member runs.
inline HistoryPlantedBugs& history_planted_bugs() {
  static HistoryPlantedBugs bugs;
  return bugs;
}

}  // namespace verbena

#endif  // VERBENA_PROTO_CLUSTER_HISTORY_H_
