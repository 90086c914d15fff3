// The limit of the bytes per second that a shard sends to learners of planned moves: a token
// bucket.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_REPLICATION_MOVE_PACE_H_
#define VERBENA_SERVER_REPLICATION_MOVE_PACE_H_

#include <algorithm>
#include <cstdint>

#include "server/nanoseconds.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// The part of ClusterView::move_rate that each shard of the server has; 0: no limit.
inline uint64_t MoveRateOf(const v1::ClusterView& view, uint64_t server) {
  if (view.move_rate() == 0) return 0;
  uint64_t shards = 1;
  for (const v1::Server& s : view.servers()) {
    if (s.incarnation() == server) shards = std::max<uint64_t>(s.shards(), 1);
  }
  return std::max<uint64_t>(view.move_rate() / shards, 1);
}

class MovePace {
 public:
  static constexpr int64_t kNoLimit = INT64_MAX;

  // Bytes per second; 0: no limit.
  void SetRate(uint64_t rate, int64_t now) {
    if (rate == rate_) return;
    rate_ = rate;
    left_ = 0;
    at_ns_ = now;
  }
  // Bytes that may be sent now, of at most a burst.
  int64_t Refill(int64_t now) {
    if (rate_ == 0) return kNoLimit;
    // The rest that is less than a byte stays for the next time.
    const double bytes = Rate() * static_cast<double>(now - at_ns_) / kNanosPerSecond;
    const double most = std::max(1.0, Rate() * kBurstSeconds);
    left_ = std::min(most, left_ + bytes);
    at_ns_ = now;
    return static_cast<int64_t>(left_);
  }
  // So many of Refill() are left, or less than 0 after a larger record.
  void Left(int64_t allowed, int64_t left) {
    if (rate_ != 0) left_ -= static_cast<double>(allowed - left);
  }
  // When some may be sent again: not for each byte, which would wake the shard all the time.
  int64_t NextNanos() const {
    if (rate_ == 0) return kNever;
    const double wanted = std::max(1.0, Rate() * kBurstSeconds / 8) - left_;
    return at_ns_ + std::max<int64_t>(1, static_cast<int64_t>(wanted / Rate() * kNanosPerSecond));
  }

 private:
  static constexpr double kNanosPerSecond = 1e9;
  // A longer burst would be felt by the workers; a shorter one would be more wake-ups than useful.
  static constexpr double kBurstSeconds = 0.1;

  double Rate() const { return static_cast<double>(rate_); }

  uint64_t rate_ = 0;
  double left_ = 0;
  int64_t at_ns_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_REPLICATION_MOVE_PACE_H_
