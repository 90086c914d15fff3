#include "rdma/shm/sigbus_guard.h"

#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <mutex>

namespace verbena::rdma {
namespace {

using Entry = SigbusGuard::Entry;

struct Chunk {
  std::array<Entry, 256> entries;
  std::atomic<Chunk*> next{nullptr};
};

// Constant-initialized and never destroyed: the handler may run before main() and during exit.
constinit Chunk first_chunk;
constinit std::mutex table_mutex;  // guards registration; the handler does not take it
struct sigaction previous_action;  // written once, before the handler can run

// Reads an entry unless it changes meanwhile. A changing entry is not the faulting one: the
// faulting thread is in an access, not in a registration.
bool Contains(const Entry& entry, uintptr_t address, uintptr_t* begin, uintptr_t* end) {
  const uint32_t before = entry.version.load(std::memory_order_seq_cst);
  *begin = entry.begin.load(std::memory_order_seq_cst);
  *end = entry.end.load(std::memory_order_seq_cst);
  const uint32_t after = entry.version.load(std::memory_order_seq_cst);
  return before == after && before % 2 == 0 && *begin <= address && address < *end;
}

bool Absorb(uintptr_t address) {
  for (Chunk* chunk = &first_chunk; chunk != nullptr;
       chunk = chunk->next.load(std::memory_order_acquire)) {  // sees the chunk initialized
    for (Entry& entry : chunk->entries) {
      uintptr_t begin = 0;
      uintptr_t end = 0;
      if (!Contains(entry, address, &begin, &end)) continue;
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address is all a table of ranges has
      void* mapped = mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE,
                          MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (mapped == MAP_FAILED) return false;
      entry.poisoned.store(true, std::memory_order_relaxed);  // read by this same thread
      return true;
    }
  }
  return false;
}

void Chain(int signal_number, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal_number, info, context);
    return;
  }
  const bool fault = info->si_code > 0;
  if (previous_action.sa_handler == SIG_IGN && !fault) return;
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal_number);
    return;
  }
  // Default action: on return the access faults again (or the raised signal is delivered), and the
  // process ends as it would without the guard.
  signal(signal_number, SIG_DFL);
  if (!fault) raise(signal_number);
}

void OnSigbus(int signal_number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const bool absorbed = info->si_code > 0 && Absorb(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = saved_errno;
  if (!absorbed) Chain(signal_number, info, context);
}

void InstallOnce() {
  static const bool installed = [] {
    sigaction(SIGBUS, nullptr, &previous_action);
    struct sigaction action = {};
    action.sa_sigaction = &OnSigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  (void)installed;
}

Entry* FindFree() {
  Chunk* chunk = &first_chunk;
  for (;;) {
    for (Entry& entry : chunk->entries) {
      if (entry.end.load(std::memory_order_relaxed) == 0) return &entry;  // under the mutex
    }
    Chunk* next = chunk->next.load(std::memory_order_relaxed);  // under the mutex
    if (next == nullptr) {
      next = new Chunk;
      chunk->next.store(next, std::memory_order_release);  // publishes its initial state
    }
    chunk = next;
  }
}

// seq_cst throughout: this is a seqlock whose fields a handler on another thread may read.
void Set(Entry* entry, uintptr_t begin, uintptr_t end) {
  entry->version.fetch_add(1, std::memory_order_seq_cst);
  entry->begin.store(begin, std::memory_order_seq_cst);
  entry->end.store(end, std::memory_order_seq_cst);
  entry->version.fetch_add(1, std::memory_order_seq_cst);
}

}  // namespace

SigbusGuard::SigbusGuard(void* begin, size_t bytes) {
  const std::lock_guard<std::mutex> lock(table_mutex);
  InstallOnce();
  entry_ = FindFree();
  entry_->poisoned.store(false, std::memory_order_relaxed);  // no thread can fault in it yet
  const auto address = reinterpret_cast<uintptr_t>(begin);
  Set(entry_, address, address + bytes);
}

void SigbusGuard::Release() {
  if (entry_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(table_mutex);
  Set(entry_, 0, 0);
  entry_ = nullptr;
}

}  // namespace verbena::rdma
