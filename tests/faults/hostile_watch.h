// Resources of the daemons of a hostile run: memory, descriptors, threads, log and audit bytes,
// each with its bound while peers are hostile, and with the value that it returns to afterwards.
//
// **Thread safety**: one owner thread; a thread of its own samples meanwhile.
#ifndef VERBENA_TESTS_FAULTS_HOSTILE_WATCH_H_
#define VERBENA_TESTS_FAULTS_HOSTILE_WATCH_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace verbena::test {

class HostileWatch {
 public:
  using Fail = std::function<void(const std::string&)>;  // from any thread
  explicit HostileWatch(Fail fail);
  ~HostileWatch();

  // Before the sampling begins. `audit`: its audit log.
  void Add(const std::string& name, pid_t pid, const std::string& audit);
  // Takes the samples so far as the quiet values.
  void Begin();
  // Peers are hostile no more. Empty once all is as before; otherwise the resources that are not.
  std::string NotBack() const;
  std::string Report() const;

 private:
  enum Resource { kMemory, kDescriptors, kThreads, kLog, kAudit, kResources };
  struct Daemon {
    std::string name;
    pid_t pid = 0;
    std::string audit;
    std::array<uint64_t, kResources> now = {}, quiet = {}, most = {};
  };
  static uint64_t Measure(const Daemon& daemon, Resource resource);
  void Sample();
  uint64_t BoundOf(const Daemon& daemon, Resource resource, double seconds) const;

  const Fail fail_;
  mutable std::mutex mutex_;
  std::vector<Daemon> daemons_;  // guarded by mutex_
  bool hostile_ = false;         // guarded by mutex_
  absl::Time begin_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_HOSTILE_WATCH_H_
