#include "proto/base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace verbena {

std::atomic<uint64_t>& ForkGuard::Forks() {
  static std::atomic<uint64_t> forks{0};
  return forks;
}

void KeepInCopy(const void* object) {
  struct Kept {
    const void* object;
    Kept* next;
  };
  static std::atomic<Kept*> all{nullptr};
  Kept* kept = new Kept{object, all.load(std::memory_order_relaxed)};
  while (!all.compare_exchange_weak(kept->next, kept, std::memory_order_acq_rel)) {
  }
}

ForkGuard::ForkGuard() {
  [[maybe_unused]] static const int installed =
      pthread_atfork(nullptr, nullptr, [] { Forks().fetch_add(1, std::memory_order_relaxed); });
  forks_ = Forks().load(std::memory_order_relaxed);
  owner_ = getpid();
}

absl::Status ForkGuard::Check(const char* object) const {
  if (!copied()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      object, " belongs to process ", owner_, ", of which this process (", getpid(),
      ") is a fork; use it there only. A process that needs a client of its own is forked before "
      "the first Connect(), or started with exec (Python: multiprocessing with 'spawn' or "
      "'forkserver')"));
}

}  // namespace verbena
