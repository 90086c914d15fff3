#include "client/registrar.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::client {

// ---- the owner's --------------------------------------------------------------------------------

absl::Status Registrar::UseThread(std::function<absl::Status()> start) {
  rdma::UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid())
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", strerror(errno)));
  wake_ = std::move(wake);
  start_ = std::move(start);
  return absl::OkStatus();
}

std::optional<Registrar::Progress> Registrar::Find(const Purpose& purpose) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Job& job : jobs_) {
    if (job.purpose != purpose) continue;
    // Being ended: over in a moment.
    const uint64_t registered =
        job.registration == nullptr ? job.bytes : job.registration->registered_bytes();
    return Progress{job.started_ns, registered, job.bytes};
  }
  for (const Over& over : over_) {
    if (over.purpose == purpose) return over.progress;
  }
  return std::nullopt;
}

bool Registrar::Pending(size_t endpoint, uint64_t block) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is = [&](const auto& one) {
    return one.purpose.endpoint == endpoint && one.purpose.block == block;
  };
  return std::any_of(jobs_.begin(), jobs_.end(), is) || std::any_of(over_.begin(), over_.end(), is);
}

absl::Status Registrar::StartThread() {
  bool wanted = false, first = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    first = threads_ == 0;
    wanted = start_ != nullptr && idle_ == 0 && threads_ < kMostThreads;
  }
  if (!wanted) return absl::OkStatus();
  absl::Status status = start_();
  if (!status.ok()) return first ? status : absl::OkStatus();
  const std::lock_guard<std::mutex> lock(mutex_);
  ++threads_;
  return absl::OkStatus();
}

absl::Status Registrar::Start(const Purpose& purpose, std::string transport,
                              std::shared_ptr<rdma::MemoryBlock> root, uint64_t bytes,
                              std::unique_ptr<rdma::Registration> registration) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return absl::CancelledError("registrations have ended");
    if (jobs_.size() >= kMostJobs) {
      return absl::ResourceExhaustedError(
          absl::StrCat(kMostJobs, " regions are being registered; wait for some"));
    }
  }
  if (absl::Status status = StartThread(); !status.ok()) return status;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Job& job = jobs_.emplace_back();
    job.purpose = purpose;
    job.transport = std::move(transport);
    job.bytes = bytes;
    job.started_ns = clock_->NowNanos();
    job.root = std::move(root);
    job.registration = std::move(registration);
  }
  changed_.notify_all();
  return absl::OkStatus();
}

void Registrar::GiveUp(uint64_t block) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Job& job : jobs_) job.given_up |= job.purpose.block == block;
    for (Over& over : over_) {
      if (over.purpose.block != block || over.registration == nullptr) continue;
      EndByThread({over.purpose, absl::OkStatus(), std::move(over.registration), {}});
      over.status = absl::CancelledError("the memory was given back");
    }
  }
  changed_.notify_all();
}

void Registrar::Discard(Over over) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    EndByThread(std::move(over));
  }
  changed_.notify_all();
}

// There is a thread: one has stepped it.
void Registrar::EndByThread(Over over) {
  Job& job = jobs_.emplace_back();
  job.purpose = over.purpose;
  job.started_ns = clock_->NowNanos();
  job.given_up = true;
  job.bytes = over.registration->registered_bytes();
  job.registration = std::move(over.registration);
}

bool Registrar::Holds(uint64_t block) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [block](const Job& job) { return job.purpose.block == block; });
}

std::vector<Registrar::Over> Registrar::TakeOver() {
  // Acquire, with the release in End(): the registration is seen, too.
  if (!some_over_.load(std::memory_order_acquire)) return {};
  uint64_t count;
  [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof(count));
  const std::lock_guard<std::mutex> lock(mutex_);
  some_over_.store(false, std::memory_order_relaxed);  // under the lock of `over_`
  return std::exchange(over_, {});
}

void Registrar::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    for (Job& job : jobs_) job.given_up = true;
  }
  changed_.notify_all();
}

