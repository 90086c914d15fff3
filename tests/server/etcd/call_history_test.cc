// The check of a history: it accepts each history that one coordinator can give, and no other.
#include "tests/server/etcd/call_history.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <random>
#include <utility>

namespace verbena::test {
namespace {

using Kind = RecordedCall::Kind;
using Outcome = RecordedCall::Outcome;
using Tables = std::map<std::string, uint64_t>;

RecordedCall Create(int64_t began, int64_t ended, uint64_t id) {
  return {.kind = Kind::kCreate,
          .outcome = Outcome::kDone,
          .began = began,
          .ended = ended,
          .name = "t",
          .id = id};
}
RecordedCall Drop(int64_t began, int64_t ended, bool found, uint64_t revision) {
  return {.kind = Kind::kDrop,
          .outcome = Outcome::kDone,
          .began = began,
          .ended = ended,
          .name = "t",
          .found = found,
          .revision = revision};
}
RecordedCall Read(int64_t began, int64_t ended, uint64_t revision, const Tables& tables,
                  uint64_t term = 1) {
  return {.kind = Kind::kRead,
          .outcome = Outcome::kDone,
          .began = began,
          .ended = ended,
          .revision = revision,
          .term = term,
          .tables = tables};
}
RecordedCall Join(int64_t began, int64_t ended, uint64_t id) {
  return {.kind = Kind::kJoin, .outcome = Outcome::kDone, .began = began, .ended = ended, .id = id};
}
RecordedCall With(RecordedCall call, Outcome outcome) {
  call.outcome = outcome;
  if (outcome == Outcome::kUnknown) call.ended = std::numeric_limits<int64_t>::max();
  return call;
}

bool Linearizable(const std::vector<RecordedCall>& calls) { return Violation(calls).empty(); }

TEST_CASE("calls one after the other have the answers of one coordinator") {
  CHECK(Linearizable({Read(1, 2, 1, {}), Create(3, 4, 7), Read(5, 6, 2, {{"t", 7}}),
                      Create(7, 8, 7), Drop(9, 10, true, 3), Drop(11, 12, false, 0),
                      Create(13, 14, 9), Read(15, 16, 4, {{"t", 9}})}));
  // A change that was acknowledged is lost.
  CHECK_FALSE(Linearizable({Create(1, 2, 7), Read(3, 4, 2, {})}));
  CHECK_FALSE(Linearizable({Create(1, 2, 7), Drop(3, 4, true, 3), Read(5, 6, 4, {{"t", 7}})}));
  CHECK_FALSE(Linearizable({Create(1, 2, 7), Create(3, 4, 8)}));
  CHECK_FALSE(Linearizable({Drop(1, 2, true, 3)}));
  CHECK_FALSE(Linearizable({Create(1, 2, 7), Drop(3, 4, false, 0)}));
  // An id comes back.
  CHECK_FALSE(Linearizable({Create(1, 2, 7), Drop(3, 4, true, 3), Create(5, 6, 7)}));
}

TEST_CASE("a read that began after another's end sees no older state") {
  CHECK(Linearizable(
      {Create(1, 2, 7), Drop(3, 10, true, 3), Read(4, 5, 3, {}), Read(4, 11, 2, {{"t", 7}})}));
  CHECK_FALSE(Linearizable(
      {Create(1, 2, 7), Drop(3, 10, true, 3), Read(4, 5, 3, {}), Read(6, 7, 2, {{"t", 7}})}));
  // The revision falls, although the tables are the same.
  CHECK_FALSE(Linearizable({Read(1, 2, 5, {}), Read(3, 4, 4, {})}));
  // A read of a revision before that of the acknowledged drop.
  CHECK_FALSE(Linearizable({Create(1, 2, 7), Drop(3, 4, true, 9), Read(5, 6, 8, {})}));
  CHECK_FALSE(Linearizable({Read(1, 4, 5, {}), Read(2, 3, 5, {{"u", 1}})}));
  CHECK_FALSE(Linearizable({Read(1, 4, 5, {}, 3), Read(2, 3, 6, {}, 2)}));
}

TEST_CASE("a call of unknown outcome may take effect late or never, a refused one never") {
  const RecordedCall open = With(Create(1, 0, 0), Outcome::kUnknown);
  CHECK(Linearizable({open, Read(3, 4, 1, {})}));
  CHECK(Linearizable({open, Read(3, 4, 2, {{"t", 7}})}));
  CHECK(Linearizable({open, Read(3, 4, 1, {}), Read(5, 6, 2, {{"t", 7}})}));
  // Not twice, and not under two ids.
  CHECK_FALSE(Linearizable({open, Read(3, 4, 2, {{"t", 7}}), Read(5, 6, 3, {{"t", 8}})}));
  CHECK_FALSE(Linearizable(
      {open, Read(3, 4, 2, {{"t", 7}}), Drop(5, 6, true, 3), Read(7, 8, 4, {{"t", 9}})}));
  CHECK_FALSE(Linearizable({With(Create(1, 2, 0), Outcome::kRefused), Read(3, 4, 2, {{"t", 7}})}));
  const RecordedCall drop = With(Drop(3, 0, false, 0), Outcome::kUnknown);
  CHECK(Linearizable({Create(1, 2, 7), drop, Read(4, 5, 3, {}), Create(6, 7, 9)}));
  CHECK(Linearizable({Create(1, 2, 7), drop, Create(6, 7, 7), Read(8, 9, 4, {})}));
  CHECK_FALSE(
      Linearizable({Create(1, 2, 7), drop, Read(4, 5, 3, {}), Create(6, 7, 8), Read(8, 9, 5, {})}));
  // Nor before it began.
  CHECK_FALSE(Linearizable(
      {Create(1, 2, 7), Read(3, 4, 2, {}), With(Drop(5, 0, false, 0), Outcome::kUnknown)}));
}

TEST_CASE("incarnations and ids are given out once, and increase") {
  CHECK(Linearizable({Join(1, 5, 9), Join(2, 3, 4), Join(6, 7, 10)}));
  CHECK_FALSE(Linearizable({Join(1, 4, 9), Join(2, 3, 9)}));
  CHECK_FALSE(Linearizable({Join(1, 2, 9), Join(3, 4, 8)}));
  RecordedCall other = Create(1, 4, 7);
  other.name = "u";
  CHECK_FALSE(Linearizable({other, Create(2, 3, 7)}));
}

// Calls of several callers on one coordinator that never fails, some of them without an answer.
std::vector<RecordedCall> Random(uint64_t seed, int calls) {
  std::mt19937_64 random(seed);
  CallHistory history;
  v1::ClusterView view;
  view.set_term(1);
  view.set_revision(1);
  uint32_t next_id = 1;
  struct Open {
    size_t call = 0;
    int step = 0;  // 0: to be applied, 1: to be answered
    std::function<void()> apply, answer;
  };
  std::vector<Open> open;
  const auto find = [&view](const std::string& name) {
    auto* tables = view.mutable_tables();
    return std::find_if(tables->begin(), tables->end(),
                        [&](const v1::Table& table) { return table.spec().name() == name; });
  };
  while (calls > 0 || !open.empty()) {
    if (calls > 0 && (open.size() < 5 || random() % 4 == 0)) {
      --calls;
      const std::string name(1, static_cast<char>('a' + random() % 3));
      Open one;
      if (const uint64_t kind = random() % 3; kind == 0) {
        const size_t call = one.call = history.Begin(Kind::kCreate, name);
        auto id = std::make_shared<uint32_t>(0);
        one.apply = [&, name, id] {
          if (const auto it = find(name); it != view.tables().end()) return void(*id = it->id());
          v1::Table* table = view.add_tables();
          table->mutable_spec()->set_name(name);
          table->set_id(*id = next_id++);
          view.set_revision(view.revision() + 1);
        };
        one.answer = [&history, call, id] { history.Created(call, *id); };
      } else if (kind == 1) {
        const size_t call = one.call = history.Begin(Kind::kDrop, name);
        auto revision = std::make_shared<uint64_t>(0);
        one.apply = [&, name, revision] {
          const auto it = find(name);
          if (it == view.tables().end()) return;
          view.mutable_tables()->erase(it);
          view.set_revision(*revision = view.revision() + 1);
        };
        one.answer = [&history, call, revision] {
          history.Dropped(call, *revision != 0, *revision);
        };
      } else {
        const size_t call = one.call = history.Begin(Kind::kRead);
        auto read = std::make_shared<v1::ClusterView>();
        one.apply = [&, read] { *read = view; };
        one.answer = [&history, call, read] { history.Read(call, *read); };
      }
      open.push_back(std::move(one));
      continue;
    }
    Open& one = open[random() % open.size()];
    if (one.step++ == 0) {
      // Some calls are lost before they are applied.
      if (random() % 20 == 0) {
        std::swap(one, open.back());
        open.pop_back();
        continue;
      }
      one.apply();
    } else {
      if (random() % 20 != 0) one.answer();
      std::swap(one, open.back());
      open.pop_back();
    }
  }
  return history.calls();
}

TEST_CASE(
    "random histories of one coordinator are accepted, and those with one wrong answer refused") {
  int changed = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::vector<RecordedCall> calls = Random(seed, 120);
    INFO("seed " << seed);
    REQUIRE(Violation(calls).empty());
    // A read does not show a table that reads before and after it show with one id.
    std::vector<RecordedCall*> reads;
    for (RecordedCall& call : calls) {
      if (call.kind == Kind::kRead && call.outcome == Outcome::kDone) reads.push_back(&call);
    }
    for (RecordedCall* read : reads) {
      const Tables right = read->tables;
      for (const auto& [name, id] : right) {
        const auto shows = [&](const RecordedCall* other) {
          const auto it = other->tables.find(name);
          return it != other->tables.end() && it->second == id;
        };
        const bool before = std::any_of(reads.begin(), reads.end(), [&](const RecordedCall* other) {
          return other->ended < read->began && shows(other);
        });
        const bool after = std::any_of(reads.begin(), reads.end(), [&](const RecordedCall* other) {
          return other->began > read->ended && shows(other);
        });
        if (!before || !after) continue;
        read->tables.erase(name);
        CHECK_FALSE(Violation(calls).empty());
        read->tables = right;
        ++changed;
      }
    }
  }
  CHECK(changed > 10);
}

}  // namespace
}  // namespace verbena::test
