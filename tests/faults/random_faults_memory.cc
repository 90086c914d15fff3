#include "tests/faults/random_faults_memory.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/process.h"

namespace verbena::test {
namespace {

constexpr double kFactor = 1.5;

// proc(5); 0 of one that has ended.
uint64_t ResidentBytes(pid_t pid) {
  const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
  const size_t at = status.find("VmRSS:");
  return at == std::string::npos ? 0 : std::strtoull(status.c_str() + at + 6, nullptr, 10) * 1024;
}

std::string ClassOf(const std::string& name) { return name.substr(0, name.find('-')); }

uint64_t Mib(uint64_t bytes) { return bytes >> 20; }

}  // namespace

MemoryWatch::MemoryWatch(Ledger* ledger, uint64_t slack_bytes)
    : ledger_(ledger), slack_(slack_bytes) {
  thread_ = std::thread([this] {
    while (!over_.load()) {
      Sample();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // between samples
    }
  });
}

MemoryWatch::~MemoryWatch() {
  over_.store(true);
  thread_.join();
}

void MemoryWatch::Watch(const std::string& name, pid_t pid) {
  const std::lock_guard<std::mutex> lock(mutex_);
  states_[name].pid = pid;
}

void MemoryWatch::Forget(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  states_[name].pid = 0;
}

void MemoryWatch::EndQuiet() {
  const std::lock_guard<std::mutex> lock(mutex_);
  quiet_ = false;
}

uint64_t MemoryWatch::QuietOf(const std::string& name) const {
  uint64_t quiet = 0;
  for (const auto& [other, state] : states_) {
    if (ClassOf(other) == ClassOf(name)) quiet = std::max(quiet, state.quiet);
  }
  return quiet;
}

void MemoryWatch::Sample() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [name, state] : states_) {
    if (state.pid == 0) continue;
    state.now = ResidentBytes(state.pid);
    state.largest = std::max(state.largest, state.now);
    if (quiet_) state.quiet = std::max(state.quiet, state.now);
  }
  if (quiet_) return;
  for (const auto& [name, state] : states_) {
    const uint64_t quiet = QuietOf(name);
    const auto limit = static_cast<uint64_t>(kFactor * static_cast<double>(quiet)) + slack_;
    if (state.pid == 0 || state.now <= limit || ledger_->aborted()) continue;
    ledger_->Fail(
        absl::StrFormat("%s has %d MiB resident: %d MiB when all was quiet, so at most "
                        "%d MiB (1.5 times that and %d MiB)",
                        name, Mib(state.now), Mib(quiet), Mib(limit), Mib(slack_)));
  }
}

std::string MemoryWatch::Report() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string text;
  for (const auto& [name, state] : states_) {
    absl::StrAppendFormat(&text, "  %-14s %5d MiB quiet, %5d MiB at most, %5d MiB at last\n", name,
                          Mib(QuietOf(name)), Mib(state.largest), Mib(state.now));
  }
  return text;
}

}  // namespace verbena::test