// ---- the thread's -------------------------------------------------------------------------------

void Registrar::Run() {
  while (true) {
    while (RunOnce()) {
    }
    std::unique_lock<std::mutex> lock(mutex_);
    ++idle_;
    changed_.wait(lock, [this] { return stopping_ || Next() != jobs_.end(); });
    --idle_;
    if (Next() == jobs_.end()) return;
  }
}

// One that is given up comes first: its memory is waited for.
Registrar::Jobs::iterator Registrar::Next() {
  auto best = jobs_.end();
  for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
    if (job->stepping) continue;
    if (job->given_up) return job;
    if (best == jobs_.end() || (!in_turn_ && Left(*job) < Left(*best))) best = job;
  }
  return best;
}

bool Registrar::RunOnce() {
  std::unique_lock<std::mutex> lock(mutex_);
  const Jobs::iterator job = Next();
  if (job == jobs_.end()) return false;
  jobs_.splice(jobs_.end(), jobs_, job);
  job->stepping = true;
  absl::Status status = absl::CancelledError("the memory was given back");
  bool complete = false;
  if (!job->given_up) {
    in_turn_ = !in_turn_;
    lock.unlock();
    status = job->registration->Step();
    complete = status.ok() && job->registration->complete();
    lock.lock();
    if (status.ok() && !complete && !job->given_up) {
      job->stepping = false;
      changed_.notify_all();
      return true;
    }
    // A complete one of the transport's goes with its memory.
    const bool drop = !complete || job->purpose.connection != rdma::ConnectionId::kNone;
    if (status.ok() && job->given_up && drop) {
      status = absl::CancelledError("the memory was given back");
    }
  }
  End(&lock, job, std::move(status));
  return true;
}

void Registrar::End(std::unique_lock<std::mutex>* lock, Jobs::iterator job, absl::Status status) {
  std::unique_ptr<rdma::Registration> registration = std::move(job->registration);
  std::shared_ptr<rdma::MemoryBlock> root = std::move(job->root);
  std::string line;
  if (job->reported && log_ != nullptr) {
    line = absl::StrCat("client: registering memory with ", job->transport, ": ",
                        registration->registered_bytes(), " of ", job->bytes, " bytes after ",
                        (clock_->NowNanos() - job->started_ns) / 1'000'000'000,
                        " s: ", status.ok() ? "done" : std::string(status.message()));
  }
  const bool exposes = status.ok() && job->purpose.connection != rdma::ConnectionId::kNone;
  lock->unlock();
  if (!line.empty()) log_(line);
  if (!exposes) registration.reset();
  root.reset();
  lock->lock();
  Over over = {job->purpose,
               std::move(status),
               std::move(registration),
               {job->started_ns, job->bytes, job->bytes}};
  if (job->given_up && exposes) {  // meanwhile
    over.status = absl::CancelledError("the memory was given back");
    EndByThread({over.purpose, absl::OkStatus(), std::move(over.registration), {}});
    changed_.notify_all();
  }
  over_.push_back(std::move(over));
  jobs_.erase(job);
  some_over_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  // Fails only when the counter is full: then the owner is being woken already.
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
}

// ---- another thread's ---------------------------------------------------------------------------

void Registrar::Report(int64_t now) {
  if (log_ == nullptr) return;
  std::string line;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (now < report_at_) return;
    Job* longest = nullptr;
    for (Job& job : jobs_) {
      if (job.registration == nullptr || now - job.started_ns < kReportAfterNanos) continue;
      if (longest == nullptr || Left(job) > Left(*longest)) longest = &job;
    }
    if (longest == nullptr) return;
    report_at_ = now + kReportEveryNanos;
    longest->reported = true;
    line = absl::StrCat("client: registering memory with ", longest->transport, ": ",
                        longest->registration->registered_bytes(), " of ", longest->bytes,
                        " bytes after ", (now - longest->started_ns) / 1'000'000'000,
                        " s; other calls of this client go on");
  }
  log_(line);
}

}  // namespace verbena::client
