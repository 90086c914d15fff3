// Handles faults in memory owned by another process: replaces the memory by zero pages and records
// that.
//
// Seals prevent a peer from truncating a memfd. They do not prevent every cause of a fault (an
// unavailable huge page, a memory error: mmap(2), SIGBUS). A fault inside a registered range
// replaces the whole range by private zero pages and marks it as poisoned; its owner checks the
// mark after each use. Any other SIGBUS goes to the previously installed handler.
//
// **Thread safety**: thread-safe. The handler takes no lock and calls only mmap.
//
// Invariants:
//  1. A range is registered exactly while it is mapped.
//  2. Table entries are never freed, so the handler may scan the table at any time.
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
  // `begin` and `bytes` are page-aligned and mapped. The first call installs the handler.
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

  // An access has faulted: the range reads as zeros (where not written since) and is not shared any
  // more.
  bool poisoned() const {
    // Relaxed: set by a signal handler on the thread that made the access.
    return entry_ != nullptr && entry_->poisoned.load(std::memory_order_relaxed);
  }

  struct Entry {
    std::atomic<uint32_t> version{0};  // odd while the entry changes
    std::atomic<uintptr_t> begin{0};
    std::atomic<uintptr_t> end{0};  // 0: unused
    std::atomic<bool> poisoned{false};
  };

 private:
  void Release();
  Entry* entry_ = nullptr;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SHM_SIGBUS_GUARD_H_
