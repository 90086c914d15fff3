// Tables that lack memory are tried again from time to time.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_STARVED_TABLES_H_
#define VERBENA_SERVER_EXECUTOR_STARVED_TABLES_H_

#include <cstdint>

#include "server/nanoseconds.h"

namespace verbena::server {

struct ShardCore;

class StarvedTables {
 public:
  static constexpr int64_t kCheckNanos = 100'000'000;

  explicit StarvedTables(ShardCore* core) : core_(*core) {}

  // They are tried after that time at the earliest.
  void Await(int64_t check_after_ns = kCheckNanos);
  bool Retry(int64_t now);
  int64_t next_ns() const { return next_ns_; }

 private:
  ShardCore& core_;
  int64_t next_ns_ = kNever;
  int64_t after_ns_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_STARVED_TABLES_H_
