// Registers memory for transports while the core's owner goes on with other calls.
//
// A job is one block for one transport, in steps of bounded size (rdma/transport.h, Registration),
// or a piece of a block for one lane, where the transport registers what it exposes anew for each.
// The steps touch nothing of the owner's; what they registered for a lane is exposed by the owner.
// Steps are taken in threads of their own (hub.h): another one is started where a job finds all of
// them in a step, which may take long in spite of its size. Jobs take turns; every other step goes
// to the one with the fewest bytes left, so that a small region does not wait for large ones. Where
// there is no thread, as in the simulator, there are no jobs: who needs memory registers it in its
// call.
//
// States of a job: waiting <-> stepping -> over (complete, failed or given up).
//
// **Thread safety**: Run(), RunOnce() and Report() are for any thread, the others for the core's
// owner.
//
// Invariants:
//  1. No lock is held while memory is registered, deregistered or freed.
//  2. A block stays alive while a job has it. Holds() is true until nothing of the job is left, or
//     until its registration is handed out.
//  3. Each job that was started is handed to TakeOver() once, with its registration where that is
//     a lane's and complete. One of memory that is given up before that is ended by a thread.
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
  // How long a job may go on before it is reported, and how often reports come at most.
  static constexpr int64_t kReportAfterNanos = 2'000'000'000;
  static constexpr int64_t kReportEveryNanos = 5'000'000'000;

  using Log = std::function<void(const std::string&)>;
  // `log` may be null.
  Registrar(const Clock* clock, Log log) : clock_(clock), log_(std::move(log)) {}

  // ---- the owner's ----
  // From now on there are jobs. `start` starts a thread that calls Run(), or says why it cannot; it
  // is called when the first job is started, and again until kMostThreads run. RESOURCE_EXHAUSTED:
  // no descriptor.
  absl::Status UseThread(std::function<absl::Status()> start);
  bool threaded() const { return wake_.valid(); }

  struct Progress {
    int64_t started_ns = 0;
    uint64_t registered = 0, bytes = 0;
  };
  struct Purpose {
    size_t endpoint = 0;
    uint64_t block = 0;                                         // of a root block
    rdma::ConnectionId connection = rdma::ConnectionId::kNone;  // kNone: for the transport
    size_t piece = 0;                                           // of a lane's: of the block
    bool operator==(const Purpose&) const = default;
  };
  // Null: there is no such job, nor one that is over and was not taken.
  std::optional<Progress> Find(const Purpose& purpose) const;
  // Whether there is one of this memory, for the transport or any of its lanes.
  bool Pending(size_t endpoint, uint64_t block) const;
  // RESOURCE_EXHAUSTED: there are too many, or no thread can be started. CANCELLED: Stop() was
  // called. `bytes`: that are registered at the end.
  absl::Status Start(const Purpose& purpose, std::string transport,
                     std::shared_ptr<rdma::MemoryBlock> root, uint64_t bytes,
                     std::unique_ptr<rdma::Registration> registration);
  // The memory is about to go.
  void GiveUp(uint64_t block);
  bool Holds(uint64_t block) const;
  struct Over {
    Purpose purpose;
    absl::Status status;                               // CANCELLED: given up
    std::unique_ptr<rdma::Registration> registration;  // a lane's, complete
    Progress progress;
  };
  // The jobs that are over. wake_fd() is readable while there are some.
  std::vector<Over> TakeOver();
  // One whose lane is gone: ended by a thread.
  void Discard(Over over);
  int wake_fd() const { return wake_.get(); }
  // Run() returns after the step under way; what was not complete is given up.
  void Stop();

  // ---- any thread's ----
  // Steps until Stop().
  void Run();
  // One step of one job. False: there is none that no other thread is stepping.
  bool RunOnce();
  // Writes a line about the job that has most left to do, when it takes long.
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
    // Of the thread that steps, but for the progress.
    std::shared_ptr<rdma::MemoryBlock> root;
    std::unique_ptr<rdma::Registration> registration;
  };
  using Jobs = std::list<Job>;
  static uint64_t Left(const Job& job) { return job.bytes - job.registration->registered_bytes(); }
  // Starts a thread where all are in a step. An error: there is none.
  absl::Status StartThread();
  Jobs::iterator Next();        // end(): there is none to step
  void EndByThread(Over over);  // under the lock
  void End(std::unique_lock<std::mutex>* lock, Jobs::iterator job, absl::Status status);

  const Clock* const clock_;
  const Log log_;
  rdma::UniqueFd wake_;
  std::function<absl::Status()> start_;
  std::atomic<bool> some_over_{false};

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  int threads_ = 0;  // that were started
  int idle_ = 0;     // of these
  Jobs jobs_;        // the one that was stepped last at the end
  bool in_turn_ = false;
  std::vector<Over> over_;
  int64_t report_at_ = 0;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_REGISTRAR_H_
