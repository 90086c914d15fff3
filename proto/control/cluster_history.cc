#include "proto/control/cluster_history.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "proto/control/failpoints.h"
#include "proto/control/view_tables.h"

namespace verbena {
namespace {

// Whether the history contains revision `seen.revision` of the seen term.
bool WentThrough(const Terms& terms, const v1::Seen& seen) {
  if (terms.empty() || seen.term_id() == 0) return true;
  if (seen.term() < terms[0].number()) {
    return terms.size() < kTermsRecorded && seen.revision() < terms[0].revision();
  }
  const auto it = std::find_if(terms.begin(), terms.end(),
                               [&](const v1::Term& t) { return t.number() == seen.term(); });
  if (it == terms.end() || it->id() != seen.term_id()) return false;
  return it + 1 == terms.end() || seen.revision() < (it + 1)->revision();
}

bool SameTable(const v1::Table& a, const v1::Table& b) {
  return a.spec().name() == b.spec().name() && a.spec().job() == b.spec().job();
}

bool SameIdentities(const v1::ClusterView& view, const v1::ClusterView& before) {
  std::map<uint32_t, const v1::Table*> tables;
  for (const v1::Table& table : before.tables()) tables.emplace(table.id(), &table);
  for (const v1::Table& table : view.tables()) {
    const auto it = tables.find(table.id());
    if (it != tables.end() && !SameTable(table, *it->second)) return false;
  }
  std::map<uint64_t, const std::string*> servers;
  for (const v1::Server& s : before.servers()) servers.emplace(s.incarnation(), &s.name());
  return std::all_of(view.servers().begin(), view.servers().end(), [&](const v1::Server& server) {
    const auto it = servers.find(server.incarnation());
    return it == servers.end() || *it->second == server.name();
  });
}

// A table that an earlier one of the changes added is compared with the tables of `before`.
bool SameIdentities(absl::Span<const v1::ViewChange> changes, const v1::ClusterView& before) {
  for (const v1::ViewChange& change : changes) {
    for (const v1::Table& table : change.tables()) {
      const v1::Table* known = FindTableById(table.id(), before);
      if (known != nullptr && !SameTable(table, *known)) return false;
    }
    for (const v1::Server& server : change.servers()) {
      const auto known = std::find_if(
          before.servers().begin(), before.servers().end(),
          [&](const v1::Server& s) { return s.incarnation() == server.incarnation(); });
      if (known != before.servers().end() && known->name() != server.name()) return false;
    }
  }
  return true;
}

}  // namespace

v1::Seen SeenOf(const v1::ClusterView& view) {
  v1::Seen seen;
  seen.set_cluster_id(view.cluster_id());
  seen.set_term(view.term());
  seen.set_revision(view.revision());
  // A coordinator of an earlier version keeps the stored terms but adds none of its own.
  if (!view.terms().empty() && view.terms().rbegin()->number() == view.term()) {
    seen.set_term_id(view.terms().rbegin()->id());
  }
  return seen;
}

History CompareHistory(const v1::ClusterView& view, const v1::Seen& seen) {
  return CompareHistory(view, view.terms(), seen);
}

History CompareHistory(const v1::ClusterView& view, const Terms& terms, const v1::Seen& seen) {
  if (VERBENA_FAILPOINT(history, one_history) || seen.revision() == 0) return History::kContinues;
  if (view.cluster_id() != seen.cluster_id()) return History::kOtherCluster;
  if (view.revision() >= seen.revision()) {
    if (view.term() >= seen.term() && WentThrough(terms, seen)) return History::kContinues;
    const bool accepted = std::any_of(terms.begin(), terms.end(), [&](const v1::Term& term) {
      return term.accepted() && term.revision() > seen.revision();
    });
    if (accepted) return History::kAbandoned;
    // With a higher revision in a lower term the view is still the older one.
    return view.term() < seen.term() ? History::kRolledBack : History::kForeign;
  }
  if (view.term() > seen.term()) return History::kRolledBack;
  const bool other_id = view.term() == seen.term() && seen.term_id() != 0 &&
                        !view.terms().empty() && view.terms().rbegin()->id() != seen.term_id();
  return other_id ? History::kRolledBack : History::kBehind;
}

History CompareHistory(const v1::ClusterView& view, const v1::ClusterView& before) {
  const History history = CompareHistory(view, SeenOf(before));
  if (history != History::kContinues || VERBENA_FAILPOINT(history, one_history)) return history;
  return SameIdentities(view, before) ? history : History::kOtherIdentity;
}

History CompareHistory(const v1::ClusterView& view, const v1::ClusterView& before,
                       absl::Span<const v1::ViewChange> changes) {
  const History history = CompareHistory(view, SeenOf(before));
  if (history != History::kContinues || VERBENA_FAILPOINT(history, one_history)) return history;
  return SameIdentities(changes, before) ? history : History::kOtherIdentity;
}

bool ComesAfter(const v1::Seen& seen, const Terms& terms, const v1::ClusterView& view) {
  if (VERBENA_FAILPOINT(history, one_history) || VERBENA_FAILPOINT(history, compare_revisions))
    return true;
  const v1::Seen own = SeenOf(view);
  if (own.revision() == 0) return true;
  if (seen.cluster_id() != own.cluster_id() || seen.revision() < own.revision()) return false;
  // A state of an earlier version: only revisions can be compared.
  if (seen.term_id() == 0 || own.term_id() == 0) return true;
  if (seen.term() == own.term()) return seen.term_id() == own.term_id();
  return seen.term() > own.term() && !terms.empty() && terms[0].number() <= own.term() &&
         WentThrough(terms, own);
}

std::string DescribeSeen(const v1::Seen& seen) {
  return absl::StrCat("revision ", seen.revision(), " of term ", seen.term());
}

}  // namespace verbena
