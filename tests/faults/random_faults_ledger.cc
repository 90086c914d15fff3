#include "tests/faults/random_faults_ledger.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace verbena::test {
namespace {

// All counters are shared between processes, which only lock-free ones can be.
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

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

uint64_t Ledger::Calls() const {
  uint64_t calls = 0;
  for (const ClientLedger& client : memory_->clients) calls += client.calls.load();
  return calls;
}

}  // namespace verbena::test
