#include "tests/faults/random_faults_ledger.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace verbena::test {
namespace {

// All counters are shared between processes, which only lock-free ones can be.
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

int64_t NowNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

LedgerMemory* Map(const std::string& path, int flags) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | flags, 0600);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, sizeof(LedgerMemory)) == 0) {
    memory = mmap(nullptr, sizeof(LedgerMemory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "random_faults ledger %s: cannot be mapped (%s)\n", path.c_str(),
                 std::strerror(errno));
    std::exit(2);
  }
  close(fd);
  return static_cast<LedgerMemory*>(memory);  // zeroed by the system, which is how it begins
}

}  // namespace

Ledger Ledger::Make(const std::string& path) { return Ledger(Map(path, O_CREAT | O_EXCL)); }
Ledger Ledger::Open(const std::string& path) { return Ledger(Map(path, 0)); }

Ledger::Ledger(Ledger&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}

Ledger::~Ledger() {
  if (memory_ != nullptr) munmap(memory_, sizeof(LedgerMemory));
}

void Ledger::Enter(Phase phase) {
  uint32_t now = memory_->phase.load();
  while (now != static_cast<uint32_t>(Phase::kAbort) &&
         !memory_->phase.compare_exchange_weak(now, static_cast<uint32_t>(phase))) {
  }
}

void Ledger::Fail(const std::string& text) {
  const uint32_t index = memory_->failures.fetch_add(1);
  if (index < LedgerMemory::kFailures) {
    LedgerMemory::Failure& failure = memory_->failure[index];
    const size_t size = std::min(text.size(), sizeof failure.text - 1);
    std::memcpy(failure.text, text.data(), size);
    failure.written.store(1);
  }
  memory_->phase.store(static_cast<uint32_t>(Phase::kAbort));
}

std::vector<std::string> Ledger::Failures() const {
  std::vector<std::string> failures;
  for (const LedgerMemory::Failure& failure : memory_->failure) {
    if (failure.written.load() != 0) failures.emplace_back(failure.text);
  }
  return failures;
}

int Ledger::BeginCall(const std::string& text) {
  // Each thread looks from the place it had last, which is free.
  thread_local int next = static_cast<int>(gettid() % LedgerMemory::kPending);
  for (int i = 0; i < LedgerMemory::kPending; ++i) {
    PendingLedger& pending = memory_->pending[next];
    const int place = next;
    if (pending.taken.exchange(1) == 0) {
      const size_t size = std::min(text.size(), sizeof pending.text - 1);
      std::memcpy(pending.text, text.data(), size);
      pending.text[size] = 0;
      pending.since_ns.store(NowNanos());
      return place;
    }
    next = (next + 1) % LedgerMemory::kPending;
  }
  return -1;
}

void Ledger::EndCall(int place) {
  if (place < 0) return;
  memory_->pending[place].since_ns.store(0);
  memory_->pending[place].taken.store(0);
}

std::string Ledger::LongestPending(int most) const {
  std::vector<std::pair<int64_t, std::string>> calls;
  const int64_t now = NowNanos();
  for (const PendingLedger& pending : memory_->pending) {
    const int64_t since = pending.since_ns.load();
    if (since == 0 || now - since < 5'000'000'000) continue;
    calls.emplace_back(since, pending.text);
  }
  std::sort(calls.begin(), calls.end());
  if (static_cast<int>(calls.size()) > most) calls.resize(static_cast<size_t>(most));
  std::string text;
  for (const auto& [since, call] : calls) {
    text += "; " + call + " waits for " + std::to_string((now - since) / 1'000'000'000) + " s";
  }
  return text;
}

uint64_t Ledger::Calls() const {
  uint64_t calls = 0;
  for (const ClientLedger& client : memory_->clients) calls += client.calls.load();
  return calls;
}

}  // namespace verbena::test
