// A test of many seeds: its seeds, from the environment, and the command that replays a failing
// one.
#ifndef VERBENA_TESTS_CLUSTER_SEEDS_H_
#define VERBENA_TESTS_CLUSTER_SEEDS_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace verbena::test {

struct Seeds {
  uint64_t first, last;
  bool replay;  // of some that are named: faults that all should see, they need not
};

// VERBENA_SEED=S: that one. VERBENA_SEEDS=N: 1 to N; with VERBENA_FIRST_SEED=F: F to N. Otherwise 1
// to `count`, or to VERBENA_SEEDS_AT_MOST when that is less.
inline uint64_t SeedsFromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

inline Seeds SeedsToRun(uint64_t count) {
  const uint64_t seed = SeedsFromEnvironment("VERBENA_SEED", 0);
  if (seed != 0) return {seed, seed, true};
  const uint64_t most = SeedsFromEnvironment("VERBENA_SEEDS_AT_MOST", UINT64_MAX);
  const uint64_t first = SeedsFromEnvironment("VERBENA_FIRST_SEED", 1);
  return {first, SeedsFromEnvironment("VERBENA_SEEDS", std::min(count, most)), first > 1};
}

// Seconds of processor time of this process.
inline double ProcessorSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Runs seeds until one shows a violation: `run` (uint64_t seed -> std::vector<std::string>) returns
// them. `replay`: the program and its test. With VERBENA_SEEDS_CPU_S=T it ends after T seconds of
// processor time, but not before seed VERBENA_SEEDS_AT_LEAST.
template <typename Run>
void ForEachSeed(const std::string& replay, uint64_t count, Run run) {
  const Seeds seeds = SeedsToRun(count);
  const uint64_t least = SeedsFromEnvironment("VERBENA_SEEDS_AT_LEAST", UINT64_MAX);
  const auto budget = static_cast<double>(SeedsFromEnvironment("VERBENA_SEEDS_CPU_S", UINT64_MAX));
  const double end = ProcessorSeconds() + budget;
  for (uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    if (seed > least && ProcessorSeconds() > end) break;
    const std::vector<std::string> violations = run(seed);
    for (const std::string& violation : violations) {
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed),
                   violation.c_str());
    }
    if (!violations.empty()) FAIL("replay: VERBENA_SEED=" << seed << " ./" << replay);
  }
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SEEDS_H_
