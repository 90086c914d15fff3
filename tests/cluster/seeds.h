// Which seeds a test of many runs, as its environment says.
#ifndef VERBENA_TESTS_CLUSTER_SEEDS_H_
#define VERBENA_TESTS_CLUSTER_SEEDS_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace verbena::test {

struct Seeds {
  uint64_t first, last;
  bool replay;  // of one
};

// VERBENA_SEED=S: that one. VERBENA_SEEDS=N: 1 to N. Otherwise 1 to `count`, or to
// VERBENA_SEEDS_AT_MOST when that is less.
inline Seeds SeedsToRun(uint64_t count) {
  const auto from_environment = [](const char* name, uint64_t otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
  };
  if (const uint64_t seed = from_environment("VERBENA_SEED", 0)) return {seed, seed, true};
  const uint64_t most = from_environment("VERBENA_SEEDS_AT_MOST", UINT64_MAX);
  return {1, from_environment("VERBENA_SEEDS", std::min(count, most)), false};
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SEEDS_H_
