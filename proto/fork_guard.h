// Detects that fork() has copied an object into another process.
//
// A copy has the memory of its parent and none of its threads. Locks may be held for ever, and
// connections, rings and registrations are still the parent's.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_PROTO_FORK_GUARD_H_
#define VERBENA_PROTO_FORK_GUARD_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"

namespace verbena {

class ForkGuard {
 public:
  // Belongs to the calling process.
  ForkGuard();

  // Whether this is a process that was forked from the one that made the guard. Costs one load.
  bool copied() const { return forks_ != Forks().load(std::memory_order_relaxed); }
  // FAILED_PRECONDITION in a copy: "`object` belongs to process 123, of which this one is a fork".
  absl::Status Check(const char* object) const;

 private:
  // How many forks lie between the first process and this one.
  static std::atomic<uint64_t>& Forks();

  uint64_t forks_;
  pid_t owner_;
};

// Keeps an object that a copy must not destroy until its process ends, in reach of leak checkers.
void KeepInCopy(const void* object);

// A shared object of the process that makes it: a copy of that process never destroys it. A
// destructor there would join threads that it does not have, or wait for their locks.
template <typename T, typename... Arguments>
std::shared_ptr<T> MakeSharedOfProcess(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                            [guard = ForkGuard()](T* object) {
                              if (guard.copied()) return KeepInCopy(object);
                              delete object;
                            });
}

}  // namespace verbena

#endif  // VERBENA_PROTO_FORK_GUARD_H_
