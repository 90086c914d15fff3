// Time constants of the client, and its backoff between attempts.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_BACKOFF_H_
#define VERBENA_CLIENT_CORE_BACKOFF_H_

#include <cstdint>
#include <limits>

#include "rdma/base/backoff.h"

namespace verbena::client {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;
inline constexpr int64_t kFirstBackoff = Backoff::kFirstNanos;

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_BACKOFF_H_
