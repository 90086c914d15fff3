// Runs of the simulator are paths of the model of the control protocol, and the check sees what is
// none.
#include "tests/cluster/swarm_trace.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/cluster/seeds.h"
#include "tests/cluster/swarm.h"

namespace verbena::test {
namespace swarm_trace_test {
namespace {

using Kind = TraceEvent::Kind;
using Trace = std::vector<TraceEvent>;

TEST_CASE("model: runs of the simulator are paths of the model under faults") {
  uint64_t saved = 0, changes = 0, reads = 0, promotions = 0, admissions = 0;
  ForEachSeed("cluster_swarm_test 'model: runs*'", 20, [&](uint64_t seed) {
    SwarmTrace::Partitions traces;
    SwarmResult result = RunSwarm(seed, &traces);
    for (const auto& [partition, trace] : traces) {
      const std::string wrong = CheckTrace(trace);
      if (!wrong.empty()) {
        result.violations.push_back("partition " + std::to_string(partition) + ": " + wrong);
      }
      TraceConfiguration before;
      for (const TraceEvent& e : trace) {
        changes += e.kind == Kind::kChange ? 1 : 0;
        reads += e.kind == Kind::kReads ? 1 : 0;
        if (e.kind != Kind::kSaved && e.kind != Kind::kPlaced) continue;
        ++saved;
        const TraceConfiguration& c = e.configuration;
        promotions += e.kind == Kind::kSaved && c.epoch > before.epoch && before.number > 0;
        admissions += c.follower && !before.follower && c.copy == before.copy;
        before = c;
      }
    }
    return result.violations;
  });
  // The seeds reach what the model is about.
  CHECK(saved > 0);
  CHECK(changes > 0);
  CHECK(reads > 0);
  CHECK(promotions > 0);
  CHECK(admissions > 0);
}

// A learner is placed, admitted and promoted; both primaries apply and read.
Trace Takeover() {
  const TraceConfiguration alone = {1, 1, 10, 0, false, 0};
  const TraceConfiguration learner = {1, 2, 10, 20, false, 2};
  const TraceConfiguration follower = {1, 3, 10, 20, true, 2};
  const TraceConfiguration promoted = {2, 4, 20, 0, false, 0};
  return {{Kind::kPlaced, alone, 1, 0, 0},   {Kind::kReads, {}, 0, 10, 1},
          {Kind::kSaved, learner, 1, 0, 0},  {Kind::kChange, {}, 0, 10, 1},
          {Kind::kSaved, follower, 2, 0, 0}, {Kind::kEnds, {}, 0, 10, 1},
          {Kind::kSaved, promoted, 2, 0, 0}, {Kind::kReads, {}, 0, 20, 2},
          {Kind::kChange, {}, 0, 20, 2}};
}

TEST_CASE("model: a path is one, also where a save makes several changes") {
  Trace trace = Takeover();
  CHECK(CheckTrace(trace) == "");
  trace.erase(trace.begin() + 2);
  CHECK(CheckTrace(trace) == "");
}

TEST_CASE("model: a trace that is no path is refused, with the event") {
  Trace trace = Takeover();
  SECTION("a learner is promoted") {
    trace[4].configuration = {2, 3, 20, 0, false, 0};
    trace.resize(5);
    CHECK(CheckTrace(trace).find("event 4 of 5: no steps lead from") == 0);
  }
  SECTION("a follower that was no learner") {
    trace[2].configuration.follower = true;
    CHECK(CheckTrace(trace).find("event 2") == 0);
  }
  SECTION("the epoch stays") {
    trace[6].configuration.epoch = 1;
    CHECK(CheckTrace(trace).find("event 6") == 0);
  }
  SECTION("a configuration counts twice") {
    trace[4].configuration.number = 2;
    CHECK(CheckTrace(trace).find("event 4") == 0);
  }
  SECTION("two servers read") {
    trace.erase(trace.begin() + 5);
    CHECK(CheckTrace(trace) == "event 6 of 8: server 20 may read while server 10 may");
  }
  SECTION("another server applies") {
    trace[3].server = 20;
    CHECK(CheckTrace(trace) == "event 3 of 9: server 20 answers in epoch 1, whose primary is 10");
  }
  SECTION("a former term saves") {
    trace[6].term = 1;
    CHECK(CheckTrace(trace) == "event 6 of 9: term 1 saves after term 2");
  }
}

}  // namespace
}  // namespace swarm_trace_test
}  // namespace verbena::test
