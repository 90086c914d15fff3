// Registers memory for transports while the core's owner executes other calls.
//
// A job registers one block for one transport, in steps of bounded size (rdma/transport.h,
// Registration). If a transport registers each exposure anew, a job registers a piece of a block
// for one lane. The steps use no state of the owner; the owner exposes memory that a job registered
// for a lane. Separate threads execute the steps (client_runtime.h). If a job finds all threads in
// a step, which may take long despite its bounded size, another thread is started. Jobs take turns.
// Every second step goes to the job with the fewest bytes left, so that a small region does not
// wait for large ones. Without threads, as in the simulator, there are no jobs: calls register the
// memory that they need.
//
// States of a job: waiting <-> stepping -> over (complete, failed or given up).
//
// **Thread safety**: any thread may call Run(), RunOnce() and Report(); only the core's owner may
// call the others.
//
// Invariants:
//  1. No lock is held while memory is registered, deregistered or freed.
//  2. A block stays alive while a job has it. Holds() is true until the job has released it, or
//     until its registration is handed out.
//  3. TakeOver() returns each started job once, with its registration if that is complete and for a
//     lane. A thread ends a registration whose memory is given up before.
#ifndef VERBENA_CLIENT_REGISTRAR_H_
#define VERBENA_CLIENT_REGISTRAR_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "rdma/base/clock.h"
#include "rdma/base/unique_fd.h"
#include "rdma/memory/memory.h"
#include "rdma/transport.h"

namespace verbena::client {

class Registrar {
 public:
  static constexpr size_t kMostJobs = 1024;
  static constexpr int kMostThreads = 4;
  // Time after which a job is reported, and the minimum interval of reports.
  static constexpr int64_t kReportAfterNanos = 2'000'000'000;
  static constexpr int64_t kReportEveryNanos = 5'000'000'000;

  using Log = std::function<void(const std::string&)>;
  // `log` may be null.
  Registrar(const Clock* clock, Log log) : clock_(clock), log_(std::move(log)) {}

  // ---- called by the owner ----
  // Enables jobs. `start` starts a thread that calls Run(), or returns an error. It is called when
  // the first job starts, and again until kMostThreads run. RESOURCE_EXHAUSTED: no descriptor.
  absl::Status UseThread(std::function<absl::Status()> start);
  bool threaded() const { return wake_.valid(); }

  struct Progress {
    int64_t started_ns = 0;
    uint64_t registered = 0, bytes = 0;
  };
  struct Purpose {
    size_t endpoint = 0;
    uint64_t block = 0;                                         // id of a root block
    rdma::ConnectionId connection = rdma::ConnectionId::kNone;  // kNone: for the whole transport
    size_t piece = 0;                                           // for a lane: index of the piece in
                                                                // the block
    bool operator==(const Purpose&) const = default;
  };
  // Empty: there is no such job that is running, or over but not taken.
  std::optional<Progress> Find(const Purpose& purpose) const;
  // Whether there is a job for this memory, for the transport or any of its lanes.
  bool Pending(size_t endpoint, uint64_t block) const;
  // RESOURCE_EXHAUSTED: too many jobs, or no thread can be started. CANCELLED: Stop() was called.
  // `bytes`: number of bytes registered at the end.
  absl::Status Start(const Purpose& purpose, std::string transport,
                     std::shared_ptr<rdma::MemoryBlock> root, uint64_t bytes,
                     std::unique_ptr<rdma::Registration> registration);
  // The memory is about to be freed.
  void GiveUp(uint64_t block);
  bool Holds(uint64_t block) const;
  struct Over {
    Purpose purpose;
    absl::Status status;                               // CANCELLED: given up
    std::unique_ptr<rdma::Registration> registration;  // for a lane; complete
    Progress progress;
  };
  // Returns the jobs that are over. wake_fd() is readable while there are any.
  std::vector<Over> TakeOver();
  // Ends a job whose lane is gone, in a thread.
  void Discard(Over over);
  int wake_fd() const { return wake_.get(); }
  // Run() returns after the current step; incomplete jobs are given up.
  void Stop();

  // ---- called by any thread ----
  // Executes steps until Stop().
  void Run();
  // Executes one step of one job. False: no job is free for a step.
  bool RunOnce();
  // Logs a line about the job with the most bytes left, if it takes long.
  void Report(int64_t now);

 private:
  struct Job {
    Purpose purpose;
    std::string transport;
    uint64_t bytes = 0;
    int64_t started_ns = 0;
    bool stepping = false;
    bool given_up = false;
    bool reported = false;
    // Used by the stepping thread only, except for the progress.
    std::shared_ptr<rdma::MemoryBlock> root;
    std::unique_ptr<rdma::Registration> registration;
  };
  using Jobs = std::list<Job>;
  static uint64_t Left(const Job& job) { return job.bytes - job.registration->registered_bytes(); }
  // Starts a thread if all threads are in a step. An error means that no thread exists.
  absl::Status StartThread();
  Jobs::iterator Next();        // end(): no job is free for a step
  void EndByThread(Over over);  // requires the lock
  void End(std::unique_lock<std::mutex>* lock, Jobs::iterator job, absl::Status status);

  const Clock* const clock_;
  const Log log_;
  rdma::UniqueFd wake_;
  std::function<absl::Status()> start_;
  std::atomic<bool> some_over_{false};

  mutable std::mutex mutex_;  // guards the fields below
  std::condition_variable changed_;
  bool stopping_ = false;
  int threads_ = 0;  // number of started threads
  int idle_ = 0;     // number of idle threads among them
  Jobs jobs_;        // the job that was stepped last is at the end
  bool in_turn_ = false;
  std::vector<Over> over_;
  int64_t report_at_ = 0;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_REGISTRAR_H_
