// Shared by the engine's random tests: a cluster made from a seed and the gradients pushed to it.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_TESTS_SHARD_MODEL_PLAN_H_
#define VERBENA_TESTS_SHARD_MODEL_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {

struct Plan {
  uint32_t seed;
  FixtureOptions options;
  bool departures;
};

inline Plan MakePlan(uint32_t seed, v1::Consistency consistency) {
  std::mt19937 random(seed);
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  Plan plan;
  plan.seed = seed;
  plan.departures = pick(2) == 0;
  FixtureOptions& o = plan.options;
  o.consistency = consistency;
  o.workers = 1 + pick(4);
  o.partitions = 1 + pick(3);
  o.chunks = 1 + pick(5);
  o.chunk_elements = 16;
  o.last_elements = 1 + pick(16);
  o.reduction = pick(2) == 0 ? v1::REDUCTION_MEAN : v1::REDUCTION_SUM;
  o.optimizer = consistency == v1::CONSISTENCY_SYNC && pick(2) == 0 ? "momentum" : "sgd";
  o.rate = 0.5;
  o.initial = 3;
  // Departures reach into a step that waits for a buffer, which the model does not know about.
  o.spares = plan.departures ? 64 : pick(3);
  return plan;
}

// A worker's gradient: a function of rank, table and step. Integers add without rounding in any
// order, so async has one right answer too; sync gets fractions, where the order shows.
inline std::vector<float> Gradient(const Plan& plan, uint32_t rank, uint32_t chunk,
                                   uint64_t sequence, uint32_t n) {
  std::mt19937 random(plan.seed * 7919 + rank * 131 + chunk * 17 + static_cast<uint32_t>(sequence));
  std::vector<float> g(n);
  for (float& x : g) {
    x = static_cast<float>(static_cast<int>(random() % 201) - 100);
    if (plan.options.consistency == v1::CONSISTENCY_SYNC) x /= 7;
  }
  if (random() % 16 == 0) g[random() % n] = kNan;
  return g;
}

inline bool IsBad(const std::vector<float>& g) {
  return std::any_of(g.begin(), g.end(), [](float x) { return !(x == x); });
}

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_MODEL_PLAN_H_
