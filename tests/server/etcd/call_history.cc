#include "tests/server/etcd/call_history.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace verbena::test {
namespace {

using Kind = RecordedCall::Kind;
using Outcome = RecordedCall::Outcome;

// Configurations of one table's search. Beyond it the history has too many calls of unknown outcome
// on one table.
constexpr size_t kMostConfigurations = 4'000'000;

// One table, as the calls so far leave it.
struct Entry {
  bool present = false;
  uint64_t id = 0;        // present: its id; 0: of a creation whose answer is not known
  uint64_t last_id = 0;   // the greatest id that it had
  uint64_t revision = 0;  // a lower bound of the view's

  bool IsPresentAs(uint64_t wanted) {
    if (!present) return false;
    if (id == wanted) return true;
    if (id != 0 || wanted <= last_id) return false;
    id = last_id = wanted;
    return true;
  }
  void Change(bool now_present, uint64_t new_id) {
    present = now_present;
    id = new_id;
    last_id = std::max(last_id, new_id);
    ++revision;
  }
};

// The entry after the call; none: the call cannot be next.
std::optional<Entry> After(Entry entry, const RecordedCall& call, const std::string& name) {
  const bool known = call.outcome == Outcome::kDone;
  switch (call.kind) {
    case Kind::kCreate:
      if (!known) {
        if (entry.present) return std::nullopt;  // without effect
        entry.Change(true, 0);
      } else if (!entry.present) {
        if (call.id <= entry.last_id) return std::nullopt;
        entry.Change(true, call.id);
      } else if (!entry.IsPresentAs(call.id)) {
        return std::nullopt;
      }
      return entry;
    case Kind::kDrop:
      if (known && !call.found) return entry.present ? std::nullopt : std::optional<Entry>(entry);
      if (!entry.present) return std::nullopt;
      if (call.revision != 0 && call.revision <= entry.revision) return std::nullopt;
      entry.Change(false, 0);
      entry.revision = std::max(entry.revision, call.revision);
      return entry;
    case Kind::kRead: {
      if (call.revision < entry.revision) return std::nullopt;
      entry.revision = call.revision;
      const auto read = call.tables.find(name);
      if (read == call.tables.end() ? entry.present : !entry.IsPresentAs(read->second))
        return std::nullopt;
      return entry;
    }
    case Kind::kJoin:
      break;
  }
  return std::nullopt;
}

std::string Describe(const RecordedCall& call, const std::string& name) {
  const std::string times = absl::StrCat(" in [", call.began, ", ", call.ended, "]");
  switch (call.kind) {
    case Kind::kCreate:
      return absl::StrCat("the creation of ", name, " with id ", call.id, times);
    case Kind::kDrop:
      return absl::StrCat("the drop of ", name, call.found ? "" : ", which was not found,",
                          " at revision ", call.revision, times);
    case Kind::kJoin:
      return absl::StrCat("the join as ", call.id, times);
    case Kind::kRead:
      break;
  }
  const auto read = call.tables.find(name);
  return absl::StrCat(
      "the read of revision ", call.revision, " of term ", call.term, ", with ", name, " ",
      read == call.tables.end() ? "absent" : absl::StrCat("as id ", read->second), times);
}

// Of the calls on one table, and all reads.
class Search {
 public:
  Search(std::string name, const std::vector<RecordedCall>& calls) : name_(std::move(name)) {
    for (const RecordedCall& call : calls) {
      if (call.outcome == Outcome::kRefused || call.kind == Kind::kJoin) continue;
      if (call.kind != Kind::kRead && call.name != name_) continue;
      if (call.outcome == Outcome::kDone) {
        ended_.push_back(&call);
      } else if (call.kind != Kind::kRead) {
        open_[call.kind == Kind::kCreate ? 0 : 1].push_back(&call);
      }
    }
    const auto by_begin = [](const RecordedCall* a, const RecordedCall* b) {
      return a->began < b->began;
    };
    std::sort(ended_.begin(), ended_.end(), by_begin);
    for (auto& calls_of_kind : open_)
      std::sort(calls_of_kind.begin(), calls_of_kind.end(), by_begin);
  }

