// How many seeds a test of a random model has.
//
// **Thread safety**: any thread.
#ifndef VERBENA_TESTS_SUPPORT_SEED_COUNT_H_
#define VERBENA_TESTS_SUPPORT_SEED_COUNT_H_

#include <cstdint>

namespace verbena::test {

// `all` in a release build. A sanitizer is ten times slower, and what it finds is in many seeds: a
// fifth of them.
inline uint32_t SeedCount(uint32_t all) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return (all + 4) / 5;
#else
  return all;
#endif
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SUPPORT_SEED_COUNT_H_
