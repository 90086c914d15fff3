// Returns memory that was freed to the system.
//
// glibc keeps freed blocks in its heaps: after a burst of calls a process would stay at its largest
// size.
//
// **Thread safety**: one owner thread.
//
// **Invariants**
// 1. A look that finds kTrimBytes or more of free blocks returns all whole pages of them. It makes
//    no use of earlier looks: malloc() does not count which free pages are in memory, and between
//    two looks a burst may take pages that were returned, and free them.
// 2. Looks are kPeriod apart, and take at most one hundredth of the time.
#ifndef VERBENA_SERVER_FREE_HEAP_H_
#define VERBENA_SERVER_FREE_HEAP_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "rdma/base/clock.h"

namespace verbena::server {

class FreeHeap {
 public:
  static constexpr size_t kTrimBytes = size_t{16} << 20;
  static constexpr absl::Duration kPeriod = absl::Seconds(5);

  // `clock` outlives this object.
  explicit FreeHeap(const Clock* clock) : clock_(*clock) {}

  // Looks if that is due. Other threads may wait in malloc() meanwhile: 5 ms for 50 MiB.
  void Return();

 private:
  const Clock& clock_;
  int64_t next_nanos_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_FREE_HEAP_H_