  std::string Run() {
    std::vector<Node> stack(1);
    std::unordered_set<std::string> visited;
    size_t furthest = 0;
    while (!stack.empty()) {
      const Node node = std::move(stack.back());
      stack.pop_back();
      furthest = std::max(furthest, node.mark);
      if (node.mark == ended_.size()) return "";
      if (!visited.insert(KeyOf(node)).second) continue;
      if (visited.size() > kMostConfigurations)
        return absl::StrCat("table ", name_, ": the history has too many open calls to be checked");
      Expand(node, &stack);
    }
    return absl::StrCat("no order of the calls on table ", name_, " explains ",
                        Describe(*ended_[furthest], name_));
  }

 private:
  // Calls that are ordered: those of ended_ before `mark` and in `beyond`, and the first `open`
  // ones of each kind of open_. Those of a kind differ in their begins alone: the earliest comes
  // first.
  struct Node {
    size_t mark = 0;
    std::set<size_t> beyond = {};
    std::array<size_t, 2> open = {};
    Entry entry = {};
  };

  static std::string KeyOf(const Node& node) {
    std::string key = absl::StrCat(node.mark, "|");
    for (const size_t i : node.beyond) absl::StrAppend(&key, i, ",");
    absl::StrAppend(&key, "|", node.open[0], ",", node.open[1], "|", node.entry.present, ",",
                    node.entry.id, ",", node.entry.last_id, ",", node.entry.revision);
    return key;
  }

  // Pushes the nodes with one more call: the likeliest one last.
  void Expand(const Node& node, std::vector<Node>* stack) const {
    // No call may follow one that began after its end.
    int64_t first_end = std::numeric_limits<int64_t>::max();
    std::vector<size_t> next;
    for (size_t i = node.mark; i < ended_.size() && ended_[i]->began <= first_end; ++i) {
      if (node.beyond.contains(i)) continue;
      first_end = std::min(first_end, ended_[i]->ended);
      next.push_back(i);
    }
    for (size_t kind = 0; kind < open_.size(); ++kind) {
      const size_t used = node.open[kind];
      if (used == open_[kind].size() || open_[kind][used]->began > first_end) continue;
      const std::optional<Entry> after = After(node.entry, *open_[kind][used], name_);
      if (!after) continue;
      Node more = node;
      ++more.open[kind];
      more.entry = *after;
      stack->push_back(std::move(more));
    }
    for (size_t k = next.size(); k-- > 0;) {
      const size_t i = next[k];
      if (ended_[i]->began > first_end) continue;
      const std::optional<Entry> after = After(node.entry, *ended_[i], name_);
      if (!after) continue;
      Node more = node;
      more.entry = *after;
      more.beyond.insert(i);
      while (more.beyond.erase(more.mark) > 0) ++more.mark;
      stack->push_back(std::move(more));
    }
  }

