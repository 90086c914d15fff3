// Gives memory that was freed back to the system after a burst.
//
// glibc keeps it: after a flood of calls a process would stay at its largest size.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_FREE_HEAP_H_
#define VERBENA_SERVER_FREE_HEAP_H_

#include <cstddef>

namespace verbena::server {

class FreeHeap {
 public:
  // Now and then. Gives back once there are kTrimBytes more of it than the last time: each time
  // other threads may wait some milliseconds in malloc().
  void Return();

  static constexpr size_t kTrimBytes = size_t{16} << 20;

 private:
  size_t returned_ = 0;  // free bytes that were given back, as far as they are free still
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_FREE_HEAP_H_
