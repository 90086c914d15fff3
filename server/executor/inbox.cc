#include "server/executor/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace verbena::server {

Inbox::Inbox() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Inbox::~Inbox() {
  if (fd_ >= 0) close(fd_);
}

void Inbox::Post(Closure closure) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(closure));
    // Sequentially consistent, as is the load below: with Arm()'s store and load this is the
    // store-buffering pattern, where anything weaker lets both sides miss each other.
    pending_.store(true, std::memory_order_seq_cst);
  }
  if (sleeping_.load(std::memory_order_seq_cst) && fd_ >= 0) {
    const uint64_t one = 1;
    // EAGAIN means that the counter is at its maximum, so the owner is being woken anyway.
    [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));
  }
}

bool Inbox::RunOnce() {
  if (!pending_.load(std::memory_order_acquire)) return false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    running_.swap(queue_);
    pending_.store(false, std::memory_order_relaxed);
  }
  for (Closure& closure : running_) closure();
  running_.clear();
  return true;
}

bool Inbox::Arm() {
  sleeping_.store(true, std::memory_order_seq_cst);
  if (pending_.load(std::memory_order_seq_cst)) {
    sleeping_.store(false, std::memory_order_relaxed);
    return false;
  }
  return true;
}

void Inbox::Disarm() {
  sleeping_.store(false, std::memory_order_relaxed);
  if (fd_ < 0) return;
  // Always, also when nothing seems posted: a producer that saw the owner sleeping may write late,
  // and a counter left over from then would end every later sleep at once.
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof(count));
}

}  // namespace verbena::server