  const std::string name_;
  std::vector<const RecordedCall*> ended_;
  std::array<std::vector<const RecordedCall*>, 2> open_;  // creations, drops
};

// Numbers that calls return must not fall: of two calls, the one that begins after the other's end
// has a greater number, or, if `same`, an equal one.
std::string Falls(std::vector<const RecordedCall*> calls, const char* number, bool same,
                  uint64_t (*of)(const RecordedCall&)) {
  std::vector<const RecordedCall*> by_end = calls;
  std::sort(calls.begin(), calls.end(), [](auto* a, auto* b) { return a->began < b->began; });
  std::sort(by_end.begin(), by_end.end(), [](auto* a, auto* b) { return a->ended < b->ended; });
  const RecordedCall* greatest = nullptr;
  size_t ended = 0;
  for (const RecordedCall* call : calls) {
    for (; ended < by_end.size() && by_end[ended]->ended < call->began; ++ended) {
      if (greatest == nullptr || of(*by_end[ended]) > of(*greatest)) greatest = by_end[ended];
    }
    if (greatest == nullptr || of(*call) > of(*greatest)) continue;
    if (same && of(*call) == of(*greatest)) continue;
    return absl::StrCat("the ", number, " falls: ", of(*call), " in [", call->began, ", ",
                        call->ended, "], after ", of(*greatest), " in [", greatest->began, ", ",
                        greatest->ended, "]");
  }
  return "";
}

std::vector<const RecordedCall*> Done(const std::vector<RecordedCall>& calls, Kind kind) {
  std::vector<const RecordedCall*> done;
  for (const RecordedCall& call : calls) {
    if (call.kind == kind && call.outcome == Outcome::kDone) done.push_back(&call);
  }
  return done;
}

// One state for each revision, in no lower term than earlier revisions.
std::string TwoStates(const std::vector<RecordedCall>& calls) {
  std::map<uint64_t, const RecordedCall*> states;
  for (const RecordedCall* read : Done(calls, Kind::kRead)) {
    const auto [it, added] = states.try_emplace(read->revision, read);
    if (!added && (it->second->tables != read->tables || it->second->term != read->term))
      return absl::StrCat("revision ", read->revision, " is two states");
  }
  uint64_t term = 0;
  for (const auto& [revision, read] : states) {
    if (read->term < term)
      return absl::StrCat("revision ", revision, " is of term ", read->term, ", after ", term);
    term = read->term;
  }
  return "";
}

std::string TwoOwners(const std::vector<RecordedCall>& calls) {
  std::set<uint64_t> incarnations;
  for (const RecordedCall* join : Done(calls, Kind::kJoin)) {
    if (!incarnations.insert(join->id).second)
      return absl::StrCat("incarnation ", join->id, " was given out twice");
  }
  std::map<uint64_t, std::string> names;
  const auto add = [&](uint64_t id, const std::string& name) {
    return names.try_emplace(id, name).first->second == name;
  };
  for (const RecordedCall& call : calls) {
    if (call.outcome != Outcome::kDone) continue;
    bool one = call.kind != Kind::kCreate || add(call.id, call.name);
    for (const auto& [name, id] : call.tables) one = one && add(id, name);
    if (!one) return absl::StrCat("two tables have one id in ", Describe(call, call.name));
  }
  return "";
}

}  // namespace

size_t CallHistory::Begin(Kind kind, const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  RecordedCall call;
  call.kind = kind;
  call.name = name;
  call.began = ++now_;
  calls_.push_back(std::move(call));
  return calls_.size() - 1;
}

RecordedCall& CallHistory::End(size_t call, Outcome outcome) {
  calls_[call].outcome = outcome;
  calls_[call].ended = ++now_;
  return calls_[call];
}

void CallHistory::Created(size_t call, uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  End(call, Outcome::kDone).id = id;
}

void CallHistory::Dropped(size_t call, bool found, uint64_t revision) {
  const std::lock_guard<std::mutex> lock(mutex_);
  RecordedCall& drop = End(call, Outcome::kDone);
  drop.found = found;
  drop.revision = revision;
}

void CallHistory::Joined(size_t call, uint64_t incarnation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  End(call, Outcome::kDone).id = incarnation;
}

void CallHistory::Read(size_t call, const v1::ClusterView& view) {
  const std::lock_guard<std::mutex> lock(mutex_);
  RecordedCall& read = End(call, Outcome::kDone);
  read.revision = view.revision();
  read.term = view.term();
  for (const v1::Table& table : view.tables()) {
    if (absl::StartsWith(table.spec().name(), prefix_))
      read.tables[table.spec().name()] = table.id();
  }
}

void CallHistory::Refused(size_t call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  End(call, Outcome::kRefused);
}

std::vector<RecordedCall> CallHistory::calls() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

std::string Violation(const std::vector<RecordedCall>& calls) {
  if (std::string wrong = TwoStates(calls); !wrong.empty()) return wrong;
  if (std::string wrong = TwoOwners(calls); !wrong.empty()) return wrong;
  if (std::string wrong = Falls(Done(calls, Kind::kRead), "revision of the view", true,
                                [](const RecordedCall& call) { return call.revision; });
      !wrong.empty()) {
    return wrong;
  }
  if (std::string wrong = Falls(Done(calls, Kind::kJoin), "incarnation", false,
                                [](const RecordedCall& call) { return call.id; });
      !wrong.empty()) {
    return wrong;
  }
  std::set<std::string> names;
  for (const RecordedCall& call : calls) {
    if (!call.name.empty()) names.insert(call.name);
    for (const auto& [name, id] : call.tables) names.insert(name);
  }
  for (const std::string& name : names) {
    if (std::string wrong = Search(name, calls).Run(); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace verbena::test
