// Resident memory of the processes of random_faults: how much each has in the quiet part of a run,
// and whether it stays within 1.5 times of that, and a constant.
//
// **Thread safety**: one owner thread; a thread of its own samples meanwhile.
//
// **Invariants**
// 1. A process that is started again has the quiet value of the one before it under its name.
// 2. Servers share one quiet value, the largest: which has how many partitions changes. So do
//    worker processes: which has how many visitors changes.
#ifndef VERBENA_TESTS_FAULTS_RANDOM_FAULTS_MEMORY_H_
#define VERBENA_TESTS_FAULTS_RANDOM_FAULTS_MEMORY_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "tests/faults/random_faults_ledger.h"

namespace verbena::test {

class MemoryWatch {
 public:
  // More than a limit is a failure in the ledger.
  MemoryWatch(Ledger* ledger, uint64_t slack_bytes);
  ~MemoryWatch();

  // The process that has this name from now on. Names that begin alike up to a '-' share a quiet
  // value.
  void Watch(const std::string& name, pid_t pid);
  void Forget(const std::string& name);
  // Until now all was quiet: from now on limits hold.
  void EndQuiet();
  // A line for each name: now, quiet, largest.
  std::string Report() const;

 private:
  struct State {
    pid_t pid = 0;
    uint64_t now = 0, quiet = 0, largest = 0;  // bytes
  };
  void Sample();
  uint64_t QuietOf(const std::string& name) const;

  Ledger* ledger_;
  uint64_t slack_;
  mutable std::mutex mutex_;
  std::map<std::string, State> states_;
  bool quiet_ = true;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_RANDOM_FAULTS_MEMORY_H_
