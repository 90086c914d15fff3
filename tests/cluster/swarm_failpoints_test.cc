// Failpoints that the swarm finds: its random plans reach them, and its invariants show them.
//
// By hand, in seeds VERBENA_FAILPOINTS_FROM (1) to VERBENA_FAILPOINTS_SEEDS (3000), of those that
// have the features VERBENA_FAILPOINTS_WITH (comma-separated):
//  - VERBENA_FAILPOINTS=NAME,NAME or `all` searches these failpoints, those without a known seed
//    included, and prints the seeds that reach one and do not show it. A seed that reaches none of
//    several is run once for all of them. VERBENA_FAILPOINTS_TRIES (100): seeds that are tried with
//    a failpoint of several.
//  - VERBENA_FAILPOINTS_REACH=1 plants nothing. For each failpoint it prints the number of seeds
//    that reach it, the first ones, and the features that all of them have.
#include "tests/cluster/swarm_failpoints.h"

#include <algorithm>
#include <bitset>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/cluster/swarm.h"
#include "tests/cluster/swarm_plan.h"

namespace verbena::test {
namespace {

// Limit for the run that tests a change. If the change moves seeds, so many runs look for other
// seeds for the failpoints that found_by does not find any more.
constexpr uint64_t kRunsAtMost = 300;
constexpr uint64_t kRunsOfOne = 40;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// A fault, and the results of its seeds.
struct Search {
  PlantedFault fault;
  bool found = false;
  uint64_t tries = 0, reaching = 0;
  std::vector<uint64_t> first_reaching = {};
  std::bitset<static_cast<size_t>(SwarmFeature::kCount)> in_common = {};

  void Reached(const SwarmPlan& plan) {
    constexpr size_t kNamed = 12;
    in_common = reaching == 0 ? plan.features : in_common & plan.features;
    ++reaching;
    if (first_reaching.size() < kNamed) first_reaching.push_back(plan.seed);
  }

  void Print() const {
    std::string text = absl::StrCat(fault.name, ": reached by ", reaching, " seeds:");
    for (const uint64_t seed : first_reaching) absl::StrAppend(&text, " ", seed);
    absl::StrAppend(&text, reaching > first_reaching.size() ? " ...; all have:" : "; all have:");
    for (size_t f = 0; f < in_common.size(); ++f) {
      if (in_common[f]) absl::StrAppend(&text, " ", SwarmFeatureName(static_cast<SwarmFeature>(f)));
    }
    std::fprintf(stderr, "%s\n", text.c_str());
  }
};

bool Shows(const PlantedFault& fault, const std::string& violation) {
  return fault.shows.empty() ||
         std::any_of(fault.shows.begin(), fault.shows.end(), [&](const std::string& text) {
           return violation.find(text) != std::string::npos;
         });
}

void Try(Search* search, uint64_t seed) {
  const PlantedFault& fault = search->fault;
  const auto number = static_cast<unsigned long long>(seed);
  for (Failpoint* bug : fault.bugs) bug->Forget();
  ++search->tries;
  const PlantedTogether planted(fault);
  for (const std::string& violation : RunSwarm(seed).violations) {
    search->found |= Shows(fault, violation);
    std::fprintf(stderr, search->found ? "%s is found by seed %llu: %s\n" : "%s, seed %llu: %s\n",
                 fault.name.c_str(), number, violation.c_str());
    if (search->found) return;
  }
  if (fault.reached()) {
    std::fprintf(stderr, "%s: reached in seed %llu, not shown\n", fault.name.c_str(), number);
  }
}

// Without any of them planted.
void Reach(std::vector<Search>* searches, uint64_t seed) {
  for (const Search& search : *searches) {
    for (Failpoint* bug : search.fault.bugs) bug->Forget();
  }
  for (const std::string& violation : RunSwarm(seed).violations) {
    std::fprintf(stderr, "nothing planted, seed %llu: %s\n", static_cast<unsigned long long>(seed),
                 violation.c_str());
  }
}

// Whether the seed's description has all that VERBENA_FAILPOINTS_WITH lists.
bool Wanted(const SwarmPlan& plan) {
  const char* with = std::getenv("VERBENA_FAILPOINTS_WITH");
  if (with == nullptr) return true;
  const std::string text = plan.Describe();
  const std::vector<std::string> names = absl::StrSplit(with, ',');
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return text.find(absl::StrCat(" ", name)) != std::string::npos;
  });
}

// The faults of VERBENA_FAILPOINTS; all with VERBENA_FAILPOINTS_REACH alone.
std::vector<Search> Named() {
  const char* named = std::getenv("VERBENA_FAILPOINTS");
  const std::vector<std::string> names = absl::StrSplit(named == nullptr ? "all" : named, ',');
  std::vector<Search> searches;
  for (const PlantedFault& fault : PlantedFaults()) {
    const bool one = std::find(names.begin(), names.end(), fault.name) != names.end();
    if (one || names.front() == "all") searches.push_back({fault});
  }
  return searches;
}

void SearchByHand() {
  const bool reach_alone = std::getenv("VERBENA_FAILPOINTS_REACH") != nullptr;
  std::vector<Search> searches = Named();
  REQUIRE_FALSE(searches.empty());
  const uint64_t last = FromEnvironment("VERBENA_FAILPOINTS_SEEDS", kFailpointSeeds);
  const bool together = searches.size() > 1 || reach_alone;
  const uint64_t tries = FromEnvironment("VERBENA_FAILPOINTS_TRIES", together ? 100 : UINT64_MAX);
  const auto open = [&](const Search& s) { return !s.found && s.tries < tries; };
  for (uint64_t seed = FromEnvironment("VERBENA_FAILPOINTS_FROM", 1); seed <= last; ++seed) {
    const SwarmPlan plan = DrawPlan(seed);
    if (!Wanted(plan) || std::none_of(searches.begin(), searches.end(), open)) continue;
    if (together) Reach(&searches, seed);
    std::vector<Search*> reached;
    std::string names;
    for (Search& search : searches) {
      if (together && !search.fault.reached()) continue;
      reached.push_back(&search);
      absl::StrAppend(&names, " ", search.fault.name, ";");
    }
    if (together)
      std::fprintf(stderr, "seed %llu reaches%s\n", static_cast<unsigned long long>(seed),
                   names.c_str());
    for (Search* search : reached) {
      if (!reach_alone && open(*search)) Try(search, seed);
      if (together || search->fault.reached()) search->Reached(plan);
    }
  }
  for (const Search& search : searches) search.Print();
  if (reach_alone) return;
  for (const Search& search : searches) {
    CAPTURE(search.fault.name);
    CHECK(search.found);
  }
}

TEST_CASE("failpoints: the swarm finds each") {
  if (std::getenv("VERBENA_FAILPOINTS") != nullptr ||
      std::getenv("VERBENA_FAILPOINTS_REACH") != nullptr)
    return SearchByHand();
  uint64_t runs = 0;
  for (const PlantedFault& fault : PlantedFaults()) {
    if (fault.found_by == 0) continue;
    Search search{fault};
    CAPTURE(fault.name);
    CHECK(fault.MayShow(DrawPlan(fault.found_by)));
    Try(&search, fault.found_by);
    for (uint64_t seed = 1; seed <= kFailpointSeeds && !search.found && runs < kRunsAtMost;
         ++seed) {
      if (!fault.MayShow(DrawPlan(seed)) || search.tries > kRunsOfOne) continue;
      ++runs;
      Try(&search, seed);
    }
    INFO("search by hand: VERBENA_FAILPOINTS");
    CHECK(search.found);
  }
}

}  // namespace
}  // namespace verbena::test
