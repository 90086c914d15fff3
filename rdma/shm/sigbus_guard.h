// Survives faults in memory that another process owns: puts zero pages there and says so.
//
// Seals stop a peer from truncating a memfd, but not everything that makes an access fault (a huge
// page that cannot be had, a memory error: mmap(2), SIGBUS). A fault inside a registered range
// replaces the whole range by private zero pages and marks it poisoned; its owner looks at the
// mark after each use. Any other SIGBUS goes to the handler that was installed before.
//
// **Thread safety**: thread-safe. The handler itself takes no lock and calls only mmap.
//
// Invariants:
//  1. A range is registered exactly while it is mapped.
//  2. Table entries are never freed, so the handler may walk the table at any moment.
#ifndef VERBENA_RDMA_SHM_SIGBUS_GUARD_H_
#define VERBENA_RDMA_SHM_SIGBUS_GUARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace verbena::rdma {

class SigbusGuard {
 public:
  SigbusGuard() = default;
  // `begin` and `bytes` are page-aligned and mapped. Installs the handler the first time.
  SigbusGuard(void* begin, size_t bytes);
  ~SigbusGuard() { Release(); }
  SigbusGuard(SigbusGuard&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}
  SigbusGuard& operator=(SigbusGuard&& other) noexcept {
    if (this != &other) {
      Release();
      entry_ = std::exchange(other.entry_, nullptr);
    }
    return *this;
  }

  // An access has faulted: the range reads as zeros (where not written since) and is nobody's.
  bool poisoned() const {
    // Relaxed: set by a signal handler on the thread that made the access.
    return entry_ != nullptr && entry_->poisoned.load(std::memory_order_relaxed);
  }

  struct Entry {
    std::atomic<uint32_t> version{0};  // odd while it changes
    std::atomic<uintptr_t> begin{0};
    std::atomic<uintptr_t> end{0};  // 0: not in use
    std::atomic<bool> poisoned{false};
  };

 private:
  void Release();
  Entry* entry_ = nullptr;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SHM_SIGBUS_GUARD_H_
