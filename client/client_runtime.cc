#include "client/client_runtime.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/base/threads.h"

namespace verbena {
namespace {

constexpr int64_t kNever = INT64_MAX;
constexpr int64_t kMillisecond = 1'000'000;
// About the cost of waking a thread: sleeping earlier saves nothing.
constexpr int64_t kSpinNanos = 50'000;
constexpr int kFruitlessSpins = 3;
constexpr int64_t kNap = 2 * kMillisecond;
constexpr int64_t kLongestNap = 64 * kMillisecond;
// After this many checks without work for the background thread, naps become longer.
constexpr int kCalmLooks = 64;
constexpr int64_t kCalmNap = 16 * kMillisecond;
// Progress::kCaller: interval of checks of the lease while no caller waits.
constexpr int64_t kKeepLease = 100 * kMillisecond;
constexpr int64_t kReleaseWait = 1000 * kMillisecond;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void Signal(int fd) {
  const uint64_t one = 1;
  // Fails only when the counter is full: then the sleeper is already being woken.
  [[maybe_unused]] const ssize_t n = write(fd, &one, sizeof(one));
}

void Drain(int fd) {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = read(fd, &count, sizeof(count));
}

}  // namespace

class ClientRuntime::Lock {
 public:
  explicit Lock(ClientRuntime* runtime) : lock_(runtime->mutex_, std::defer_lock) {
    runtime->contenders_.fetch_add(1, std::memory_order_relaxed);
    lock_.lock();
    runtime->contenders_.fetch_sub(1, std::memory_order_relaxed);
    ++runtime->entries_;
    if (runtime->letting_in_ > 0) runtime->entered_.notify_all();
  }
  std::unique_lock<std::mutex>& get() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

ClientRuntime::ClientRuntime(bool background) : background_(background) {}

ClientRuntime::~ClientRuntime() {
  if (thread_.joinable() || keeper_thread_.joinable()) Stop(0);
  if (caller_fd_ >= 0) close(caller_fd_);
  if (background_fd_ >= 0) close(background_fd_);
}

absl::Status ClientRuntime::Start(Parts parts) {
  parts_ = std::move(parts);
  caller_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  background_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (caller_fd_ < 0 || background_fd_ < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", strerror(errno)));
  }
  client::Registrar& registrar = parts_.core->registrar();
  absl::Status threaded = registrar.UseThread([this, &registrar] {
    auto started = StartThread("of the registrar", [&registrar] { registrar.Run(); });
    if (started.ok()) registrar_threads_.push_back(*std::move(started));
    return started.status();
  });
  if (!threaded.ok()) return threaded;
  client::LeaseKeeper& keeper = parts_.core->lease_keeper();
  if (keeper.usable()) {
    auto started = StartThread("of the lease", [this, &keeper] { KeepLeaseAlone(&keeper); });
    if (!started.ok()) return started.status();
    keeper_thread_ = *std::move(started);
  }
  auto started = StartThread("of the client", [this] { Background(); });
  if (!started.ok()) return started.status();
  thread_ = *std::move(started);
  return absl::OkStatus();
}

absl::Status ClientRuntime::WhyNot() const {
  if (absl::Status status = process_.Check("the client"); !status.ok()) return status;
  return absl::FailedPreconditionError("the client is closed");
}

void ClientRuntime::Stop(int64_t leave_by_ns) {
  if (copied()) return;
  bool left = false;
  Run([&](client::ClientCore& core) {
    core.Leave(leave_by_ns, [&left](absl::Status) { left = true; });
  });
  // The call itself ends by its deadline; the extra time is for processing its end.
  WaitUntil([&] { return left; }, leave_by_ns + 10 * kMillisecond);
  {
    Lock lock(this);
    // Ends the remaining operations, so that every ticket is done.
    if (parts_.core != nullptr) parts_.core->RunOnce();
    RunCallbacks(lock.get());
    stopping_ = true;
    // A caller that still drives sees it and releases the core.
    if (sleeper_fd_ >= 0) Signal(sleeper_fd_);
    if (waiting_ > 0) changed_.notify_all();
    ++waiting_;
    changed_.wait(lock.get(), [this] { return !caller_drives_; });
    --waiting_;
  }
  Signal(background_fd_);
  if (thread_.joinable()) thread_.join();
  {
    const std::lock_guard<std::mutex> keeper(keeper_mutex_);
    keeper_stops_ = true;
  }
  keeper_changed_.notify_all();
  if (keeper_thread_.joinable()) keeper_thread_.join();
  StopRegistrar();
  Lock lock(this);
  parts_.core.reset();
  parts_.endpoints.clear();
  parts_.control.reset();
}

// Waits for the registration step in progress, without the lock.
void ClientRuntime::StopRegistrar() {
  {
    Lock lock(this);
    if (parts_.core == nullptr) return;
    parts_.core->registrar().Stop();  // no call after this one starts a thread
  }
  for (std::thread& thread : registrar_threads_) thread.join();
  registrar_threads_.clear();
}

bool ClientRuntime::Run(absl::FunctionRef<void(client::ClientCore&)> call) {
  if (copied()) return false;
  Lock lock(this);
  if (parts_.core == nullptr) return false;
  call(*parts_.core);
  WakeSleeper();
  return true;
}

// Wakes the sleeping thread if the core's next timer is now due before the end of the sleep.
void ClientRuntime::WakeSleeper() {
  if (sleeper_fd_ >= 0 && parts_.core->NextTimerNanos() < sleeps_until_) Signal(sleeper_fd_);
}

void ClientRuntime::ReleaseBlock(const rdma::MemoryBlock& block) {
  bool in_use = false;
  Run([&](client::ClientCore& core) {
    core.ReleaseBlock(block.id());
    in_use = core.InUse(block.id());
  });
  // Allocated memory lives until the last lane releases it. A caller's own memory may be freed when
  // this returns, so lanes get a limited time to die. Only a stopped shm peer needs longer, and
  // nothing reads or writes on its behalf after Close().
  if (!in_use || block.allocated()) return;
  WaitUntil([&] { return parts_.core == nullptr || !parts_.core->InUse(block.id()); },
            Now() + kReleaseWait);
}

// ---- callers ------------------------------------------------------------------------------------

bool ClientRuntime::WaitUntil(absl::FunctionRef<bool()> done, int64_t deadline_ns) {
  if (copied()) return false;
  Lock guard(this);
  std::unique_lock<std::mutex>& lock = guard.get();
  bool waited = false;
  while (parts_.core != nullptr && !stopping_) {
    const bool is_done = done();
    const int64_t now = is_done ? 0 : Now();
    if (is_done || now >= deadline_ns) {
      // The caller that stopped driving left the rest of the work to this one.
      if (waited && !caller_drives_ && waiting_ == 0) WakeFromNap();
      return is_done;
    }
    if (!caller_drives_) {
      Drive(lock, done, deadline_ns);
      continue;
    }
    ++waiting_;
    // Capped, because the standard library's sum of the current time and a huge duration overflows.
    const int64_t wait = std::min<int64_t>(deadline_ns - now, int64_t{3600} * 1'000'000'000);
    changed_.wait_for(lock, std::chrono::nanoseconds(wait));
    --waiting_;
    waited = true;
  }
  return done();
}

// Takes over the core from the background thread if that sleeps on it.
void ClientRuntime::TakeOver() {
  caller_drives_ = true;
  ++drives_;
  if (sleeper_fd_ < 0) return;
  parts_.core->Disarm();
  Signal(sleeper_fd_);
  sleeper_fd_ = -1;
}

void ClientRuntime::HandOver() {
  caller_drives_ = false;
  if (waiting_ > 0) {
    changed_.notify_all();  // one of them continues to drive, or wakes the background thread
    return;
  }
  WakeFromNap();
}

void ClientRuntime::LetIn(std::unique_lock<std::mutex>& lock) {
  // Relaxed: a missed thread waits for one more turn. A counted thread waits only for the lock.
  const int waiting = contenders_.load(std::memory_order_relaxed);
  if (waiting == 0) return;
  const uint64_t all = entries_ + static_cast<uint64_t>(waiting);
  ++letting_in_;
  entered_.wait(lock, [&] { return entries_ >= all; });
  --letting_in_;
}

void ClientRuntime::WakeFromNap() {
  if (parts_.core->HasOperations()) calm_looks_ = 0;
  if (naps_until_ == 0) return;
  if ((background_ && expected_callbacks_ > 0) ||
      (calm_looks_ < kCalmLooks && naps_until_ - Now() > kNap)) {
    Signal(background_fd_);
  }
}

void ClientRuntime::ExpectCallback() {
  ++expected_callbacks_;
  if (background_ && !caller_drives_ && naps_until_ != 0) Signal(background_fd_);
}

void ClientRuntime::Drive(std::unique_lock<std::mutex>& lock, absl::FunctionRef<bool()> done,
                          int64_t deadline_ns) {
  TakeOver();
  while (true) {
    const bool worked = parts_.core->RunOnce();
    if (worked && waiting_ > 0) changed_.notify_all();
    if (!callbacks_.empty() && !RunCallbacks(lock)) return;
    // The clock is read only when there is no other work: it costs as much as a poll.
    if (done() || stopping_ || (!worked && Now() >= deadline_ns)) break;
    if (parts_.core->long_turn()) {
      LetIn(lock);
    } else if (contenders_.load(std::memory_order_relaxed) > 0) {
      lock.unlock();
      sched_yield();
      lock.lock();
    }
    if (worked || Spin(lock, done)) continue;
    const int64_t slept_at = Now();
    Sleep(lock, caller_fd_, std::min(deadline_ns, parts_.core->NextTimerNanos()));
    // The spin would have detected an event that arrived this soon.
    if (Now() - slept_at < kSpinNanos) fruitless_spins_ = 0;
  }
  HandOver();
}

// True: an event was handled.
bool ClientRuntime::Spin(std::unique_lock<std::mutex>& lock, absl::FunctionRef<bool()> done) {
  if (fruitless_spins_ >= kFruitlessSpins) return false;
  int64_t start = 0;
  for (int i = 1;; ++i) {
    Pause();
    // Timers and control answers can wait for the sixteenth turn; a peer's reply cannot.
    if (parts_.core->Poll() || i % 16 == 0) {
      if (parts_.core->RunOnce() || done()) {
        if (waiting_ > 0) changed_.notify_all();
        break;
      }
    }
    if (contenders_.load(std::memory_order_relaxed) > 0 || i % 64 == 0) {
      lock.unlock();
      sched_yield();
      lock.lock();
    }
    if (i % 16 == 0) {
      const int64_t now = Now();
      if (start == 0) start = now;
      if (now - start >= kSpinNanos) {
        ++fruitless_spins_;
        return false;
      }
    }
  }
  fruitless_spins_ = 0;
  return true;
}

void ClientRuntime::Sleep(std::unique_lock<std::mutex>& lock, int wake_fd, int64_t until_ns) {
  // Stop() may have run while the lock was released: it wakes a sleeping thread, but not one that
  // is about to sleep.
  if (stopping_) return;
  if (!parts_.core->Arm()) return;  // there is something to poll
  descriptors_.clear();
  parts_.core->AppendDescriptors(&descriptors_);
  polled_.clear();
  polled_.push_back({wake_fd, POLLIN, 0});
  for (const int fd : descriptors_) polled_.push_back({fd, POLLIN, 0});
  sleeper_fd_ = wake_fd;
  sleeps_until_ = until_ns;
  timespec timeout = {};
  timespec* limit = nullptr;
  if (until_ns != kNever) {
    const int64_t left = std::max<int64_t>(until_ns - Now(), 0);
    timeout.tv_sec = left / 1'000'000'000;
    timeout.tv_nsec = left % 1'000'000'000;
    limit = &timeout;
  }
  // A caller that takes over refills polled_ while this thread is still in ppoll().
  std::vector<pollfd> polled;
  polled.swap(polled_);
  lock.unlock();
  ppoll(polled.data(), polled.size(), limit, nullptr);
  lock.lock();
  if (polled[0].revents != 0) Drain(wake_fd);
  polled_.swap(polled);
  if (sleeper_fd_ != wake_fd) return;  // a caller took over
  sleeper_fd_ = -1;
  parts_.core->Disarm();
}

// No thread drives during callbacks, because they may start operations and even wait. False:
// another thread drives now.
bool ClientRuntime::RunCallbacks(std::unique_lock<std::mutex>& lock) {
  const bool drove = std::exchange(caller_drives_, false);
  if (waiting_ > 0) changed_.notify_all();
  while (!callbacks_.empty()) {
    auto [callback, status] = std::move(callbacks_.back());
    callbacks_.pop_back();
    lock.unlock();
    callback(std::move(status));
    callback = nullptr;
    lock.lock();
  }
  if (!drove) return true;
  if (caller_drives_ || stopping_ || parts_.core == nullptr) return false;
  TakeOver();
  return true;
}

// ---- the background thread ----------------------------------------------------------------------

void ClientRuntime::Nap(std::unique_lock<std::mutex>& lock, int64_t ns) {
  naps_until_ = Now() + ns;
  lock.unlock();
  pollfd wake = {background_fd_, POLLIN, 0};
  const timespec timeout = {static_cast<time_t>(ns / 1'000'000'000), ns % 1'000'000'000};
  ppoll(&wake, 1, &timeout, nullptr);
  if (wake.revents != 0) Drain(background_fd_);
  lock.lock();
  naps_until_ = 0;
}

void ClientRuntime::Background() {
  Lock guard(this);
  std::unique_lock<std::mutex>& lock = guard.get();
  int64_t nap = kNap;
  uint64_t drives = 0;
  while (!stopping_) {
    LetIn(lock);
    if (!background_) {
      if (!caller_drives_) KeepLease();
      Nap(lock, kKeepLease);
      continue;
    }
    if (caller_drives_ || (drives_ != drives && expected_callbacks_ == 0)) {
      nap = NextNap(nap, drives_ == drives);
      drives = drives_;
      Nap(lock, nap);
      continue;
    }
    // The work was left to this thread; or its caller is about to wait, and has no processor yet.
    if (parts_.core->HasOperations()) calm_looks_ /= 2;
    BackgroundTurn(lock);
  }
}

int64_t ClientRuntime::NextNap(int64_t last, bool keeps) {
  calm_looks_ = std::min(calm_looks_ + 1, kCalmLooks);
  if (calm_looks_ == kCalmLooks) return std::min(2 * last, kCalmNap);
  return keeps ? std::min(2 * last, kLongestNap) : kNap;
}

void ClientRuntime::BackgroundTurn(std::unique_lock<std::mutex>& lock) {
  const bool worked = parts_.core->RunOnce();
  if (worked && waiting_ > 0) changed_.notify_all();
  if (!callbacks_.empty()) {
    RunCallbacks(lock);
    return;
  }
  if (worked || caller_drives_ || stopping_) return;
  Sleep(lock, background_fd_, parts_.core->NextTimerNanos());
}

void ClientRuntime::KeepLeaseAlone(client::LeaseKeeper* keeper) {
  std::unique_lock<std::mutex> lock(keeper_mutex_);
  while (!keeper_stops_) {
    lock.unlock();
    const int64_t next = keeper->RunOnce(Now());
    lock.lock();
    keeper_changed_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(next - Now(), 0)),
                             [this] { return keeper_stops_; });
  }
}

void ClientRuntime::KeepLease() {
  while (parts_.core->RunControl()) {
  }
}

}  // namespace verbena
