// Detects that fork() has copied an object into a child process.
//
// A child has its parent's memory but none of its threads. Locks may be held forever, and
// connections, rings and registrations still belong to the parent.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_PROTO_BASE_FORK_GUARD_H_
#define VERBENA_PROTO_BASE_FORK_GUARD_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"

namespace verbena {

class ForkGuard {
 public:
  // The guard belongs to the calling process.
  ForkGuard();

  // Whether this process is a fork of the process that made the guard. Costs one load.
  bool copied() const { return forks_ != Forks().load(std::memory_order_relaxed); }
  // FAILED_PRECONDITION in a child: "`object` belongs to process 123, of which this one is a fork".
  absl::Status Check(const char* object) const;

 private:
  // The number of forks between the first process and this one.
  static std::atomic<uint64_t>& Forks();

  uint64_t forks_;
  pid_t owner_;
};

// Keeps an object that a child process must not destroy reachable, for leak checkers.
void KeepInCopy(const void* object);

// Makes a shared object that a child process never destroys. A destructor there would join threads
// that do not exist in the child, or wait for their locks.
template <typename T, typename... Arguments>
std::shared_ptr<T> MakeSharedOfProcess(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                            [guard = ForkGuard()](T* object) {
                              if (guard.copied()) return KeepInCopy(object);
                              delete object;
                            });
}

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_FORK_GUARD_H_
