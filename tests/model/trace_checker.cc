#include "tests/model/trace_checker.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

#define NOBODY 0
#include "tests/model/rules.h"

namespace verbena::test {
namespace {

// A save may make several changes. More steps at once are none that the coordinator makes.
constexpr uint64_t kMostSteps = 6;

std::string Describe(const TraceConfiguration& c) {
  return absl::StrCat("configuration ", c.number, ", epoch ", c.epoch, ", primary ", c.primary,
                      c.copy == 0  ? ", alone"
                      : c.follower ? ", follower "
                                   : ", learner ",
                      c.copy == 0 ? "" : absl::StrCat(c.copy, " since ", c.since),
                      c.moves ? ", is to be moved" : "");
}

// Whether steps of the model lead from `c` to `to`. Each makes the number grow by 1.
bool Reaches(const TraceConfiguration& c, const TraceConfiguration& to) {
  if (c.number >= to.number) return c == to;
  TraceConfiguration next = c;
  ++next.number;
  if (TraceConfiguration n = next; MAY_MOVE(c)) {
    MOVE_ON(n);
    if (Reaches(n, to)) return true;
  }
  if (MAY_STAY(c)) {
    // The move goes on, and what was asked for in the configuration before is refused.
    if (Reaches(next, to)) return true;
    TraceConfiguration n = next;
    STAY(n);
    if (Reaches(n, to)) return true;
    // With its target.
    if (!c.follower) {
      DROP(n, c.copy);
      if (Reaches(n, to)) return true;
    }
  }
  // Other servers would take no part in the result: they can stand for each other.
  for (const uint64_t s : {c.copy, to.copy, to.primary}) {
    if (s == 0) continue;
    TraceConfiguration n = next;
    if (MAY_ADD_LEARNER(c, s)) {
      ADD_LEARNER(n, s);
      if (Reaches(n, to)) return true;
    }
    n = next;
    if (MAY_ADMIT(c, s)) {
      ADMIT(n, s);
      if (Reaches(n, to)) return true;
    }
    n = next;
    if (MAY_DROP(c, s)) {
      DROP(n, s);
      if (Reaches(n, to)) return true;
    }
    n = next;
    if (MAY_PROMOTE(c, s)) {
      MAKE_PRIMARY(n, s);
      // The next primary's server may be drained, too.
      for (const bool moves : {false, true}) {
        n.moves = moves;
        if (Reaches(n, to)) return true;
      }
    }
  }
  return false;
}

}  // namespace

std::string TraceChecker::Save(const TraceEvent& event) {
  const TraceConfiguration& to = event.configuration;
  if (event.term < term_) {
    return absl::StrCat("term ", event.term, " saves after term ", term_);
  }
  const bool placed = event.kind == TraceEvent::Kind::kPlaced || now_.number == 0;
  const bool grows = to.number > now_.number && to.epoch >= now_.epoch;
  const bool reached = placed || (to.number - now_.number <= kMostSteps && Reaches(now_, to));
  if (!grows || !reached) {
    return absl::StrCat("no steps lead from ", Describe(now_), " to ", Describe(to));
  }
  steps_ += placed ? 0 : to.number - now_.number;
  term_ = event.term;
  now_ = to;
  // An epoch between has been over before anybody could see it.
  primaries_[to.epoch] = to.primary;
  return "";
}

std::string TraceChecker::Add(const TraceEvent& event) {
  if (event.kind == TraceEvent::Kind::kSaved || event.kind == TraceEvent::Kind::kPlaced) {
    return Save(event);
  }
  if (event.kind == TraceEvent::Kind::kEnds) {
    if (reads_ == event.server) reads_ = 0;
    return "";
  }
  TraceConfiguration seen;
  const auto primary = primaries_.find(event.epoch);
  if (primary != primaries_.end()) seen.primary = primary->second;
  if (!IS_PRIMARY(seen, event.server)) {
    return absl::StrCat("server ", event.server, " answers in epoch ", event.epoch,
                        ", whose primary is ", seen.primary);
  }
  if (event.kind == TraceEvent::Kind::kChange) return "";
  if (reads_ != 0 && reads_ != event.server) {
    return absl::StrCat("server ", event.server, " may read while server ", reads_, " may");
  }
  reads_ = event.server;
  return "";
}

std::string CheckTrace(const std::vector<TraceEvent>& trace) {
  TraceChecker checker;
  for (size_t i = 0; i < trace.size(); ++i) {
    const std::string wrong = checker.Add(trace[i]);
    if (!wrong.empty()) return absl::StrCat("event ", i, " of ", trace.size(), ": ", wrong);
  }
  return "";
}

}  // namespace verbena::test
