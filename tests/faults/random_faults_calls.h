// Checks how the calls of one client of random_faults end, and values that they have read.
//
// **Thread safety**: CallCheck from any thread; a Reading belongs to one thread.
//
// **Invariants**
// 1. A call that fails before its deadline, or ends long after it, is reported to the ledger and
//    ends the run.
// 2. A value that is not a whole number, is below the pushes acknowledged before the call or above
//    the pushes attempted before its end is reported too.
#ifndef VERBENA_TESTS_FAULTS_RANDOM_FAULTS_CALLS_H_
#define VERBENA_TESTS_FAULTS_RANDOM_FAULTS_CALLS_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/faults/random_faults_ledger.h"
#include "tests/faults/random_faults_plan.h"

namespace verbena::test {

class CallCheck {
 public:
  struct Call {
    std::string name;
    std::chrono::steady_clock::time_point start;
    absl::Duration timeout;
    bool may_expire = false;
    int place = -1;  // in the ledger
  };

  // `client` is its index in the ledger, `name` stands in reports.
  CallCheck(Ledger* ledger, int client, std::string name, absl::Duration timeout);

  // Just before the call, with the deadline of every call that must succeed.
  Call Begin(const char* name, const std::string& object) const;
  // The same of one whose deadline may be too short.
  Call BeginShort(const char* name, const std::string& object, absl::Duration timeout) const;
  // Returns whether it ended OK.
  bool End(const Call& call, const absl::Status& status);
  // One that was cancelled: any status will do, as soon as it is there.
  void EndCancelled(const Call& call, const absl::Status& status);

  void Fail(const std::string& problem);
  Ledger& ledger() { return *ledger_; }
  absl::Duration timeout() const { return timeout_; }

 private:
  void Count(const Call& call, double seconds, bool expired);

  Ledger* ledger_;
  int client_;
  std::string name_;
  absl::Duration timeout_;
};

// Values of some units of a table, read by one call.
class Reading {
 public:
  // Takes the lower bounds: before the call. `units` in the order of the values.
  Reading(const TablePlan& table, TableLedger* ledger, std::vector<uint64_t> units);
  // After the call; the values are units x width. Empty, or the problem.
  std::string Check(const float* values) const;
  // After the call that summed units into bags of `size`, the last one of fewer.
  std::string CheckBags(const float* values, size_t size) const;
  const std::vector<uint64_t>& units() const { return units_; }

 private:
  std::string CheckSum(const float* values, size_t begin, size_t end) const;

  const TablePlan& table_;
  TableLedger* ledger_;
  std::vector<uint64_t> units_;
  std::vector<uint64_t> least_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_RANDOM_FAULTS_CALLS_H_
