// Failpoints: deliberate faults in the code, by which tests show that their checks find them. Only
// programs of tests have them (verbena_with_failpoints(), cmake/VerbenaModules.cmake).
//
// A module lists its failpoints in its header failpoints.h, and one stands in a condition of a .cc:
//
//   if (sequence <= last && !VERBENA_FAILPOINT(shard, skip_dedupe)) return kDuplicate;
//
// It comes last in the condition: then it is reached exactly where the fault would change
// something.
//
// VERBENA_FAILPOINTS is 1 in code with failpoints, 0 in the same code without them, and undefined
// in code that is compiled once and therefore must not have any.
//
// **Thread safety**: written only where nothing runs that reads it; read by any thread.
#ifndef VERBENA_PROTO_BASE_FAILPOINT_H_
#define VERBENA_PROTO_BASE_FAILPOINT_H_

#if !defined(VERBENA_FAILPOINTS)

#define VERBENA_FAILPOINT(module, name)                                      \
  ([] {                                                                      \
    static_assert(false,                                                     \
                  "the first failpoint of a .cc: run cmake again; a header " \
                  "cannot have any: move the function to a .cc");            \
    return false;                                                            \
  }())

#elif !VERBENA_FAILPOINTS

#define VERBENA_FAILPOINT(module, name) false

#else

#include <atomic>

// Whether a test has switched on the failpoint of namespace verbena::module; marks it as reached.
#define VERBENA_FAILPOINT(module, name) bool(::verbena::module::failpoints().name)

namespace verbena {

// One of them, off unless a test switches it on, that knows whether the code has come to it.
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

#endif
#endif  // VERBENA_PROTO_BASE_FAILPOINT_H_
