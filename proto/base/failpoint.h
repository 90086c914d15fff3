// One deliberate fault, off unless a test switches it on, that knows whether the code has come to
// it. A condition has it last: then it is reached exactly where the fault would change something.
//
// **Thread safety**: written only where nothing runs that reads it; read by any thread.
#ifndef VERBENA_PROTO_BASE_FAILPOINT_H_
#define VERBENA_PROTO_BASE_FAILPOINT_H_

#include <atomic>

namespace verbena {

class Failpoint {
 public:
  Failpoint() = default;
  Failpoint(const Failpoint& other) : on_(other.on_) {}
  Failpoint& operator=(const Failpoint& other) { return *this = other.on_; }
  Failpoint& operator=(bool on) {
    on_ = on;
    return *this;
  }

  // Marks it as reached. It looks first: threads that only read share the cache line.
  operator bool() const {
    // Relaxed: a test reads the mark after the threads have ended.
    if (!reached_.load(std::memory_order_relaxed)) {
      reached_.store(true, std::memory_order_relaxed);
    }
    return on_;
  }

  // Since the last Forget().
  bool reached() const { return reached_.load(std::memory_order_relaxed); }
  void Forget() { reached_.store(false, std::memory_order_relaxed); }

 private:
  bool on_ = false;
  mutable std::atomic<bool> reached_ = false;
};

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_FAILPOINT_H_
