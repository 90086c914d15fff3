// Durations in nanoseconds, the unit of all clocks here.
//
// **Thread safety**: constants.
#ifndef VERBENA_SERVER_NANOSECONDS_H_
#define VERBENA_SERVER_NANOSECONDS_H_

#include <cstdint>
#include <limits>

namespace verbena::server {

inline constexpr int64_t kNanosPerMilli = 1'000'000;
// A moment that never comes.
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace verbena::server

#endif  // VERBENA_SERVER_NANOSECONDS_H_
