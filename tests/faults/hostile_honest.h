// The honest users of a cluster with hostile peers: a job that trains, whose sums must be exact, a
// quick job, a member that sends heartbeats, and health probes. Each is served all the time.
//
// **Thread safety**: one owner thread; each user has threads of its own.
#ifndef VERBENA_TESTS_FAULTS_HOSTILE_HONEST_H_
#define VERBENA_TESTS_FAULTS_HOSTILE_HONEST_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "verbena/client.h"

namespace verbena::test {

// How long calls of one kind took.
class CallTimes {
 public:
  void Add(absl::Duration time);
  // "1234 calls, p50 0.1 ms, p99 ..., p99.9 ..., longest ..."; forgets them.
  std::string Take();
  absl::Duration longest() const;

 private:
  mutable std::mutex mutex_;
  std::vector<double> ms_;  // guarded by mutex_
  double longest_ms_ = 0;   // guarded by mutex_; never forgotten
};

class HonestUsers {
 public:
  struct Options {
    std::string cluster, operator_token;
    std::vector<std::string> metrics;
    absl::Duration longest;                        // that a call may take
    std::function<void(const std::string&)> fail;  // from any thread
  };
  explicit HonestUsers(Options options);
  ~HonestUsers();

  // Returns once all are served.
  bool Start();
  // The times since the last look.
  std::string Times();
  // Ends them, and compares the sums. Returns the difference.
  std::string Stop();
  uint64_t steps() const { return steps_; }

 private:
  ClientOptions ClientOf(const std::string& job) const;
  void Fail(const std::string& what) const { options_.fail(what); }
  // Adds the time since `begin`; too long is a failure.
  void Took(const char* what, CallTimes* times, absl::Time begin) const;
  void Train(int worker);
  void Quick();
  void Heartbeats();
  void Probe();
  std::string CheckSums();

  const Options options_;
  std::atomic<bool> over_{false};
  std::atomic<int> served_{0};  // users that have been served once
  std::atomic<uint64_t> steps_{0};
  std::atomic<uint64_t> stop_step_{UINT64_MAX};
  std::atomic<uint64_t> pushed_{0};  // to the async table
  CallTimes training_, quick_, heartbeats_, probes_;
  std::vector<std::thread> threads_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_HOSTILE_HONEST_H_
