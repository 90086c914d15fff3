#include "server/executor/starved_tables.h"

#include <algorithm>

#include "server/executor/shard_core.h"

namespace verbena::server {
namespace {

constexpr int64_t kLongestCheckNanos = 10'000'000'000;

}  // namespace

void StarvedTables::Await(int64_t check_after_ns) {
  after_ns_ = std::min(check_after_ns, kLongestCheckNanos);
  next_ns_ = core_.engine->HasStarved() ? core_.now_ns + after_ns_ : kNever;
}

bool StarvedTables::Retry(int64_t now) {
  if (now < next_ns_) return false;
  const bool tried = core_.engine->RetryStarved(*core_.view, &core_.view_status);
  // One that failed has cost something, although there seemed to be enough.
  Await(tried ? 2 * after_ns_ : after_ns_);
  if (tried) core_.requests.DrainEngine();
  return tried;
}

}  // namespace verbena::server
