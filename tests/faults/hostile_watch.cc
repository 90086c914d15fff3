#include "tests/faults/hostile_watch.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/process.h"

namespace verbena::test {
namespace {

constexpr const char* kNames[] = {"memory (bytes)", "descriptors", "threads", "log (bytes)",
                                  "audit log (bytes)"};

uint64_t Field(const std::string& status, const std::string& name) {
  const size_t at = status.find(name);
  return at == std::string::npos ? 0
                                 : std::strtoull(status.c_str() + at + name.size(), nullptr, 10);
}

uint64_t SizeOf(const std::string& path) {
  struct stat found = {};
  return stat(path.c_str(), &found) == 0 ? static_cast<uint64_t>(found.st_size) : 0;
}

}  // namespace

HostileWatch::HostileWatch(Fail fail) : fail_(std::move(fail)), begin_(absl::Now()) {
  thread_ = std::thread([this] {
    while (!over_) {
      Sample();
      absl::SleepFor(absl::Milliseconds(200));
    }
  });
}

HostileWatch::~HostileWatch() {
  over_ = true;
  thread_.join();
}

void HostileWatch::Add(const std::string& name, pid_t pid, const std::string& audit) {
  const std::lock_guard<std::mutex> lock(mutex_);
  daemons_.push_back({.name = name, .pid = pid, .audit = audit});
}

void HostileWatch::Begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  hostile_ = true;
  begin_ = absl::Now();
  for (Daemon& daemon : daemons_) daemon.quiet = daemon.now;
}

uint64_t HostileWatch::Measure(const Daemon& daemon, Resource resource) {
  const std::string process = absl::StrCat("/proc/", daemon.pid);
  switch (resource) {
    case kMemory:
      return Field(ReadFile(process + "/status"), "VmRSS:") * 1024;
    case kDescriptors: {
      std::error_code gone;
      uint64_t count = 0;
      for (auto it = std::filesystem::directory_iterator(process + "/fd", gone);
           !gone && it != std::filesystem::directory_iterator(); it.increment(gone)) {
        ++count;
      }
      return count;
    }
    case kThreads:
      return Field(ReadFile(process + "/status"), "Threads:");
    case kLog:
      return SizeOf(process + "/fd/2");
    case kAudit:
      return SizeOf(daemon.audit);
    case kResources:
      break;
  }
  return 0;
}

// docs/security.md, "Budgets of peers"; of a daemon with the limits that hostile.cc gives.
uint64_t HostileWatch::BoundOf(const Daemon& daemon, Resource resource, double seconds) const {
  switch (resource) {
    case kMemory:
      // The control plane's 32 MiB, the hostile job's tables and lanes, calls in queues, views.
      return daemon.quiet[kMemory] + (uint64_t{160} << 20);
    case kDescriptors:
      return daemon.quiet[kDescriptors] + 8192;
    case kThreads:
      return daemon.quiet[kThreads] + 64;
    case kLog:
      // Six kinds of lines: 200 at once and 5 a second of each kind and shard, 1,200 bytes each.
      return daemon.quiet[kLog] + static_cast<uint64_t>(6 * (200 + 5 * seconds) * 1200);
    case kAudit:
      // From one host: refusals, and calls of four tokens; 2,000 bytes each.
      return daemon.quiet[kAudit] +
             static_cast<uint64_t>((1000 + 10 * seconds + 4 * (20000 + 200 * seconds)) * 2000);
    case kResources:
      break;
  }
  return 0;
}

void HostileWatch::Sample() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Daemon& daemon : daemons_) {
    for (int r = 0; r < kResources; ++r) {
      const auto resource = static_cast<Resource>(r);
      const uint64_t value = Measure(daemon, resource);
      if (value == 0) continue;  // it has ended, which is noticed elsewhere
      daemon.now[r] = value;
      daemon.most[r] = std::max(daemon.most[r], value);
      const double seconds = absl::ToDoubleSeconds(absl::Now() - begin_);
      if (hostile_ && value > BoundOf(daemon, resource, seconds)) {
        fail_(absl::StrCat(daemon.name, ": ", kNames[r], ": ", value, ", quiet ", daemon.quiet[r],
                           ", allowed ", BoundOf(daemon, resource, seconds)));
      }
    }
  }
}

std::string HostileWatch::NotBack() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string problem;
  for (const Daemon& daemon : daemons_) {
    const auto look = [&](Resource resource, uint64_t allowed) {
      if (daemon.now[resource] <= allowed) return;
      absl::StrAppend(&problem, daemon.name, ": ", kNames[resource], ": ", daemon.now[resource],
                      ", quiet ", daemon.quiet[resource], ", allowed ", allowed, "\n");
    };
    // malloc() keeps some freed memory.
    look(kMemory, daemon.quiet[kMemory] + (uint64_t{64} << 20));
    look(kDescriptors, daemon.quiet[kDescriptors] + 16);
    look(kThreads, daemon.quiet[kThreads] + 8);
  }
  return problem;
}

std::string HostileWatch::Report() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string report;
  for (const Daemon& daemon : daemons_) {
    for (int r = 0; r < kResources; ++r) {
      absl::StrAppend(&report, "  ", daemon.name, " ", kNames[r], ": quiet ", daemon.quiet[r],
                      ", most ", daemon.most[r], ", now ", daemon.now[r], "\n");
    }
  }
  return report;
}

}  // namespace verbena::test
